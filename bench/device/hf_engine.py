"""transformers on the model folder of cuda_engine_bench, the same batches: tokens a second.

    python3 bench/device/hf_engine.py FOLDER [dynamic|static] [BATCH ...]

Decode: generate() from 128 tokens of prompt to 256, less the time of a prefill alone, with the cache
that is named. BATCH: 1, 64 and 256 where none is named, and then, with the dynamic cache, prefill
too: one forward pass for the last logits. With the static cache the model is compiled for its batch,
which takes a minute: each batch has a process of its own, all compile at the same time, and measure
one after the other. Medians of three, [least, most].
"""
import multiprocessing
import sys
import time

import torch
import transformers


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa").cuda().eval()
    model.generation_config.eos_token_id = None
    return model


def seconds(body):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    body()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def sorted_times(body):
    return sorted(seconds(body) for _ in range(3))


def prefill(model):
    for count, length in ((1, 16384), (16, 1024)):
        ids = torch.randint(0, 151000, (count, length), device="cuda")

        def forward():
            model(ids, use_cache=True, logits_to_keep=1)

        forward()
        taken = sorted_times(forward)
        print(f"prefill, {count} of {length}: {count * length / taken[1]:.0f} tok/s", flush=True)


def generation(model, cache, batch):
    """Generates that many tokens after a prompt of 128, warmed up for 1 and for 129."""
    ids = torch.randint(0, 151000, (batch, 128), device="cuda")
    kind = {"cache_implementation": "static"} if cache == "static" else {}

    def generate(count):
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                       min_new_tokens=count, max_new_tokens=count, pad_token_id=0, **kind)

    # The second call of a compiled model may compile again.
    for count in (1, 1, 129, 129):
        generate(count)
    return generate


def decode(generate, cache, batch):
    first = sorted_times(lambda: generate(1))[1]
    rates = [batch * 128 / (taken - first) for taken in sorted_times(lambda: generate(129))]
    print(f"decode, batch {batch}, {cache} cache: {rates[1]:.0f} tok/s "
          f"[{rates[2]:.0f}, {rates[0]:.0f}]", flush=True)


def decode_compiled(folder, batch, all_compiled, turn):
    try:
        with torch.inference_mode():
            generate = generation(load(folder), "static", batch)
            all_compiled.wait()
            with turn:
                decode(generate, "static", batch)
    except BaseException:
        all_compiled.abort()
        raise


def main():
    folder, cache = sys.argv[1], (sys.argv[2:3] or ["dynamic"])[0]
    if cache not in ("dynamic", "static"):
        sys.exit(f"'{cache}' is no cache: dynamic or static")
    batches = [int(batch) for batch in sys.argv[3:]]
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    if cache == "static":
        own = multiprocessing.get_context("spawn")
        batches = batches or [1, 64, 256]
        shared = (own.Barrier(len(batches)), own.Lock())
        processes = [own.Process(target=decode_compiled, args=(folder, batch, *shared))
                     for batch in batches]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(any(process.exitcode for process in processes))
    model = load(folder)
    with torch.inference_mode():
        if not batches:
            prefill(model)
        for batch in batches or (1, 64, 256):
            decode(generation(model, cache, batch), cache, batch)


if __name__ == "__main__":
    main()
