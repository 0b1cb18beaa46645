"""Mismatch KL, reward and time of the demo with and without FP8 numbers in engine and learner.

At limit 0 every token is learned under the weights that drew it, so the mismatch is the error of the
quantisation: 0 if both compute with the same numbers.

    python3 bench/demo/precision.py --steps 60

Prints one JSON object for each of the four combinations, and exits with 1 if equal products had a
mismatch or unequal ones had none.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(steps, engine, learner, seed):
    folder = os.path.join(tempfile.mkdtemp(prefix="primerl-precision-"), "run")
    words = [os.path.join(ROOT, "build", "bin", "primerl-graph"), "run",
             os.path.join(ROOT, "examples", "reverse_text", "graph.toml"), "--out", folder,
             "--max-steps", str(steps)]
    for setting in ("tenant.main.max_off_policy_steps=0", f"graph.seed={seed}",
                    f"resource.engine.products={engine}", f"resource.learner.products={learner}"):
        words += ["--set", setting]
    before = os.times()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        rows = [json.loads(line) for line in lines]
    return {"engine": engine, "learner": learner, "steps": len(rows),
            "mismatch_kl_mean": statistics.mean(r["mismatch_kl/all/mean"] for r in rows),
            "mismatch_kl_max": max(r["mismatch_kl/all/max"] for r in rows),
            "reward_last_10": statistics.mean(r["reward/all/mean"] for r in rows[-10:]),
            "cpu_s": round(after.children_user - before.children_user, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    is_right = True
    for engine, learner in itertools.product(["dtype", "fp8"], repeat=2):
        result = run(args.steps, engine, learner, args.seed)
        is_right = is_right and (result["mismatch_kl_max"] == 0) == (engine == learner)
        print(json.dumps(result), flush=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
