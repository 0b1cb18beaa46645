"""An RL run of Qwen3-0.6B's shape on one CUDA device: the share of time that each half is busy.

    python3 bench/device/both_halves.py [--graph configs/qwen3_0.6b_one_gpu.toml] [--steps 12]

Random weights, the task of the graph with a reward that is chance; groups of equal rewards are
trained, too, since here the work counts and not the reward. What bounds it: whichever half is slower
is busy all the time; the other waits for it, as far as max_off_policy_steps lets it not run ahead.
On one device both share its processors, so that the sum of their times exceeds the time of either alone.

Busy is the share of its thread's time that a group spends in steps, from step WARM to the last, by
/metrics: of prefill and decode the engine's, of the trainer the learner's.
"""
import argparse
import pathlib
import statistics
import tempfile
import time

from random_model import write_folder
from runs import ROOT, Run, sets

WARM = 3


def busy_seconds(metrics):
    """The busy shares of the engines' groups and of the trainer's."""
    seconds = {"engine": 0.0, "learner": 0.0}
    for (name, labels), value in metrics.items():
        if name != "primerl_group_busy_seconds_total":
            continue
        if "decode" in labels:
            seconds["engine"] += value
        elif "trainer" in labels:
            seconds["learner"] += value
    return seconds


def total(metrics, wanted):
    return sum(value for (name, _), value in metrics.items() if name == wanted)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graph", default=str(ROOT / "configs/qwen3_0.6b_one_gpu.toml"))
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="primerl-halves-") as folder:
        model = write_folder(pathlib.Path(folder) / "model")
        extra = [word for value in arguments.set for word in ("--set", value)]
        run = Run(pathlib.Path(folder) / "run", [
            arguments.graph, "--max-steps", 100000,
            *sets({"model.policy.path": model, "tenant.main.filters.zero_advantage": "false",
                   "tenant.main.checkpoint_every": 0}), *extra])
        run.wait_for_step(WARM)
        begin, before = time.monotonic(), run.metrics()
        run.wait_for_step(WARM + arguments.steps)
        taken, after = time.monotonic() - begin, run.metrics()
        steps = run.steps()[WARM:]
        run.program.terminate()
        run.program.wait()
    num_engines = max(1, sum(1 for name, _ in after if name == "primerl_engine_generation_tokens_total"))
    shares = {half: (busy_seconds(after)[half] - busy_seconds(before)[half]) / taken for half in ("engine", "learner")}
    shares["engine"] /= num_engines
    decoded = total(after, "primerl_engine_generation_tokens_total") - total(
        before, "primerl_engine_generation_tokens_total")
    times = [step["time/step"] for step in steps]
    print(f"{len(steps)} steps in {taken:.1f} s; a step {statistics.median(times):.2f} s "
          f"[{min(times):.2f}, {max(times):.2f}]")
    print(f"busy: engine {shares['engine']:.0%}, learner {shares['learner']:.0%}")
    print(f"decoded {decoded / taken:,.0f} tok/s; the learner, while busy, "
          f"{statistics.median(step['perf/train_tokens_per_second'] for step in steps):,.0f} tok/s")
    for name in ("time/learner", "time/wait_for_batch", "off_policy/mean", "mismatch_kl/all/mean"):
        print(f"{name}: {statistics.median(step[name] for step in steps):.4g}")


main()
