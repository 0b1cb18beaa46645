#!/usr/bin/env python3
"""Kills a run of several processes and measures how long it takes to resume, with and without saved state.

    bench/recovery/tails.py [--graph GRAPH] [--seconds 20 60] [--rounds 3] [--json FILE]

One run for each of `--seconds`: scripted engines and learner, a checkpoint every 20 steps, state saved every
`--cut-every`. All its processes are killed at once (kill -9). Copies of what is left are resumed in turn, `--rounds`
times each: as it is, and with the cut files removed, which follows the record from its first step as a run without
saved state does. Reported: seconds from the start of `run --resume` until "the run is live", steps followed, and the
largest resident memory of any worker until then.

What bounds it: four processes load libtorch (0.4 s); following takes about 5 us a step and process; the steps
behind the newest cut are at most those of `--cut-every`, those without cuts all of them.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from split_runs import faults_of, workers_of
from step_lines import num_steps  # split_runs adds its folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "build/bin/primerl-graph")
WAIT_MAX_S = 300.0


def start(words, log):
    return subprocess.Popen([PROGRAM, "run", *words], stdout=subprocess.DEVNULL, stderr=log)


def kill_all(program):
    workers = list(workers_of(program.pid).values())
    for pid in [program.pid, *workers]:
        try:
            subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)
        except OSError:
            pass
    program.wait()


def peak_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def resume(folder):
    """Seconds until live, steps followed, peak memory of a worker in MiB."""
    log_file = folder.with_suffix(".err")
    with open(log_file, "w+") as log:
        began = time.monotonic()
        program = start(["--resume", str(folder)], log)
        while True:
            text = log_file.read_text()
            found = re.search(r"recovered: (\d+) steps", text)
            if found:
                took = time.monotonic() - began
                break
            if program.poll() is not None or time.monotonic() - began > WAIT_MAX_S:
                raise SystemExit(f"{folder} did not continue:\n{text}")
            time.sleep(0.005)
        memory = max(peak_mib(pid) for pid in workers_of(program.pid).values())
        kill_all(program)
    return took, int(found.group(1)), memory


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--graph", default=str(ROOT / "examples/split/graph.toml"))
    arguments.add_argument("--seconds", type=float, nargs="+", default=[20.0, 60.0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--cut-every", default="5s")
    arguments.add_argument("--json")
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for seconds in given.seconds:
            folder = pathlib.Path(scratch) / "run"
            sets = ['resource.engine.backend="scripted"', 'resource.learner.backend="scripted"',
                    "tenant.main.checkpoint_every=20", f'trace.cut_every="{given.cut_every}"']
            words = [given.graph, "--out", str(folder), "--max-steps", "1000000000"]
            for each in sets:
                words += ["--set", each]
            with open(folder.with_suffix(".log"), "w") as log:
                program = start(words, log)
                time.sleep(seconds)
                kill_all(program)
            size = sum(file.stat().st_size for file in (folder / "trace").iterdir())
            for kind in ("with", "without"):
                runs = []
                for _ in range(given.rounds):
                    copy = pathlib.Path(scratch) / "copy"
                    shutil.rmtree(copy, ignore_errors=True)
                    shutil.copytree(folder, copy, symlinks=True)
                    for file in (copy / "trace").glob("*.index"):
                        file.unlink()
                    if kind == "without":
                        for file in (copy / "trace").glob("*.cut"):
                            file.unlink()
                    runs.append(resume(copy))
                    assert not faults_of(copy), faults_of(copy)[:3]
                took = [run[0] for run in runs]
                row = {"seconds": seconds, "saved_state": kind, "record_mb": round(size / 1e6),
                       "steps_taken": num_steps(folder / "metrics.jsonl"),
                       "live_s_median": round(statistics.median(took), 2),
                       "live_s_max": round(max(took), 2),
                       "steps_followed": int(statistics.median(run[1] for run in runs)),
                       "peak_mib": round(max(run[2] for run in runs))}
                rows.append(row)
                print(json.dumps(row), flush=True)
            shutil.rmtree(folder)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
