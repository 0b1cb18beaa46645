"""transformers on the model folder of cuda_engine_bench, the same batches: tokens a second.

    python3 bench/device/hf_engine.py FOLDER [dynamic|static] [BATCH ...]

Decode: generate() from 128 tokens of prompt to 256, less the time of a prefill alone, with the cache
that is named (the static one is compiled, which takes a minute a batch). BATCH: 1, 64 and 256 where
none is named, and then, with the dynamic cache, prefill too: one forward pass for the last logits.
Medians of three, [least, most].
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


def sorted_times(body, warm_ups=1):
    for _ in range(warm_ups):
        body()
    return sorted(seconds(body) for _ in range(3))


def prefill(model):
    for count, length in ((1, 16384), (16, 1024)):
        ids = torch.randint(0, 151000, (count, length), device="cuda")
        taken = sorted_times(lambda: model(ids, use_cache=True, logits_to_keep=1))
        print(f"prefill, {count} of {length}: {count * length / taken[1]:.0f} tok/s", flush=True)


def decode(model, cache, batch):
    ids = torch.randint(0, 151000, (batch, 128), device="cuda")
    kind = {"cache_implementation": "static"} if cache == "static" else {}

    def generate(count):
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                       min_new_tokens=count, max_new_tokens=count, pad_token_id=0, **kind)

    # The second call of a compiled model may compile again.
    first = sorted_times(lambda: generate(1), 2)[1]
    rates = [batch * 128 / (taken - first) for taken in sorted_times(lambda: generate(129), 2)]
    print(f"decode, batch {batch}, {cache} cache: {rates[1]:.0f} tok/s "
          f"[{rates[2]:.0f}, {rates[0]:.0f}]", flush=True)


def main():
    folder, cache = sys.argv[1], (sys.argv[2:3] or ["dynamic"])[0]
    if cache not in ("dynamic", "static"):
        sys.exit(f"'{cache}' is no cache: dynamic or static")
    batches = [int(batch) for batch in sys.argv[3:]]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa").cuda().eval()
    model.generation_config.eos_token_id = None
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    with torch.inference_mode():
        if cache == "dynamic" and not batches:
            prefill(model)
        for batch in batches or (1, 64, 256):
            decode(model, cache, batch)


main()
