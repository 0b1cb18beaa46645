"""Runs of a bench that are kept in a file, so that the same command continues after a cut.

The file has one JSON object a line: first the settings of all runs, then each run that has ended,
{"key": [...], "result": {...}}. A last line without its newline is left out, and removed before the
next is written.
"""
import json
import os
import subprocess
import time


class FinishedRuns:
    def __init__(self, path, settings, minutes=None):
        """`minutes`: is_late() after that time; None: never. `results`: by the key of the run."""
        self.path = path
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.results = {}
        lines = self._lines()
        if lines and json.loads(lines[0]) != settings:
            raise SystemExit(f"{path} has runs with other settings: {lines[0].decode()}\n"
                             f"remove it, or name another file with --state")
        for line in lines[1:]:
            row = json.loads(line)
            self.results[tuple(row["key"])] = row["result"]
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "wb") as out:
            out.write(b"".join(line + b"\n" for line in lines) or _line(settings))

    def _lines(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path, "rb") as file:
            return file.read().split(b"\n")[:-1]

    def is_late(self):
        return self.deadline is not None and time.monotonic() >= self.deadline

    def add(self, key, result):
        """The run has ended; `key` is a tuple."""
        with open(self.path, "ab") as out:
            out.write(_line({"key": key, "result": result}))
            out.flush()
            os.fsync(out.fileno())
        self.results[key] = result


def _line(value):
    return json.dumps(value).encode() + b"\n"


def run_bounded(command, seconds, **options):
    """The process that ended well; its output. A failure or `seconds` without an end exits."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(command)}\nhas not ended within {seconds:g} s")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done
