"""The training steps of a run, from its metrics.jsonl.

That file also has lines between steps: groups that wait or were filtered (`waiting/...`), evaluations
(`eval/...`) and environments (`env/...`). They lack the keys of a step, so a script that reads every
line fails with KeyError at the first of them.
"""
import json
import pathlib

STEP_KEY = "progress/samples"  # every step has it, and no other line


def is_step(row):
    return STEP_KEY in row


def complete_lines(file):
    """None without the file. A last line without its newline is still being written."""
    try:
        return pathlib.Path(file).read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def step_lines(file):
    """The rows of the steps in `file`."""
    return [row for row in map(json.loads, complete_lines(file)) if is_step(row)]


def num_steps(file):
    """len(step_lines(file)), for a loop that waits."""
    key = f'"{STEP_KEY}":'.encode()
    return sum(key in line for line in complete_lines(file))
