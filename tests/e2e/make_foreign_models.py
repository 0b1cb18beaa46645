"""Tiny random folders of families that this program does not have, and what transformers says.

    make_foreign_models.py OUT   writes OUT/<name>/ and OUT/<name>.json
"""
import json
import os
import sys

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cpu"))
import make_models  # noqa: E402  (its tokenizer and its functions)

SEQUENCES = [[5, 9, 33, 80, 2, 14, 77, 3], [7, 8], list(range(2, 120, 3))]


def models():
    ends = dict(bos_token_id=None, eos_token_id=1, pad_token_id=0, vocab_size=make_models.VOCAB)
    yield 4, "gpt2", GPT2LMHeadModel(GPT2Config(
        n_embd=48, n_layer=2, n_head=4, n_positions=64, **ends))
    yield 9, "gemma2", Gemma2ForCausalLM(Gemma2Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=16, **ends))


def main(out):
    for seed, name, model in models():
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.15)
        model = model.float().eval()
        folder = os.path.join(out, name)
        model.save_pretrained(folder)
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump(make_models.tokenizer_json(), file)
        prompt = [5, 9, 33]
        tokens = make_models.greedy(model, prompt, 24)
        assert make_models.greedy_gap(model, prompt, tokens) > make_models.GREEDY_GAP
        with open(os.path.join(out, name + ".json"), "w") as file:
            json.dump({"prompt": prompt, "tokens": tokens,
                       "sequences": [{"ids": ids, "logprobs": make_models.logprobs(model, ids)}
                                     for ids in SEQUENCES]}, file)


if __name__ == "__main__":
    main(sys.argv[1])
