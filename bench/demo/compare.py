"""The demo against TRL's GRPOTrainer in the same run: same Qwen3 shape, checkpoint, task and step size.

Bound: a step of 64 completions at 1 M parameters is about 10 GFLOP (6 per parameter and token to
train, 2 to generate, 20 tokens a rollout), so 28 ms on two cores that reach 366 GFLOP/s in fp32
(bench/peers/cpu_peak.py measures yours). With --products bf16, GEMMs of our engine and learner read
bf16 numbers (docs/design/precision.md), TRL computes in fp32; "auto", the default, does that where the
processor has AMX for bf16. build/bin/step_parts_bench names the parts of our learner's step. Both programs start from the checkpoint that
bench/peers/sft_warmup.py writes. Runs are interleaved: ours, TRL, ours, TRL, ...

    python3 -m venv peers && peers/bin/pip install torch==2.13.0
    peers/bin/pip install trl==1.16.0 transformers==5.23.0 accelerate==1.15.0 datasets psutil
    peers/bin/python bench/demo/compare.py --shape 1m --seeds 5

Prints one JSON object: machine, and for each program samples/s and seconds to +0.3 reward as
{median, min, max, runs}, and the ratios. Leave the machine idle meanwhile. Each run that has ended is
kept in the file of --state, so the same command continues after a cut; with --minutes no run begins after
that time, and the object has the seeds that both programs have ended. A run that lasts longer than
--run-seconds ends the bench. At the figures of docs/bench five seeds need at most 13 minutes at 1 M, and
35 minutes at 5 M.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PEERS = os.path.join(ROOT, "bench", "peers")
sys.path.insert(0, PEERS)
import common  # noqa: E402
sys.path.insert(0, os.path.join(ROOT, "bench"))
from finished_runs import FinishedRuns, run_bounded  # noqa: E402
from step_lines import step_lines  # noqa: E402

LEARNING_RATE = {"1m": 1.5e-4, "5m": 1e-4}
WINDOW = 3
WARM = 3


def seconds_to_rise(steps, rise):
    """Seconds from the start of training until the mean reward of the last WINDOW steps rose."""
    rewards = [s["reward/all/mean"] for s in steps]
    for end in range(2 * WINDOW, len(rewards) + 1):
        if statistics.mean(rewards[end - WINDOW:end]) >= statistics.mean(rewards[:WINDOW]) + rise:
            return steps[end - 1]["time"]
    return None


def run_ours(args, seed, max_steps):
    parent = tempfile.mkdtemp(prefix="primerl-compare-")
    folder = os.path.join(parent, "run")
    command = [os.path.join(ROOT, "build", "bin", "primerl-graph"), "run",
               os.path.join(ROOT, "examples", "reverse_text", "graph.toml"), "--out", folder,
               "--max-steps", str(max_steps), "--set", f"graph.seed={seed}",
               "--set", f"model.policy.path={os.path.join(common.STATE, 'sft-' + args.shape)}",
               "--set", f"resource.learner.optimizer.lr={LEARNING_RATE[args.shape]}"]
    for resource in ("engine", "learner"):
        command += ["--set", f"resource.{resource}.products={args.products}"]
    for extra in args.set:
        command += ["--set", extra]
    run_bounded(command, args.run_seconds)
    steps = step_lines(os.path.join(folder, "metrics.jsonl"))
    shutil.rmtree(parent)
    times = [s["time/step"] for s in steps[WARM:]]
    busy = [s["time/learner"] for s in steps[10:]]
    return {"samples_per_s": 64 / statistics.median(times), "step_s": statistics.median(times),
            "seconds_to_rise": seconds_to_rise(steps, args.rise), "steps": len(steps),
            "off_policy_max": max(s["off_policy/max"] for s in steps),
            "learner_busy": sum(busy) / sum(s["time/step"] for s in steps[10:]) if busy else None,
            "reward_first": statistics.mean(s["reward/all/mean"] for s in steps[:WINDOW]),
            "reward_last": statistics.mean(s["reward/all/mean"] for s in steps[-WINDOW:])}


def run_trl(args, seed, max_steps):
    out = run_bounded([sys.executable, os.path.join(PEERS, "trl_grpo.py"), "--shape", args.shape, "--lr",
                       str(LEARNING_RATE[args.shape]), "--max-steps", str(max_steps), "--seed", str(seed),
                       "--rise", str(args.rise)], args.run_seconds, cwd=PEERS)
    row = json.loads(out.stdout.strip().splitlines()[-1])
    return {"samples_per_s": row["samples_per_s"], "step_s": row["step_s"], "seconds_to_rise": row["seconds_to_rise"],
            "steps": row["steps"], "reward_first": row["reward_first"], "reward_last": row["reward_last"]}


def has_bf16_units():
    """Whether the processor has AMX for bf16, without which bf16 GEMMs are slower than those of fp32."""
    with open("/proc/cpuinfo") as lines:
        flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return "amx_bf16" in flags and "avx512_bf16" in flags


def summary(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return common.spread(values) if values else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(LEARNING_RATE), default="1m")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rise", type=float, default=0.3)
    parser.add_argument("--max-steps", type=int, default=600)
    parser.add_argument("--products", choices=["auto", "dtype", "bf16"], default="auto",
                        help="numbers of our GEMMs; auto: bf16 if the processor has AMX for it")
    parser.add_argument("--set", action="append", default=[], help="passed on to primerl-graph run")
    parser.add_argument("--state", help="file of the runs that have ended; one for each shape by default")
    parser.add_argument("--minutes", type=float, help="begin no run after that time")
    parser.add_argument("--run-seconds", type=float, default=1800, help="longest time of one run")
    args = parser.parse_args()
    if args.products == "auto":
        args.products = "bf16" if has_bf16_units() else "dtype"
    if not os.path.exists(os.path.join(common.STATE, "sft-" + args.shape, "config.json")):
        subprocess.run([sys.executable, os.path.join(PEERS, "sft_warmup.py"), "--shape", args.shape], check=True,
                       cwd=PEERS)
    settings = {"shape": args.shape, "rise": args.rise, "max_steps": args.max_steps, "products": args.products,
                "set": args.set}
    state = args.state or os.path.join(ROOT, "build", "bench", f"compare_{args.shape}.jsonl")
    finished = FinishedRuns(state, settings, args.minutes)
    for seed in range(args.seeds):
        for program, run in (("ours", run_ours), ("trl", run_trl)):
            if (program, seed) in finished.results or finished.is_late():
                continue
            finished.add((program, seed), run(args, seed, args.max_steps))
            print(json.dumps({"seed": seed, program: finished.results[program, seed]}), file=sys.stderr, flush=True)
    seeds = [seed for seed in range(args.seeds)
             if ("ours", seed) in finished.results and ("trl", seed) in finished.results]
    if not seeds:
        sys.exit("no seed has ended in both programs; the same command continues")
    ours = [finished.results["ours", seed] for seed in seeds]
    trl = [finished.results["trl", seed] for seed in seeds]
    keys = ["samples_per_s", "step_s", "seconds_to_rise", "steps", "reward_first", "reward_last"]
    result = {"bench": "demo_against_trl", "shape": args.shape, "rise": args.rise, "products": args.products,
              "ours": {k: summary(ours, k) for k in keys + ["learner_busy", "off_policy_max"]},
              "trl": {k: summary(trl, k) for k in keys}, **common.machine("torch", "transformers", "trl")}
    result["samples_per_s_ratio"] = round(
        result["ours"]["samples_per_s"]["median"] / result["trl"]["samples_per_s"]["median"], 2)
    if result["ours"]["seconds_to_rise"] and result["trl"]["seconds_to_rise"]:
        result["seconds_to_rise_ratio"] = round(
            result["ours"]["seconds_to_rise"]["median"] / result["trl"]["seconds_to_rise"]["median"], 2)
    common.emit(**result)
    if len(seeds) < args.seeds:
        sys.exit(f"{len(seeds)} of {args.seeds} seeds have ended; the same command continues")


if __name__ == "__main__":
    main()
