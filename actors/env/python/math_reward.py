"""The reward "math": math-verify compares the last turn with the row's answer."""

from math_verify import parse, verify


def reward(completion, answer):
    # Its time limits use signals, which need the main thread; the worker is killed when it is late.
    wanted = parse(answer, parsing_timeout=None)
    if not wanted:
        wanted = parse(f"${answer}$", parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify cannot read the answer {answer!r}")
    return verify(wanted, parse(completion, parsing_timeout=None), timeout_seconds=None)
