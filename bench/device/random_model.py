"""A model folder of Qwen3-0.6B's shape with random weights, and a tokenizer that knows the demo's
characters among 151,936 tokens: for measuring a run on a CUDA device without trained weights.

    python3 bench/device/random_model.py FOLDER [--layers 28]

1.2 GB of bf16, normal with a deviation of 0.02, equal on every call. Needs PyTorch, nothing else.
"""
import argparse
import ctypes
import json
import pathlib
import struct

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1024, 3072, 16, 8, 128, 151936


def config(layers):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": None, "dtype": "bfloat16", "eos_token_id": 1,
            "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
            "intermediate_size": INTERMEDIATE, "layer_types": ["full_attention"] * layers,
            "max_position_embeddings": 40960, "max_window_layers": layers, "num_attention_heads": HEADS,
            "num_hidden_layers": layers, "num_key_value_heads": KV_HEADS, "pad_token_id": 0,
            "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_window": None, "tie_word_embeddings": True, "use_cache": True,
            "use_sliding_window": False, "vocab_size": VOCAB}


def shapes(layers):
    """(name, shape) of every tensor; norms are ones."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.q_norm.weight", (HEAD_DIM,)
        yield at + "self_attn.k_norm.weight", (HEAD_DIM,)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield at + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)


def write_weights(file, layers):
    header, at = {}, 0
    for name, shape in shapes(layers):
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(17)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes(layers):
            values = torch.ones(shape) if len(shape) == 1 else 0.02 * torch.randn(shape, generator=generator)
            values = values.to(torch.bfloat16)
            out.write(ctypes.string_at(values.data_ptr(), 2 * values.numel()))


def write_tokenizer(folder):
    """The demo's, with unused tokens up to the vocabulary's end."""
    base = ROOT / "examples/reverse_text/base"
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    for number in range(len(vocab), VOCAB):
        vocab[f"[{number}]"] = number
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text((base / "tokenizer_config.json").read_text())


def write_folder(folder, layers=28):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(layers), indent=2))
    write_tokenizer(folder)
    write_weights(folder / "model.safetensors", layers)
    return folder


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder")
    options.add_argument("--layers", type=int, default=28)
    arguments = options.parse_args()
    write_folder(arguments.folder, arguments.layers)
