"""Code that the scripts of this folder share about runs of several processes: workers, and step order."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from step_lines import is_step  # noqa: E402


def workers_of(pid):
    """Process name -> pid of each worker that lives, of the primerl-graph `pid`."""
    named = {}
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return named
    for child in text.split():
        try:
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--process" in words:
            named[words[words.index(b"--process") + 1].decode()] = int(child)
    return named


def rows_of(path, faults):
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError as why:
            faults.append(f"{path.name}:{number}: {why}: {line[-200:]}")


def faults_of(folder, goes_back=False):
    """Faults: steps out of order (but back to a checkpoint), rollouts that ended twice."""
    faults, last = [], 0
    for row in filter(is_step, rows_of(folder / "metrics.jsonl", faults)):
        step = row["step"]
        if step != last + 1 and not (goes_back and step <= last):
            faults.append(f"step {step} after step {last}")
        last = step
    seen = set()
    for row in rows_of(folder / "rollouts.jsonl", faults):
        rollout = row["rollout"]
        if rollout in seen:
            faults.append(f"rollout {rollout} ended twice")
        seen.add(rollout)
    return faults
