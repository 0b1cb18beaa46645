"""Tiny random Hugging Face folders and what transformers says about them, for the parity tests.

    make_models.py OUT          writes OUT/{qwen3,llama,qwen3_sharded_bf16}/ and OUT/<name>.json
    make_models.py --logprobs FOLDER IDS...   prints the log-probabilities of a folder as JSON
"""
import json
import os
import sys

import torch
import transformers
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

VOCAB = 128


def configs():
    common = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                  max_position_embeddings=256, num_attention_heads=4, bos_token_id=None,
                  pad_token_id=0, eos_token_id=1)
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=32)
    yield "qwen3", Qwen3ForCausalLM, Qwen3Config(
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rope_theta=10000.0, **common)
    yield "llama", LlamaForCausalLM, LlamaConfig(
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=False, attention_bias=True,
        mlp_bias=True, rope_parameters=llama3, **common)


def tokenizer_json():
    vocab = {"<pad>": 0, "<eos>": 1} | {chr(c): c - 30 for c in range(32, 127)}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": split, "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"}}


def logprobs(model, ids):
    with torch.no_grad():
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [z[i - 1, ids[i]].item() for i in range(1, len(ids))]


def greedy(model, prompt, count):
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count,
                         attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         min_new_tokens=count, eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt):].tolist()


def gradients(model, documents, prompt_tokens):
    """Of the mean cross-entropy over the tokens after each document's prompt."""
    model.zero_grad()
    count = sum(len(d) - prompt_tokens for d in documents)
    loss = 0
    for ids in documents:
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        for i in range(prompt_tokens, len(ids)):
            loss = loss - z[i - 1, ids[i]] / count
    loss.backward()
    norms = {n: p.grad.norm().item() for n, p in model.named_parameters()}
    grads = {n: p.grad.flatten().tolist() for n, p in model.named_parameters()}
    return loss.item(), norms, grads


def randomise(model):
    """Norm weights of 1 and biases of 0 would hide a mistake."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.uniform_(0.5, 1.5)
            elif "bias" in name:
                p.normal_(0, 0.1)
            else:
                p.normal_(0, 0.08)


def main(out):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for seed, (name, kind, config) in enumerate(configs()):
        torch.manual_seed(seed)
        model = kind(config).float().eval()
        randomise(model)
        folder = os.path.join(out, name)
        model.save_pretrained(folder)
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump(tokenizer_json(), file)
        generator = torch.Generator().manual_seed(100 + seed)
        ids = lambda n: torch.randint(2, VOCAB, (n,), generator=generator).tolist()
        prompts = [ids(n) for n in (1, 3, 7, 12, 40)]
        documents = [ids(4) + ids(n) for n in (1, 5, 16, 9)]
        documents += [documents[0][:4] + ids(6)]
        loss, norms, grads = gradients(model, documents, 4)
        long = ids(150)
        scored = [{"ids": d, "logprobs": logprobs(model, d)} for d in documents + [long]]
        picked = [{"prompt": p, "tokens": greedy(model, p, 64)} for p in prompts]
        with open(os.path.join(out, name + ".json"), "w") as file:
            json.dump({"sequences": scored, "greedy": picked, "documents": documents,
                       "num_prompt_tokens": 4, "loss": loss, "gradient_norms": norms,
                       "gradients": grads}, file)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(out, "qwen3"),
                                                 dtype=torch.bfloat16)
    model.save_pretrained(os.path.join(out, "qwen3_sharded_bf16"), max_shard_size="100KB")


if __name__ == "__main__":
    if sys.argv[1] == "--logprobs":
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
        print(json.dumps(logprobs(model, [int(i) for i in sys.argv[3:]])))
    else:
        main(sys.argv[1])
