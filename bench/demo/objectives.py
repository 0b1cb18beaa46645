"""What staleness costs each objective: the demos with several objectives and staleness limits.

Bound: none is known. At limit 0 rollouts are those of the current weights, so all objectives follow
nearly the same gradient there; what differs is the size of the advantages (the mean of dppo and
tis, the z-score of the others), which the learning rate can be changed for (`--set`). What an
objective loses from limit 0 to 16 is the cost of stale rollouts. limit + 1 batches of rollouts are
in flight (`pace = "full"`), so rollouts become nearly as stale as the limit permits; the table has
the mean that was reached. Each seed runs every objective at every limit before the next seed.

    python3 bench/demo/objectives.py --steps 60 --seeds 3

Prints one JSON object. For each example, objective and limit: the mean reward of the first and of
the last five steps, steps until the mean of five is 0.3 above the first (null: never), the share of
dropped tokens, the effective sample size and the mean staleness, each as {median, min, max, runs}.
Use --set for settings of all runs. Rewards do not depend on the load of the machine.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402
WINDOW = 5


def run(args, example, objective, limit, seed):
    parent = tempfile.mkdtemp(prefix="primerl-objectives-")
    folder = os.path.join(parent, "run")
    graph = example
    if not graph.endswith(".toml"):
        graph = os.path.join(ROOT, "examples", example, "graph.toml")
    command = [os.path.join(args.bin, "primerl-graph"), "run", graph, "--out", folder,
               "--max-steps", str(args.steps)]
    for setting in [f"graph.seed={seed}", f'resource.learner.loss.kind="{objective}"',
                    f"tenant.main.max_off_policy_steps={limit}",
                    f"tenant.main.batch_size={args.batch}",
                    'node.rollout.pace="full"',
                    f"node.rollout.max_inflight={args.batch * (limit + 1)}", *args.set]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))
    shutil.rmtree(parent)
    return rows


def steps_to_rise(rewards, rise):
    for end in range(2 * WINDOW, len(rewards) + 1):
        if statistics.mean(rewards[end - WINDOW:end]) >= statistics.mean(rewards[:WINDOW]) + rise:
            return end
    return None


def figures(rows):
    rewards = [row["reward/all/mean"] for row in rows]

    def mean(name):
        return statistics.mean(row[name] for row in rows)

    return {"first": statistics.mean(rewards[:WINDOW]), "last": statistics.mean(rewards[-WINDOW:]),
            "steps_to_rise": steps_to_rise(rewards, 0.3), "masked": mean("masked/all/mean"),
            "effective_size": mean("effective_size/all/mean"),
            "off_policy": mean("off_policy/mean")}


def spread(values):
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "runs": values}
    return {"median": statistics.median(known), "min": min(known), "max": max(known),
            "runs": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--examples", nargs="+", default=["reverse_text", "arithmetic_tool"],
                        help="names of folders of examples/, or files of graphs")
    parser.add_argument("--objectives", nargs="+",
                        default=["dppo", "grpo", "gspo", "cispo", "tis"])
    parser.add_argument("--limits", nargs="+", type=int, default=[0, 4, 16])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="rollouts per step")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    if args.steps < 2 * WINDOW:
        parser.error(f"--steps has to be {2 * WINDOW} or more: the first and the last {WINDOW}")
    cases = [(example, objective, limit, seed) for seed in range(1, args.seeds + 1)
             for example in args.examples for objective in args.objectives for limit in args.limits]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda case: figures(run(args, *case)), cases))
    found = {}
    for (example, objective, limit, _), result in zip(cases, results):
        found.setdefault((example, objective, limit), []).append(result)
    table = [{"example": example, "objective": objective, "limit": limit,
              **{name: spread([each[name] for each in runs]) for name in runs[0]}}
             for (example, objective, limit), runs in found.items()]
    print(json.dumps({"steps": args.steps, "seeds": args.seeds, "set": args.set, "table": table},
                     indent=1))


if __name__ == "__main__":
    main()
