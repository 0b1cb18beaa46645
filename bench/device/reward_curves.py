"""The demo's reward on a CUDA device beside the CPU's: the same graph and seeds, step by step.

    python3 bench/device/reward_curves.py [--seeds 5] [--steps 100] [--set PATH=VALUE] [--set-cuda PATH=VALUE]

A run on a CUDA device samples the same tasks and, from equal logits, the same tokens. Its logits are
bf16 and its updates come at other times, so runs differ after some steps, as two runs on the CPU do.
The curves must agree: in each window of steps the mean reward of the CUDA seeds is between the least
and the greatest of the CPU's, widened by one standard error of the difference. Runs of one device are
side by side, the CPU's first. Prints a table, and exits with 1 if a window disagrees.
"""
import argparse
import pathlib
import statistics
import tempfile

from runs import ROOT, Run, sets

GRAPHS = {"cpu": ROOT / "examples/reverse_text/graph.toml", "cuda": ROOT / "examples/one_gpu/graph.toml"}


def run_all(scratch, place, seeds, steps, more):
    """The metrics of every step, by seed."""
    started = [Run(scratch / f"{place}_{seed}", [
        GRAPHS[place], "--max-steps", steps, "--metrics-port", "off",
        *sets({"graph.seed": seed, "tenant.main.checkpoint_every": 0, "resource.engine.threads": 1,
               "resource.learner.threads": 2}), *more]) for seed in seeds]
    return [run.wait() for run in started]


def window(curves, begin, end):
    return [statistics.mean(curve[begin:end]) for curve in curves]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--windows", type=int, default=5)
    options.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="of all runs")
    options.add_argument("--set-cuda", action="append", default=[], metavar="PATH=VALUE", help="for the CUDA runs")
    arguments = options.parse_args()
    seeds = range(1, arguments.seeds + 1)
    with tempfile.TemporaryDirectory(prefix="primerl-curves-") as folder:
        set_here = {"cpu": arguments.set, "cuda": arguments.set + arguments.set_cuda}
        more = {place: [word for value in values for word in ("--set", value)] for place, values in set_here.items()}
        runs = {place: run_all(pathlib.Path(folder), place, seeds, arguments.steps, more[place]) for place in GRAPHS}
    curves = {place: [[step["reward/all/mean"] for step in run] for run in of] for place, of in runs.items()}
    width = arguments.steps // arguments.windows
    print(f"mean reward of {arguments.seeds} seeds [least, most]")
    print(f"{'steps':>9}  {'CPU':^22}  {'CUDA':^22}  within")
    agrees = True
    for begin in range(0, width * arguments.windows, width):
        cpu, cuda = (window(curves[place], begin, begin + width) for place in ("cpu", "cuda"))
        slack = ((statistics.variance(cpu) + statistics.variance(cuda)) / len(cpu)) ** 0.5 if len(cpu) > 1 else 0
        is_within = min(cpu) - slack <= statistics.mean(cuda) <= max(cpu) + slack
        agrees = agrees and is_within
        shown = ("{:.3f} [{:.3f}, {:.3f}]".format(statistics.mean(of), min(of), max(of)) for of in (cpu, cuda))
        print("{:>4}-{:<4}  {:^22}  {:^22}  {}".format(begin + 1, begin + width, *shown, "yes" if is_within else "NO"))
    for name in ("off_policy/mean", "mismatch_kl/all/mean", "time/step"):
        print(name, *(f"{place} {statistics.mean(step[name] for run in of for step in run):.4g}"
                      for place, of in runs.items()))
    raise SystemExit(0 if agrees else 1)


main()
