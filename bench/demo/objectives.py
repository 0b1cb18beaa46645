"""What staleness costs each objective: the demos with several objectives and staleness limits.

Bound: none is known. At limit 0 rollouts are those of the current weights, so all objectives follow
nearly the same gradient there; what differs is the size of the advantages (the mean of dppo and
tis, the z-score of the others), which the learning rate can be changed for (`--set`). What an
objective loses from limit 0 to 16 is the cost of stale rollouts. limit + 1 batches of rollouts are
in flight (`pace = "full"`), so rollouts become nearly as stale as the limit permits; the table has
the mean that was reached. Each seed runs every objective at every limit before the next seed.

    python3 bench/demo/objectives.py

Each run that has ended is kept in the file of --state, so the same command continues after a cut; with
--minutes no run begins after that time. Prints a table of the mean reward of the last five steps, and the
time that the missing runs need. --out writes the rows of docs/bench/results: all runs that are there, each
with its number of seeds. --json prints, for each example, objective and limit, the mean reward of the first
and of the last five steps, steps until the mean of five is 0.3 above the first (null: never), the share of
dropped tokens, the effective sample size and the mean staleness, each as {median, min, max, runs}. Use --set
for settings of all runs. Rewards do not depend on the load of the machine.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from finished_runs import FinishedRuns, run_bounded  # noqa: E402
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
    run_bounded(command, args.run_seconds)
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


def add_up(args, results):
    """One entry for each example, objective and limit that has a run."""
    found = {}
    for (example, objective, limit, _), result in results.items():
        found.setdefault((example, objective, limit), []).append(result)
    order = [(example, objective, limit) for example in args.examples
             for objective in args.objectives for limit in args.limits]
    return [{"example": example, "objective": objective, "limit": limit,
             **{name: spread([each[name] for each in found[case]]) for name in found[case][0]}}
            for case in order if case in found for example, objective, limit in [case]]


def print_table(args, table):
    rows = {(row["example"], row["objective"], row["limit"]): row for row in table}
    for example in args.examples:
        print(f"\n{example}: mean reward of the last {WINDOW} of {args.steps} steps, median [least, most] of seeds\n")
        print("| Objective | " + " | ".join(f"Limit {limit}" for limit in args.limits) +
              f" | Staleness at {args.limits[-1]} | Effective size there |")
        print("|---" * (len(args.limits) + 3) + "|")
        for objective in args.objectives:
            cells = []
            for limit in args.limits:
                row = rows.get((example, objective, limit))
                cells.append("" if row is None else f"{row['last']['median']:.2f} [{row['last']['min']:.2f}, "
                             f"{row['last']['max']:.2f}]")
            last = rows.get((example, objective, args.limits[-1]))
            cells += ["", ""] if last is None else [f"{last['off_policy']['median']:.1f}",
                                                    f"{last['effective_size']['median']:.2f}"]
            print(f"| `{objective}` | " + " | ".join(cells) + " |")


def machine():
    with open("/proc/cpuinfo") as lines:
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{len(os.sched_getaffinity(0))} CPUs of an {name}"


def write_results(args, table, path):
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    seeds = sorted({len(row["last"]["runs"]) for row in table})
    rows = [{"name": f"{row['example']}, {row['objective']}, limit {row['limit']}",
             "value": round(row["last"]["median"], 3), "unit": "reward",
             "spread": [round(row["last"]["min"], 3), round(row["last"]["max"], 3)],
             "note": f"{len(row['last']['runs'])} seeds; staleness {row['off_policy']['median']:.1f}; effective "
                     f"sample size {row['effective_size']['median']:.2f}; "
                     f"{100 * row['masked']['median']:.1f} % of the tokens dropped"} for row in table]
    about = (f"Mean reward of the last {WINDOW} of {args.steps} steps, median of the seeds; `pace = \"full\"`, (limit + 1) "
             f"batches of {args.batch} rollouts in flight. Seeds of a row: {', '.join(map(str, seeds))}. "
             f"Staleness, effective sample size and dropped tokens are means over the steps.")
    result = {"part": "Training runs", "title": "What staleness costs each objective, on the CPU",
              "bench": " ".join(["bench/demo/objectives.py", *(f"--set {each}" for each in args.set)]), "about": about, "machine": machine(),
              "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "rows": rows}
    with open(path, "w") as out:
        out.write(json.dumps(result, indent=2) + "\n")


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
    parser.add_argument("--state", default=os.path.join(ROOT, "build", "bench", "objectives.jsonl"),
                        help="file of the runs that have ended")
    parser.add_argument("--minutes", type=float, help="begin no run after that time")
    parser.add_argument("--run-seconds", type=float, default=1800, help="longest time of one run")
    parser.add_argument("--out", help="file of docs/bench/results to write")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the table")
    args = parser.parse_args()
    if args.steps < 2 * WINDOW:
        parser.error(f"--steps has to be {2 * WINDOW} or more: the first and the last {WINDOW}")
    cases = [(example, objective, limit, seed) for seed in range(1, args.seeds + 1)
             for example in args.examples for objective in args.objectives for limit in args.limits]
    finished = FinishedRuns(args.state, {"steps": args.steps, "batch": args.batch, "set": args.set}, args.minutes)
    lock, seconds = threading.Lock(), []

    def measure(case):
        if case in finished.results or finished.is_late():
            return
        begin = time.monotonic()
        result = figures(run(args, *case))
        with lock:
            seconds.append(time.monotonic() - begin)
            finished.add(case, result)
            missing = sum(each not in finished.results for each in cases)
            print(f"{' '.join(map(str, case))}: {result['last']:.3f}, {seconds[-1]:.0f} s; {missing} runs are "
                  f"missing, about {missing * statistics.mean(seconds) / args.jobs / 60:.0f} min",
                  file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(measure, cases))
    table = add_up(args, {case: finished.results[case] for case in cases if case in finished.results})
    if args.json:
        print(json.dumps({"steps": args.steps, "seeds": args.seeds, "set": args.set, "table": table}, indent=1))
    else:
        print_table(args, table)
    if args.out and table:
        write_results(args, table, args.out)
    missing = sum(case not in finished.results for case in cases)
    if missing:
        sys.exit(f"{missing} of {len(cases)} runs are missing; the same command continues")


if __name__ == "__main__":
    main()
