"""transformers on the shape of cuda_learner_bench, the same batches: tokens a second of a step.

    python3 bench/device/hf_learner.py FOLDER

A mixture of experts is trained with each of transformers' ways to multiply by experts.
fp32 weights under bf16 autocast, layers checkpointed, sdpa attention, fused AdamW, cross-entropy in
chunks of 2,048 tokens that are computed again: [tokens, vocab] would not fit 65k. Medians of three.
"""
import sys
import time

import torch
import transformers
from torch.utils.checkpoint import checkpoint

CHUNK = 2048


def chunk_loss(head, hidden, labels):
    logits = torch.nn.functional.linear(hidden, head).float()
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


def step(model, optimizer, ids):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state.flatten(0, 1)
        labels = ids[:, 1:].flatten()
        loss = sum(checkpoint(chunk_loss, model.lm_head.weight, hidden[i:i + CHUNK],
                              labels[i:i + CHUNK], use_reentrant=False)
                   for i in range(0, len(labels), CHUNK)) / len(labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(model, shapes):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    for count, length in shapes:
        ids = torch.randint(0, 151000, (count, length + 1), device="cuda")
        try:
            step(model, optimizer, ids)
            torch.cuda.reset_peak_memory_stats()
            times = []
            for _ in range(3):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                step(model, optimizer, ids)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
        except torch.OutOfMemoryError:
            print(f"{count} x {length}: out of memory", flush=True)
            continue
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{count} x {length}: {count * length / sorted(times)[1]:.0f} tok/s, "
              f"peak {peak:.1f} GiB", flush=True)


def main():
    config = transformers.AutoConfig.from_pretrained(sys.argv[1])
    config.dtype = torch.float32
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    is_mixture = hasattr(config, "moe_intermediate_size")
    ways = [{"experts_implementation": way} for way in ("grouped_mm", "batched_mm", "eager")]
    for way in ways if is_mixture else [{}]:
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="sdpa", **way).train()
        print(*way.values(), flush=True)
        shapes = ((16, 1024), (4, 4096)) if is_mixture else ((1, 16384), (16, 1024), (1, 65536))
        try:
            measure(model, shapes)
        except Exception as error:  # a way that cannot do this
            print(f"{type(error).__name__}: {error}"[:300], flush=True)
        del model
        torch.cuda.empty_cache()


main()
