"""The gain of asynchrony with answers of very different lengths, on a real engine and learner: the
demo's step time at max_off_policy_steps 0 against others.

Bound: a strictly on-policy step costs the longest answer and then training, an asynchronous one the
longer of generation and training, where each has processors of its own. Here both share them and
both compute, so the work of a step is the same at every limit: what can be won is what a lone
straggler leaves idle, and the second core while only one of the two computes. On two cores that is
at most 2 with one thread each, as the example has them; with `--threads 2` a strictly on-policy run
uses both cores for generation and then for training, and the bound is near 1.
Waiting that needs no core (an environment's, a network's) is hidden whole, but no environment of
the program waits: one of a plugin does (`--set 'graph.plugins=["..."]'`, `--set
tenant.main.environment=...`). `runtime_asynchrony_bench` has the same comparison on a virtual
clock, where engine and learner have a machine each.

--lengths demo        the example as it is: words of 8 letters, answers of 9 tokens
--lengths geometric   long tails: at temperature 100 each of the 97 tokens is about as likely as any
                      other, so that with --ends tokens that end an answer lengths are geometric,
                      of 97 / ends tokens on average, and the longest of 64 about 4.7 times that,
                      as far as --max-tokens allows; learning rate 0 keeps it so

Runs are paired and alternate, 0, 2, 0, 2, ...; steps before the tenth are left out.

    python3 bench/demo/asynchrony.py --lengths geometric --rounds 5 --steps 40

Prints one JSON object with medians and spread. Leave the machine idle meanwhile.
"""
import argparse
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
EXAMPLE = os.path.join(ROOT, "examples", "reverse_text")
SETTLED = 10


def geometric(ends, max_tokens):
    # Token 0 pads and 1 is the model's own end.
    stop_ids = list(range(2, 1 + ends))
    return ["resource.learner.optimizer.lr=0.0", "tenant.main.filters.zero_advantage=false",
            "tenant.main.sampling.temperature=100", f"tenant.main.sampling.stop_ids={stop_ids}",
            f"tenant.main.sampling.max_tokens={max_tokens}", "resource.engine.kv_blocks=8192"]


def run(limit, args, settings):
    parent = tempfile.mkdtemp(prefix="primerl-asynchrony-")
    folder = os.path.join(parent, "run")
    command = [os.path.join(ROOT, "build", "bin", "primerl-graph"), "run",
               os.path.join(EXAMPLE, "graph.toml"), "--out", folder, "--max-steps", str(args.steps)]
    for setting in [f"tenant.main.max_off_policy_steps={limit}",
                    f"node.rollout.max_inflight={args.max_inflight}"] + settings + args.set:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))[SETTLED:]
    shutil.rmtree(parent)
    step_s = [row["time/step"] for row in rows]
    return {"step_s": statistics.mean(step_s), "step_median_s": statistics.median(step_s),
            "tokens_per_s": sum(row["progress/tokens"] for row in rows) / sum(step_s),
            "learner_busy": sum(row["time/learner"] for row in rows) / sum(step_s),
            "wait_for_batch": sum(row["time/wait_for_batch"] for row in rows) / sum(step_s),
            "tokens_mean": statistics.mean(row["seq_len/all/mean"] for row in rows),
            "tokens_most": max(row["seq_len/all/max"] for row in rows),
            "truncated": statistics.mean(row["is_truncated/all/mean"] for row in rows),
            "stale_tokens": sum(row["progress/stale_tokens"] for row in rows),
            "off_policy_mean": statistics.mean(row["off_policy/mean"] for row in rows),
            "off_policy_max": max(row["off_policy/max"] for row in rows)}


def spread(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "runs": len(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, nargs="+", default=[2], help="beside 0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lengths", choices=["demo", "geometric"], default="geometric")
    parser.add_argument("--ends", type=int, default=4, help="tokens that end an answer")
    parser.add_argument("--max-tokens", type=int, default=240)
    parser.add_argument("--threads", type=int, default=1, help="of the engine, and of the learner")
    parser.add_argument("--max-inflight", type=int, default=256)
    parser.add_argument("--set", action="append", default=[], help="passed on to primerl-graph run")
    args = parser.parse_args()
    if args.steps < SETTLED + 2:
        parser.error(f"--steps must be at least {SETTLED + 2}: the first {SETTLED} are left out")
    settings = [f"resource.{name}.threads={args.threads}" for name in ("engine", "learner")]
    settings += geometric(args.ends, args.max_tokens) if args.lengths == "geometric" else []
    limits = [0] + [limit for limit in args.limits if limit != 0]
    rows = {limit: [] for limit in limits}
    load = []
    for _ in range(args.rounds):
        for limit in limits:
            rows[limit].append(run(limit, args, settings))
            load.append(os.getloadavg()[0])
    result = {"bench": "asynchrony", "lengths": args.lengths, "nproc": os.cpu_count(),
              "load1": [round(min(load), 2), round(max(load), 2)]}
    for limit, runs in rows.items():
        result[f"limit_{limit}"] = {key: spread([r[key] for r in runs]) for key in runs[0]}
    for limit in limits[1:]:
        pairs = list(zip(rows[0], rows[limit]))
        result[f"step_ratio_0_to_{limit}"] = spread([a["step_s"] / b["step_s"] for a, b in pairs])
        result[f"tokens_ratio_{limit}_to_0"] = spread(
            [b["tokens_per_s"] / a["tokens_per_s"] for a, b in pairs])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
