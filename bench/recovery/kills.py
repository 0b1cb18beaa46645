#!/usr/bin/env python3
"""Kills random workers of a run of several processes at random moments, and checks the result.

    bench/recovery/kills.py [--kills 100] [--kills-per-run 10] [--seed 1] [--graph GRAPH] [--engines]

What bounds a recovery: starting the processes again (about 0.3 s each on a loaded machine of two
cores, libtorch among it), linking them up, and following the record, which costs about a fortieth of
the time the run has taken. What is measured: from the kill to the first step after the run has resumed.

Every run must end in order (its ledger then balances, or `run` says otherwise and fails), take every
step in order, and end every rollout once. Kills hit the processes that keep state; with --engines the engines, too.
"from_checkpoint" counts the starts that could not follow their record: such runs take steps again.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from split_runs import faults_of, workers_of
from step_lines import num_steps  # split_runs adds its folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_MAX_S = 60.0


class Run:
    def __init__(self, folder, graph):
        self.folder, self.metrics = folder, folder / "metrics.jsonl"
        self.err = open(folder.with_suffix(".err"), "w+")
        self.program = subprocess.Popen(
            [ROOT / "build/bin/primerl-graph", "run", graph, "--out", folder, "--max-steps", "1000000000",
             "--set", "graph.restarts_max=65536", "--set", "tenant.main.checkpoint_every=20"],
            stdout=subprocess.DEVNULL, stderr=self.err)

    def said(self):
        return pathlib.Path(self.err.name).read_text()

    def num_starts(self):
        said = self.said()
        return sum(said.count(words) for words in ("the run is live", "resuming after step", "as incarnation"))

    def wait_for_start(self, num_before):
        """Seconds until one more start has come up and taken a step; None: the run ended or hangs."""
        start = time.monotonic()
        while self.num_starts() <= num_before:
            if self.program.poll() is not None or time.monotonic() - start > WAIT_MAX_S:
                return None
            time.sleep(0.002)
        return None if self.wait_for_lines(1) is None else time.monotonic() - start

    def wait_for_lines(self, more):
        """Seconds until `more` lines of metrics have come; None: the run ended or hangs."""
        start, goal = time.monotonic(), num_steps(self.metrics) + more
        while num_steps(self.metrics) < goal:
            if self.program.poll() is not None or time.monotonic() - start > WAIT_MAX_S:
                return None
            time.sleep(0.002)
        return time.monotonic() - start

    def end(self):
        self.program.send_signal(signal.SIGINT)
        try:
            return self.program.wait(WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            self.program.kill()
            return -1


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--kills-per-run", type=int, default=10)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--graph", default=str(ROOT / "tests/cli/graphs/split.toml"))
    options.add_argument("--engines", action="store_true", help="kill engines, too")
    options.add_argument("--json", help="append the figures to this file")
    given = options.parse_args()
    dice = random.Random(given.seed)
    took, faults, num_kills, num_followed, num_back = {}, [], 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        index = 0
        while num_kills < given.kills:
            index += 1
            run = Run(pathlib.Path(scratch) / f"run{index}", given.graph)
            if run.wait_for_lines(1) is None:
                faults.append(f"run {index}: never came up: {run.said()}")
                break
            for _ in range(min(given.kills_per_run, given.kills - num_kills)):
                time.sleep(dice.uniform(0, 1))
                workers = workers_of(run.program.pid)
                names = sorted(name for name in workers if given.engines or "inference" not in name)
                if not names:
                    continue
                name = dice.choice(names)
                num_before = run.num_starts()
                os.kill(workers[name], signal.SIGKILL)
                num_kills += 1
                seconds = run.wait_for_start(num_before)
                if seconds is None:
                    break
                took.setdefault(name.split("#")[0], []).append(seconds)
            code = run.end()
            said = run.said()
            num_followed += said.count("the run is live")
            num_back += said.count("resuming after step")
            if code != 130:
                faults.append(f"run {index} (seed {given.seed}) ended with {code}: {said[-2000:]}")
            faults += [f"run {index}: {fault}" for fault in faults_of(run.folder, said.count("resuming after step") > 0)]
    seconds = sorted(second for each in took.values() for second in each)
    at = lambda share: seconds[min(len(seconds) - 1, int(share * len(seconds)))]
    figures = {
        "kills": num_kills, "seed": given.seed, "followed": num_followed, "from_checkpoint": num_back,
        "faults": len(faults), "load": os.getloadavg()[0],
        "seconds": {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": seconds[-1]},
        "median_by_process": {name: statistics.median(each) for name, each in sorted(took.items())},
    }
    print(json.dumps(figures, indent=2))
    for fault in faults:
        print(fault, file=sys.stderr)
    if given.json:
        with open(given.json, "a") as out:
            out.write(json.dumps(figures) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
