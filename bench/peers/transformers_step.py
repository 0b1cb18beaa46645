"""One training step of transformers with torch's AdamW: 16 documents of 256 tokens, all with a loss.

    transformers_step.py [--shape 50m | mixture] [--threads 2] [--steps 3] [--experts grouped_mm]

Prints one JSON line: seconds of a step (median, lowest, highest; the first step is not counted).
The shapes are those of bench/kernels/shapes.h; our side is `kernels_bench --benchmark_filter=long_step`.
"""
import argparse
import time

from common import SHAPES, emit, machine, peak_rss_mib, spread


def make_model(shape, experts):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
    torch.manual_seed(0)
    common = dict(SHAPES["50m"], tie_word_embeddings=True, max_position_embeddings=4096,
                  pad_token_id=0, bos_token_id=None, eos_token_id=1, use_cache=False)
    if shape == "50m":
        return Qwen3ForCausalLM(Qwen3Config(**common))
    config = Qwen3MoeConfig(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=480,
                            norm_topk_prob=True, **common)
    config._experts_implementation = experts
    return Qwen3MoeForCausalLM(config)


def main():
    import torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="50m", choices=["50m", "mixture"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--experts", default="grouped_mm")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = make_model(chosen.shape, chosen.experts).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    vocab = SHAPES["50m"]["vocab_size"]
    ids = torch.tensor([[(i * 7919 + t * 104729) % vocab for t in range(256)] for i in range(16)])
    seconds = []
    for _ in range(chosen.steps + 1):
        begin = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        seconds.append(time.perf_counter() - begin)
    emit(peer="transformers", shape=chosen.shape, threads=chosen.threads,
         experts=chosen.experts if chosen.shape == "mixture" else None,
         parameters=sum(p.numel() for p in model.parameters()), step_seconds=spread(seconds[1:]),
         loss=round(loss.item(), 4), peak_mib=peak_rss_mib(), **machine("torch", "transformers"))


if __name__ == "__main__":
    main()
