"""A supervised step on a real model folder against TRL's SFTTrainer in the same run: same rows, optimizer and threads.

    peers/bin/python bench/demo/sft_step.py --model DIR [--rows 16] [--length 256] [--steps 4] [--rounds 3]

Rows are a question and an answer of words, cut to --length tokens together. Runs of the two alternate; the first step of
a run is not counted. Prints one JSON object: seconds and user CPU seconds of a step of each, their ratios, tokens of a
step, the share of processor time that the operating system took of primerl-graph, and the bound of its step: the GEMMs'
flops at the rate of a large matmul of PyTorch in the same run. Only CPU seconds can be compared while other programs run.
bench/demo/compare.py says how to make the Python that has TRL.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "bench" / "peers"
sys.path.insert(0, str(PEERS))
import common  # noqa: E402
sys.path.insert(0, str(ROOT / "bench"))
from step_lines import num_steps, step_lines  # noqa: E402

WORDS = "the river was quiet and green hills stood far behind our small house near an old stone bridge".split()
GRAPH = """
include = ["primerl:sft"]
[graph]
name = "sft-step"
stall_after = "30m"
[tenant.main]
environment = {{ name = "reverse_text" }}
group_size = 1
batch_size = {rows}
seq_len = {length}
max_steps = {steps}
[node.data]
file = "rows.jsonl"
[model.policy]
path = "{model}"
[resource.learner]
threads = {threads}
optimizer = {{ lr = 1e-5 }}
"""


def write_rows(path, model, rows, length):
    """Prompt and completion of the words, with about `length` tokens together with the end token."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(model)
    source = random.Random(1)
    with open(path, "w") as file:
        for _ in range(rows):
            text = " ".join(source.choice(WORDS) for _ in range(length * 2))
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            half = length // 2
            file.write(json.dumps({"prompt": tokenizer.decode(ids[:half]),
                                   "completion": tokenizer.decode(ids[half:length - 3])}) + "\n")


def user_seconds(root):
    """User CPU seconds of a process and of all processes below it that still run."""
    parents, ticks = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            parents[int(entry.name)], ticks[int(entry.name)] = int(fields[1]), int(fields[11])

    def is_below(pid):
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root
    return sum(ticks[pid] for pid in ticks if is_below(pid)) / os.sysconf("SC_CLK_TCK")


def run_native(args, folder, number):
    (folder / "graph.toml").write_text(GRAPH.format(rows=args.rows, length=args.length, steps=args.steps + 1,
                                                    threads=args.threads, model=pathlib.Path(args.model).resolve()))
    out = folder / f"run{number}"
    command = [ROOT / "build/bin/primerl-graph", "sft", folder / "graph.toml", "--out", out, "--metrics-port", "off"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(folder / "errors", "w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        used = []  # at the end of each step
        while process.poll() is None:
            time.sleep(0.02)
            if num_steps(out / "metrics.jsonl") > len(used):
                used.append(user_seconds(process.pid))  # 0: its processes have ended
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(errors.read())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    steps = step_lines(out / "metrics.jsonl")
    return {"steps": [s["time/step"] for s in steps[1:]], "loss": [s["loss/mean"] for s in steps],
            "cpu": [b - a for a, b in zip(used, used[1:]) if b > a],
            "tokens": steps[-1]["seq_len/all/mean"] * args.rows, "system_share": system / (user + system)}


def run_trl(args, folder):
    done = subprocess.run([sys.executable, PEERS / "trl_sft.py", "--model", args.model, "--data", folder / "rows.jsonl",
                           "--rows", str(args.rows), "--steps", str(args.steps), "--threads", str(args.threads),
                           "--max-length", str(args.length)], capture_output=True, text=True, cwd=PEERS)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def flops_of_step(model, rows, tokens, trained):
    """Multiply-adds times two of forward and backward: every weight for every token, the head only for `trained` tokens,
    and attention over rows of equal length."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    hidden, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    width = config.get("head_dim") or hidden // heads
    attention = hidden * width * 2 * (heads + config["num_key_value_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"]
    pairs = tokens * (tokens / rows + 1) / 2
    # Two products of queries and keys forward; five backward, as weights are computed again.
    return (6 * (layers * layer * tokens + hidden * config["vocab_size"] * trained)
            + 14 * layers * pairs * heads * width)


def peak_of_core(size=1536, reps=8):
    """Flops of a CPU second of one thread in a large matmul of PyTorch."""
    import torch
    torch.set_num_threads(1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    rates = []
    for _ in range(reps):
        began = time.process_time()
        a @ b
        rates.append(2 * size ** 3 / (time.process_time() - began))
    return statistics.median(rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    native, trl = [], []
    with tempfile.TemporaryDirectory(prefix="primerl-sft-") as name:
        folder = pathlib.Path(name)
        write_rows(folder / "rows.jsonl", args.model, args.rows * (args.steps + 1), args.length)
        for number in range(args.rounds):
            native.append(run_native(args, folder, number))
            trl.append(run_trl(args, folder))
            print(json.dumps({"primerl_graph": native[-1], "trl": trl[-1]}), file=sys.stderr, flush=True)
    step = common.spread([second for run in native for second in run["steps"]])
    peer = common.spread([second for run in trl for second in run["steps"]])
    cpu = common.spread([second for run in native for second in run["cpu"]])
    peer_cpu = common.spread([second for run in trl for second in run["step_cpu"]])
    tokens = native[0]["tokens"]
    flops, peak = flops_of_step(args.model, args.rows, tokens, tokens / 2), peak_of_core()
    common.emit(bench="sft_step", step_s=step, trl_step_s=peer, ratio=round(peer["median"] / step["median"], 2),
                step_cpu_s=cpu, trl_step_cpu_s=peer_cpu, cpu_ratio=round(peer_cpu["median"] / cpu["median"], 2),
                tokens_per_step=tokens, trl_tokens_per_step=trl[0]["tokens_per_step"],
                system_share=round(statistics.median(run["system_share"] for run in native), 3),
                tflop_per_step=round(flops / 1e12, 2), gflops_of_core=round(peak / 1e9), bound_cpu_s=round(flops / peak, 1),
                **common.machine("torch", "transformers", "trl"))


if __name__ == "__main__":
    main()
