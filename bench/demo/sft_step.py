"""A supervised step on a real model folder against TRL's SFTTrainer in the same run: same rows, optimizer and threads.

    peers/bin/python bench/demo/sft_step.py --model DIR [--rows 16] [--length 256] [--steps 5] [--rounds 3]

Rows are a question and an answer of words, cut to --length tokens together. Runs of the two alternate.
Prints one JSON object: seconds of a step and tokens of a step of each, their ratio, and the share of processor time that
the operating system took of primerl-graph. bench/demo/compare.py says how to make the Python that has TRL. Leave the machine idle meanwhile.
"""
import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "bench" / "peers"
sys.path.insert(0, str(PEERS))
import common  # noqa: E402

WORDS = "the river was quiet and green hills stood far behind our small house near an old stone bridge".split()
GRAPH = """
include = ["primerl:sft"]
[graph]
name = "sft-step"
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


def run_native(args, folder, number):
    (folder / "graph.toml").write_text(GRAPH.format(rows=args.rows, length=args.length, steps=args.steps + 1,
                                                    threads=args.threads, model=pathlib.Path(args.model).resolve()))
    out = folder / f"run{number}"
    command = [ROOT / "build/bin/primerl-graph", "sft", folder / "graph.toml", "--out", out, "--metrics-port", "off"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    steps = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return {"steps": [s["time/step"] for s in steps[1:]], "loss": [s["loss/mean"] for s in steps],
            "tokens": steps[-1]["seq_len/all/mean"] * args.rows, "system_share": system / (user + system)}


def run_trl(args, folder):
    done = subprocess.run([sys.executable, PEERS / "trl_sft.py", "--model", args.model, "--data", folder / "rows.jsonl",
                           "--rows", str(args.rows), "--steps", str(args.steps), "--threads", str(args.threads),
                           "--max-length", str(args.length)], capture_output=True, text=True, cwd=PEERS)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


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
    peer = common.spread([run["step_seconds"]["median"] for run in trl])
    common.emit(bench="sft_step", step_s=step, trl_step_s=peer, ratio=round(peer["median"] / step["median"], 2),
                tokens_per_step=native[0]["tokens"], trl_tokens_per_step=trl[0]["tokens_per_step"],
                system_share=round(statistics.median(run["system_share"] for run in native), 3),
                **common.machine("torch", "transformers", "trl"))


if __name__ == "__main__":
    main()
