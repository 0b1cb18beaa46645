"""The gain of asynchrony on two cores: the demo's step time at max_off_policy_steps 2 against 0.

Bound: with one core for generation and one for training, an asynchronous step takes the longer of
the two, a strictly on-policy step their sum. Runs are interleaved, 2, 0, 2, 0, ..., at the same
`threads`; steps before the tenth are left out.

    python3 bench/demo/modes.py --pairs 3 --steps 80

Prints one JSON object with medians and spread. Leave the machine idle meanwhile.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402


def run(limit, steps):
    folder = os.path.join(tempfile.mkdtemp(prefix="primerl-modes-"), "run")
    subprocess.run([os.path.join(ROOT, "build", "bin", "primerl-graph"), "run",
                    os.path.join(ROOT, "examples", "reverse_text", "graph.toml"), "--out", folder, "--max-steps",
                    str(steps), "--set", f"tenant.main.max_off_policy_steps={limit}"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))[10:]
    return {"step_s": statistics.median(row["time/step"] for row in rows),
            "learner_busy": sum(r["time/learner"] for r in rows) / sum(r["time/step"] for r in rows),
            "off_policy_max": max(row["off_policy/max"] for row in rows)}


def spread(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "runs": len(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    rows = {2: [], 0: []}
    for _ in range(args.pairs):
        for limit in rows:
            rows[limit].append(run(limit, args.steps))
    result = {"bench": "demo_modes", "nproc": os.cpu_count(), "load1": round(os.getloadavg()[0], 2)}
    for limit, runs in rows.items():
        result[f"off_policy_{limit}"] = {key: spread([r[key] for r in runs]) for key in runs[0]}
    result["step_ratio_0_to_2"] = spread([b["step_s"] / a["step_s"] for a, b in zip(rows[2], rows[0])])
    result["peak_rss_mib"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
