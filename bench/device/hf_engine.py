"""transformers on the model folder of cuda_engine_bench, the same batches: tokens a second.

    python3 bench/device/hf_engine.py FOLDER [--static]

Decode: generate() from 128 tokens of prompt to 256, less the time of a prefill alone; --static also
with its static, compiled cache. Prefill: one forward pass for the last logits. Medians of three.
"""
import sys
import time

import torch
import transformers


def seconds(body):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    body()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def median(body, times=3):
    body()
    return sorted(seconds(body) for _ in range(times))[times // 2]


def main():
    folder = sys.argv[1]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa").cuda().eval()
    model.generation_config.eos_token_id = None
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    kinds = [{}] + ([{"cache_implementation": "static"}] if "--static" in sys.argv else [])
    with torch.inference_mode():
        for count, length in ((1, 16384), (16, 1024)):
            ids = torch.randint(0, 151000, (count, length), device="cuda")
            taken = median(lambda: model(ids, use_cache=True, logits_to_keep=1))
            print(f"prefill, {count} of {length}: {count * length / taken:.0f} tok/s", flush=True)
        for kind in kinds:
            for batch in (1, 64, 256):
                ids = torch.randint(0, 151000, (batch, 128), device="cuda")

                def generate(count):
                    model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True,
                                   top_k=0, min_new_tokens=count, max_new_tokens=count,
                                   pad_token_id=0, **kind)

                first = median(lambda: generate(1))
                taken = median(lambda: generate(129), 1 if batch == 1 else 3)
                rate = batch * 128 / (taken - first)
                print(f"decode, batch {batch} {kind or 'dynamic cache'}: {rate:.0f} tok/s",
                      flush=True)


main()
