"""Mismatch KL, reward and CPU time of the demo with each value of `products` in engine and learner.

At limit 0 every token is learned under the weights that drew it, so the mismatch is the error of the
rounding: 0 if both compute with the same numbers. The second model is a mixture of four experts,
two for each token, made of the demo's model: each expert has the MLP of its layer.

    python3 bench/demo/precision.py --steps 60

Prints one JSON object for each model and combination, and exits with 1 if equal products had a
mismatch or unequal ones had none.
"""
import argparse
import itertools
import json
import os
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402
DEMO = os.path.join(ROOT, "examples", "reverse_text")
EXPERTS = 4


def read_tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def make_mixture(folder):
    """A Qwen3-MoE folder that computes what the demo's model does, while its experts are equal."""
    shutil.copytree(os.path.join(DEMO, "model"), folder)
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    config.update(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=EXPERTS,
                  num_experts_per_tok=2, moe_intermediate_size=config["intermediate_size"], norm_topk_prob=True,
                  decoder_sparse_step=1, mlp_only_layers=[])
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    tensors, rng = {}, random.Random(1)
    for name, tensor in read_tensors(os.path.join(folder, "model.safetensors")).items():
        before, is_of_mlp, after = name.partition(".mlp.")
        if not is_of_mlp:
            tensors[name] = tensor
            continue
        for expert in range(EXPERTS):
            tensors[f"{before}.mlp.experts.{expert}.{after}"] = tensor
        count = EXPERTS * config["hidden_size"]
        router = struct.pack(f"<{count}f", *(rng.gauss(0, 0.05) for _ in range(count)))
        tensors.setdefault(f"{before}.mlp.gate.weight", ([EXPERTS, config["hidden_size"]], router))
    write_tensors(os.path.join(folder, "model.safetensors"), dict(sorted(tensors.items())))
    return folder


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime


def run(scratch, model, steps, engine, learner):
    folder = os.path.join(scratch, f"run-{os.path.basename(model)}-{engine}-{learner}")
    words = [os.path.join(ROOT, "build", "bin", "primerl-graph"), "run", os.path.join(DEMO, "graph.toml"), "--out",
             folder, "--max-steps", str(steps)]
    for setting in ("tenant.main.max_off_policy_steps=0", f"model.policy.path={model}",
                    f"resource.engine.products={engine}", f"resource.learner.products={learner}"):
        words += ["--set", setting]
    before = cpu_seconds()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = cpu_seconds() - before
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))
    return {"model": os.path.basename(model), "engine": engine, "learner": learner, "steps": len(rows),
            "mismatch_kl_mean": statistics.mean(r["mismatch_kl/all/mean"] for r in rows),
            "mismatch_kl_max": max(r["mismatch_kl/all/max"] for r in rows),
            "reward_first_10": round(statistics.mean(r["reward/all/mean"] for r in rows[:10]), 4),
            "reward_last_10": round(statistics.mean(r["reward/all/mean"] for r in rows[-10:]), 4),
            "cpu_s": round(used, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="primerl-precision-")
    models = [os.path.join(DEMO, "model"), make_mixture(os.path.join(scratch, "mixture"))]
    is_right = True
    numbers = ["dtype", "bf16", "fp8"]
    for model, engine, learner in itertools.product(models, numbers, numbers):
        result = run(scratch, model, args.steps, engine, learner)
        is_right = is_right and (result["mismatch_kl_max"] == 0) == (engine == learner)
        print(json.dumps(result), flush=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
