#!/usr/bin/env python3
"""Ends runs of several processes in every way a machine can end them, resumes them, and counts what was lost.

    bench/recovery/ends.py [--ends 300] [--ends-per-run 4] [--seed 1] [--kinds kill_all torn ...] [--json FILE]

The run is the split graph with scripted engines and learner: four processes, a checkpoint every 20 steps, state saved
every 500 ms. Kinds:

    kill_all     kill -9 of every process, in any order
    kill_some    kill -9 of some of the workers; of the rest within 300 ms
    control      kill -9 of `primerl-graph run` alone: its workers end by themselves
    term_kill    SIGTERM to every process, as batch systems do; kill -9 of the rest within 400 ms
    torn         kill -9, then the last bytes of some newest segments are zeros, as after a power loss
    hole         kill -9, then a page inside some newest segments is zeros
    power        trace.level = "power"; the disk's image is copied while all is frozen (needs root, losetup)
    frozen       a worker is stopped for 12 s, and another one is killed meanwhile; then kill -9

What must hold: the run can be resumed; no step and no rollout ends twice in its line files; steps lost, compared with
the lines before the end, only where bytes were taken away. "live": it went on from its record; "checkpoint": it could
not, and went back to one.

Full disks: `PRIMERL_ENDS_SEEDS=300 build/bin/random_ends_test`.

What bounds it: nothing here is a speed.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from split_runs import faults_of, workers_of
from step_lines import num_steps, step_lines  # split_runs adds its folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "build/bin/primerl-graph")
WAIT_MAX_S = 60.0
PAGE = 4096
HEAD = 6 * PAGE  # a segment that is prepared has its header and the catalog
OPTIONS = ['resource.engine.backend="scripted"', 'resource.learner.backend="scripted"',
           "tenant.main.checkpoint_every=20", 'trace.cut_every="500ms"', "graph.restarts_max=65536"]
WENT_ON = ("the run is live", "resuming after step", "starts with the first step")
KINDS = ["kill_all", "kill_some", "control", "term_kill", "torn", "hole", "power", "frozen"]


class Disk:
    """A file system of its own, in the file `image`, for a run whose machine loses its power."""
    def __init__(self, folder, megabytes, image):
        self.folder, self.image = folder, image
        folder.mkdir()
        if not image.exists():
            with open(image, "wb") as file:
                file.truncate(megabytes << 20)
            self.call("mkfs.ext4", "-q", "-F", image)
        self.call("mount", "-o", "loop", image, folder)

    @staticmethod
    def call(*words):
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)

    def remove(self):
        for _ in range(100):
            if subprocess.run(["umount", str(self.folder)], stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.1)
        self.image.unlink(missing_ok=True)


class Run:
    """One start of a run."""
    def __init__(self, folder, log_file, words):
        self.folder, self.metrics = folder, folder / "metrics.jsonl"
        self.log_file = log_file
        with open(log_file, "w") as log:
            self.program = subprocess.Popen([PROGRAM, "run", *words], stdout=subprocess.DEVNULL, stderr=log)
        self.workers = {}

    def said(self):
        return self.log_file.read_text()

    def wait_until(self, holds):
        start = time.monotonic()
        while not holds():
            if self.program.poll() is not None or time.monotonic() - start > WAIT_MAX_S:
                return False
            self.workers.update(workers_of(self.program.pid))
            time.sleep(0.005)
        return True

    def wait_for_lines(self, more):
        goal = num_steps(self.metrics) + more
        return self.wait_until(lambda: num_steps(self.metrics) >= goal)

    def pids(self):
        self.workers.update(workers_of(self.program.pid))
        return [self.program.pid, *self.workers.values()]

    def send(self, signal_number, pids):
        for pid in pids:
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass

    def kill(self, dice=None):
        pids = self.pids()
        if dice:
            dice.shuffle(pids)
        for _ in range(3):  # a worker that is started meanwhile
            self.send(signal.SIGKILL, pids)
            time.sleep(0.02)
            self.program.poll()
        self.program.wait()
        self.wait_until_gone()

    def wait_until_gone(self):
        deadline = time.monotonic() + WAIT_MAX_S
        while time.monotonic() < deadline:
            if not any(alive(pid) for pid in self.workers.values()):
                return
            time.sleep(0.01)
        self.send(signal.SIGKILL, self.workers.values())


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def newest_segments(folder):
    """Of each process the newest one with frames: empty ones are prepared ahead."""
    newest = {}
    for file in sorted((folder / "trace").glob("*.ptr")):
        process, incarnation, number = file.name[:-4].rsplit(".", 2)
        key = (int(incarnation), int(number))
        if used_bytes(file.read_bytes()) <= HEAD:
            continue
        if process not in newest or newest[process][0] < key:
            newest[process] = (key, file)
    return [file for _, file in newest.values()]


def used_bytes(data):
    return len(data.rstrip(b"\0"))


def damage(kind, folder, dice):
    """Takes bytes away that a power loss could have taken."""
    files = newest_segments(folder)
    for file in dice.sample(files, dice.randint(min(1, len(files)), len(files))):
        data = bytearray(file.read_bytes())
        used = used_bytes(data)
        if kind == "torn":
            begin = max(HEAD, used - dice.randint(1, 64 * 1024))
            data[begin:used] = bytes(used - begin)
        else:
            begin = max(HEAD, (used - dice.randint(1, 64 * 1024)) // PAGE * PAGE)
            data[begin:begin + PAGE] = bytes(min(PAGE, len(data) - begin))
        file.write_bytes(data)


def end(kind, run, dice):
    """Ends the run; what it had said of its steps before."""
    workers = list(run.workers.values())
    if kind == "control":
        run.send(signal.SIGKILL, [run.program.pid])
        run.program.wait()
        run.wait_until_gone()
    elif kind == "kill_some":
        run.send(signal.SIGKILL, dice.sample(workers, dice.randint(1, len(workers))))
        time.sleep(dice.uniform(0, 0.3))
        run.kill(dice)
    elif kind == "term_kill":
        pids = run.pids()
        dice.shuffle(pids)
        run.send(signal.SIGTERM, pids)
        time.sleep(dice.uniform(0, 0.4))
        run.kill(dice)
    elif kind == "frozen":
        frozen, other = dice.sample(sorted(run.workers), 2)
        run.send(signal.SIGSTOP, [run.workers[frozen]])
        run.send(signal.SIGKILL, [run.workers[other]])
        time.sleep(12)
        run.send(signal.SIGCONT, [run.workers[frozen]])
        run.wait_for_lines(3)
        run.kill(dice)
    else:
        run.kill(dice)
    if kind in ("torn", "hole"):
        damage(kind, run.folder, dice)


class Tally:
    def __init__(self):
        self.rows = collections.defaultdict(collections.Counter)
        self.lost, self.seconds = collections.defaultdict(list), collections.defaultdict(list)
        self.dropped = collections.defaultdict(list)
        self.faults = []

    def faults_found(self):
        return sum(row["faults"] for row in self.rows.values())

    def fault(self, kind, what):
        self.rows[kind]["faults"] += 1
        self.faults.append(f"{kind}: {what}")


def resume(kind, folder, log_file, tally):
    """The resumed run, or nothing."""
    before = step_lines(folder / "metrics.jsonl")
    began = time.monotonic()
    run = Run(folder, log_file, ["--resume", str(folder)])
    came = run.wait_until(lambda: any(words in run.said() for words in WENT_ON))
    seconds = time.monotonic() - began
    if not came or not run.wait_for_lines(5):
        tally.rows[kind]["unresumable"] += 1
        tally.fault(kind, f"cannot be resumed: {run.said()[-1500:]}")
        run.kill()
        return None
    said = run.said()
    is_live = "the run is live" in said
    tally.rows[kind]["live" if is_live else "checkpoint"] += 1
    if not is_live:
        tally.faults.append(f"{kind}: went back to a checkpoint: {said[-1500:]}")
    dropped = re.search(r"note: (\d+) recorded steps", said)
    tally.dropped[kind].append(int(dropped.group(1)) if dropped else 0)
    now = step_lines(folder / "metrics.jsonl")
    if is_live:
        equal = sum(1 for then, again in zip(before, now) if then == again)
        tally.lost[kind].append(len(before) - equal)
        tally.seconds[kind].append(seconds)
    else:
        at = re.search(r"resuming after step (\d+)", said)
        tally.lost[kind].append(max(0, len(before) - int(at.group(1))) if at else len(before))
    return run


def story(kinds, scratch, name, dice, tally):
    """One run, and one end after the other."""
    folder, log_file = scratch / name / "run", scratch / f"{name}.err"
    first = kinds[0]
    disk = None
    if first == "power":
        disk = Disk(scratch / name, 1024, scratch / f"{name}.image")
    else:
        (scratch / name).mkdir()
    words = [str(ROOT / "tests/cli/graphs/split.toml"), "--out", str(folder), "--max-steps", "1000000000"]
    for option in OPTIONS + (['trace.level="power"'] if first == "power" else []):
        words += ["--set", option]
    run = Run(folder, log_file, words)
    goes_back, told = False, []
    try:
        if not run.wait_for_lines(1):
            tally.fault(first, f"never came up: {run.said()[-1500:]}")
            return
        for index, kind in enumerate(kinds):
            time.sleep(dice.uniform(0.2, 2.5))
            tally.rows[kind]["ends"] += 1
            if kind == "power":
                pids = run.pids()
                run.send(signal.SIGSTOP, pids)
                shutil.copyfile(disk.image, scratch / f"{name}.{index}.image")
                run.kill(dice)
                disk.remove()
                shutil.rmtree(scratch / name)
                disk = Disk(scratch / name, 0, scratch / f"{name}.{index}.image")
            else:
                end(kind, run, dice)
            run = resume(kind, folder, scratch / f"{name}.{index}.err", tally)
            told.append(kind)
            if run is None:
                return
            goes_back |= "resuming after step" in run.said()
        run.program.send_signal(signal.SIGINT)
        try:
            code = run.program.wait(WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 130:
            tally.fault(kinds[-1], f"{name} after {told} ended with {code}: {run.said()[-1500:]}")
        for fault in faults_of(folder, goes_back):
            tally.fault(kinds[-1], f"{name}: {fault}")
    finally:
        if run is not None:
            run.kill()
        if disk is not None:
            disk.remove()


def stories(given, dice):
    """Kinds by chance, but every third run loses power again and again, on a disk of its own."""
    left = given.ends
    plain = [kind for kind in given.kinds if kind != "power"]
    turn = 0
    while left > 0:
        turn += 1
        count = min(left, given.ends_per_run)
        if "power" in given.kinds and (not plain or turn % 3 == 0):
            kinds = ["power"] * count
        else:
            kinds = [dice.choice(plain) for _ in range(count)]
        left -= len(kinds)
        yield kinds


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ends", type=int, default=300)
    options.add_argument("--ends-per-run", type=int, default=4)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--json", help="append the figures to this file")
    given = options.parse_args()
    dice, tally = random.Random(given.seed), Tally()
    with tempfile.TemporaryDirectory() as scratch:
        for index, kinds in enumerate(stories(given, dice)):
            story(kinds, pathlib.Path(scratch), f"run{index}", dice, tally)
            shutil.rmtree(pathlib.Path(scratch) / f"run{index}", ignore_errors=True)
    summary(given, tally)
    return 1 if tally.faults_found() else 0


def summary(given, tally):
    table = {}
    for kind, row in tally.rows.items():
        lost, seconds = sorted(tally.lost[kind]), sorted(tally.seconds[kind])
        table[kind] = {name: row[name] for name in ("ends", "live", "checkpoint", "unresumable", "faults")}
        table[kind]["actor_steps_dropped"] = sorted(tally.dropped[kind])[-1:]
        table[kind]["steps_lost"] = {"median": statistics.median(lost), "max": lost[-1]} if lost else None
        table[kind]["seconds"] = {"median": statistics.median(seconds), "max": seconds[-1]} if seconds else None
    figures = {"seed": given.seed, "kinds": table}
    print(json.dumps(figures, indent=2))
    for fault in tally.faults:
        print(fault, file=sys.stderr)
    if given.json:
        with open(given.json, "a") as out:
            out.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    sys.exit(main())
