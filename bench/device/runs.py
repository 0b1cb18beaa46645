"""Runs of primerl-graph for the scripts of this folder: started, watched, read."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from step_lines import step_lines  # noqa: E402
BIN = pathlib.Path(os.environ.get("PRIMERL_BIN", ROOT / "build-cuda/bin"))
WAIT_MAX_S = 300.0


def command(words):
    return [str(BIN / "primerl-graph")] + [str(word) for word in words]


def sets(values):
    """--set words of a dictionary."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def lines_of(file):
    """The complete objects of a jsonl file; empty if the file does not exist yet."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Run:
    """A run into `folder`, whose stderr is beside it."""

    def __init__(self, folder, words):
        self.folder = pathlib.Path(folder)
        self.err = self.folder.with_suffix(".err")
        with open(self.err, "a") as err:
            self.program = subprocess.Popen(command(["run", *words, "--out", self.folder]),
                                            stdout=subprocess.DEVNULL, stderr=err)

    def steps(self):
        return step_lines(self.folder / "metrics.jsonl")

    def wait_for_step(self, number):
        """Waits for so many steps; a run that ends before is an error."""
        deadline = time.monotonic() + WAIT_MAX_S
        while len(self.steps()) < number:
            if self.program.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no step {number}: {self.err.read_text()[-2000:]}")
            time.sleep(0.02)

    def workers(self):
        children = pathlib.Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def kill_workers(self):
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)

    def metrics(self):
        """The values of /metrics: {(name, labels): value}."""
        address = json.loads((self.folder / "run.json").read_text())["control"]["metrics"]
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.M)
        return {(name, labels): float(value) for name, labels, value in found}

    def wait(self):
        code = self.program.wait(WAIT_MAX_S)
        if code != 0:
            raise SystemExit(f"the run ended with {code}: {self.err.read_text()[-2000:]}")
        return self.steps()
