#!/usr/bin/env python3
"""Delays workers of a run of several processes without killing them, and checks the result.

    bench/recovery/faults.py [--graph GRAPH] [--seconds 5] [--json FILE]

Three faults, one run each, `--seconds` long: every process is stopped in turn (SIGSTOP, SIGCONT); the
network is cut (between driver and trainer, in a network namespace whose loopback goes down and up again); every
process in turn is a slow consumer (stopped nine milliseconds of ten).

What bounds them: memory must not grow, since an edge holds at most its bound; a stopped process goes on
with what was sent to it; a cut link is noticed after 2 s of silence and made anew every 3 s at most, so
the first step comes within 5 s of the network's return. Every run must end in order (the ledger then adds
up, or `run` fails), take every step in order and end every rollout once.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from split_runs import faults_of, workers_of
from step_lines import num_steps  # split_runs adds its folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_MAX_S = 60.0


def resident_mib(pid):
    """Memory of its own: what is shared (the library, segments of the record) is not in it."""
    fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Run:
    def __init__(self, folder, graph, in_namespace):
        self.folder = folder
        words = [str(ROOT / "build/bin/primerl-graph"), "run", str(graph), "--out", str(folder),
                 "--max-steps", "1000000000"]
        if in_namespace:
            words = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
        self.err = open(folder.with_suffix(".err"), "w+")
        self.program = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=self.err)

    def num_steps(self):
        return num_steps(self.folder / "metrics.jsonl")

    def wait_for_steps(self, more):
        """Seconds until `more` steps have been taken; None: the run ended or hangs."""
        start, goal = time.monotonic(), self.num_steps() + more
        while self.num_steps() < goal:
            if self.program.poll() is not None or time.monotonic() - start > WAIT_MAX_S:
                return None
            time.sleep(0.002)
        return time.monotonic() - start

    def memory(self):
        return {name: resident_mib(pid) for name, pid in workers_of(self.program.pid).items()}

    def end(self):
        """Faults of the whole run."""
        self.program.send_signal(signal.SIGINT)
        try:
            code = self.program.wait(WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            self.program.kill()
            code = -1
        faults = []
        if code != 130:
            self.err.seek(0)
            faults.append(f"{self.folder.name} ended with {code}: {self.err.read()[-1500:]}")
        return faults + faults_of(self.folder)


def stopped(run, seconds):
    for pid in workers_of(run.program.pid).values():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        yield run.wait_for_steps(1)


def cut(run, seconds):
    network = ["nsenter", "--target", str(run.program.pid), "--user", "--net", "--preserve-credentials",
               "ip", "link", "set", "lo"]
    subprocess.run([*network, "down"], check=True)
    time.sleep(seconds)
    subprocess.run([*network, "up"], check=True)
    yield run.wait_for_steps(1)


def slow(run, seconds):
    for pid in workers_of(run.program.pid).values():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.009)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)
        yield run.wait_for_steps(1)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graph", default=str(ROOT / "tests/cli/graphs/split.toml"))
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--json", help="append the figures to this file")
    given = options.parse_args()
    figures, faults = {"load": os.getloadavg()[0]}, []
    with tempfile.TemporaryDirectory() as scratch:
        for fault in (stopped, cut, slow):
            graph = ROOT / "tests/cli/graphs/split_tcp.toml" if fault is cut else given.graph
            run = Run(pathlib.Path(scratch) / fault.__name__, graph, fault is cut)
            if run.wait_for_steps(20) is None:
                faults.append(f"{fault.__name__}: never came up")
                continue
            before = run.memory()
            went_on = list(fault(run, given.seconds))
            after = run.memory()
            faults += run.end()
            if None in went_on:
                faults.append(f"{fault.__name__}: did not continue")
                continue
            figures[fault.__name__] = {
                "seconds_until_a_step": [round(each, 3) for each in went_on],
                "grown_mib": {name: round(after[name] - before[name], 1) for name in sorted(before)},
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
