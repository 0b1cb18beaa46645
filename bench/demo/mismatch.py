"""Whether engine and learner agree to the bit: mismatch KL of the demo at max_off_policy_steps 0.

At limit 0 every token is learned under the weights that drew it, so the mismatch is exactly 0 or
somebody computed something else. Tried at 1, 2 and 4 compute threads, temperature 1 and 0.7, with
and without top_k and top_p.

    python3 bench/demo/mismatch.py --steps 50

Prints one JSON object a run, and exits with 1 if a mismatch was not 0.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402
SAMPLING = {"all tokens": [], "top_k 8, top_p 0.9": ["tenant.main.sampling.top_k=8",
                                                     "tenant.main.sampling.top_p=0.9"]}


def run(steps, settings):
    folder = os.path.join(tempfile.mkdtemp(prefix="primerl-mismatch-"), "run")
    words = [os.path.join(ROOT, "build", "bin", "primerl-graph"), "run",
             os.path.join(ROOT, "examples", "reverse_text", "graph.toml"), "--out", folder,
             "--max-steps", str(steps)]
    for setting in settings:
        words += ["--set", setting]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))
    return {"steps": len(rows), "mismatch_kl_max": max(r["mismatch_kl/all/max"] for r in rows),
            "off_policy_max": max(r["off_policy/max"] for r in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    worst = 0
    for threads, temperature, (name, sampling) in itertools.product(args.threads, [1.0, 0.7], SAMPLING.items()):
        settings = ["tenant.main.max_off_policy_steps=0", f"tenant.main.sampling.temperature={temperature}",
                    f"resource.engine.threads={threads}", f"resource.learner.threads={threads}"] + sampling
        result = run(args.steps, settings)
        worst = max(worst, result["mismatch_kl_max"])
        print(json.dumps({"threads": threads, "temperature": temperature, "sampling": name, **result}), flush=True)
    sys.exit(0 if worst == 0 else 1)


if __name__ == "__main__":
    main()
