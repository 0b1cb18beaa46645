"""The cost of four processes on two cores: examples/split against examples/reverse_text.

Bound: the work is the same, so on an idle machine the ratio is 1 but for what crosses processes (some
60 k messages and 200 versions of 3.6 MB: together under a second of CPU) and for the second engine:
three compute threads share two cores. Target: at most 1.3 times the wall time to the same reward.
Start-up (program start to the first token) is bounded by loading libtorch three times, about 0.15 s of
CPU each, and by the model. Target: 1.5 s with four workers.

    python3 bench/demo/processes.py --pairs 3

Runs are interleaved: one, four, one, four, ... Prints one JSON object with medians and spread.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402
GRAPHS = {"one": "examples/reverse_text/graph.toml", "four": "examples/split/graph.toml"}


def run(graph, steps):
    folder = os.path.join(tempfile.mkdtemp(prefix="primerl-processes-"), "run")
    start = time.monotonic()
    subprocess.run([os.path.join(ROOT, "build", "bin", "primerl-graph"), "run", os.path.join(ROOT, graph),
                    "--out", folder, "--max-steps", str(steps)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.monotonic() - start
    rewards = [row["reward/all/mean"] for row in step_lines(os.path.join(folder, "metrics.jsonl"))]
    with open(os.path.join(folder, "run.json")) as file:
        first = json.load(file)["first_token_seconds"]
    return {"wall_s": wall, "reward_last_20": statistics.mean(rewards[-20:]), "first_token_s": first}


def spread(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
            "max": round(max(values), 3), "runs": len(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rows = {name: [] for name in GRAPHS}
    for _ in range(args.pairs):
        for name, graph in GRAPHS.items():
            rows[name].append(run(graph, args.steps))
    result = {"bench": "processes", "nproc": os.cpu_count(), "load1": round(os.getloadavg()[0], 2)}
    for name, runs in rows.items():
        result[name] = {key: spread([row[key] for row in runs]) for key in runs[0]}
    result["wall_ratio_four_to_one"] = spread(
        [four["wall_s"] / one["wall_s"] for one, four in zip(rows["one"], rows["four"])])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
