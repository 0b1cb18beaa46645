"""The savings and costs of an adapter: the demo with all weights trained against adapters, seconds
until the mean reward has risen by 0.3 and most memory of the worker.

Bound: with an adapter no gradients and moments of the 1 M weights are kept (three times 4 MB less)
and no products for their gradients are made (a third of a step); what is added are products of its
rank beside each linear, forward and backward. How many steps a rise takes is of the task, not of
the machine. Runs alternate, one of each a seed; each ends at its rise, or after --steps.

    python3 bench/demo/adapter.py --seeds 3 --ranks 8 64

Prints one JSON object with medians and spread; a run that did not rise counts in `rose` and nowhere
else. Leave the machine idle meanwhile.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402
EXAMPLE = os.path.join(ROOT, "examples", "reverse_text")
WINDOW = 5
SETTLED = 10


def risen(rows, rise):
    """The row at which the mean reward of the last WINDOW steps had risen; None: it has not."""
    rewards = [row["reward/all/mean"] for row in rows]
    for end in range(2 * WINDOW, len(rewards) + 1):
        if statistics.mean(rewards[end - WINDOW:end]) >= statistics.mean(rewards[:WINDOW]) + rise:
            return rows[end - 1]
    return None


def run(args, seed, settings):
    parent = tempfile.mkdtemp(prefix="primerl-adapter-")
    folder = os.path.join(parent, "run")
    command = [os.path.join(args.bin, "primerl-graph"), "run", os.path.join(EXAMPLE, "graph.toml"),
               "--out", folder, "--max-steps", str(args.steps)]
    for setting in [f"graph.seed={seed}", *settings, *args.set]:
        command += ["--set", setting]
    with open(os.path.join(parent, "said"), "w+") as said:
        program = subprocess.Popen(command, stdout=said, stderr=said)
        rows, was_told = [], False
        while True:
            pid, status, used = os.wait4(program.pid, os.WNOHANG)
            rows = step_lines(os.path.join(folder, "metrics.jsonl"))
            if pid != 0:
                break
            if not was_told and risen(rows, args.rise):
                os.kill(program.pid, signal.SIGINT)
                was_told = True
            time.sleep(0.2)
        if not rows or (os.waitstatus_to_exitcode(status) != 0 and not was_told):
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}\n{said.read()}")
    shutil.rmtree(parent)
    row = risen(rows, args.rise)
    rewards = [each["reward/all/mean"] for each in rows]
    result = {"learner_s": statistics.median(each["time/learner"] for each in rows[SETTLED:]),
              "peak_mib": used.ru_maxrss / 1024,
              "reward_first": statistics.mean(rewards[:WINDOW]),
              "reward_best": max(statistics.mean(rewards[end - WINDOW:end])
                                 for end in range(WINDOW, len(rewards) + 1))}
    if row is not None:
        result.update(seconds_to_rise=row["time"], steps_to_rise=row["step"])
    return result


def spread(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "runs": len(values)}


def summary(runs):
    keys = {key for each in runs for key in each}
    return {"rose": sum("seconds_to_rise" in each for each in runs),
            **{key: spread([each[key] for each in runs if key in each]) for key in sorted(keys)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--lr", type=float, default=1e-3, help="of the adapters; the whole weights "
                        "have that of the example")
    parser.add_argument("--rise", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--set", action="append", default=[], help="passed on to primerl-graph run")
    args = parser.parse_args()
    if args.steps <= SETTLED:
        parser.error(f"--steps must be above {SETTLED}: the first ones are left out")
    variants = {"whole": []}
    for rank in args.ranks:
        variants[f"rank_{rank}"] = [f"tenant.main.adapter.rank={rank}",
                                    f"resource.learner.optimizer.lr={args.lr}"]
    runs = {name: [] for name in variants}
    for seed in range(17, 17 + args.seeds):
        for name, settings in variants.items():
            runs[name].append(run(args, seed, settings))
    result = {"bench": "demo_adapter", "rise": args.rise, "nproc": len(os.sched_getaffinity(0)),
              "load1": round(os.getloadavg()[0], 2)}
    result.update({name: summary(of) for name, of in runs.items()})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
