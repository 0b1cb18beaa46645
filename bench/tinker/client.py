#!/usr/bin/env python3
"""One client of Tinker's SDK: a policy-gradient loop with importance sampling, without a reward
that would have to be computed. Prints one line of JSON: samples that were trained, seconds, and the
median time of each part of a step.

    client.py URL BASE_MODEL PROJECT --steps N --warmup N
"""

import argparse
import json
import os
import statistics
import time

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 8, 4, 32, 16


def ready(client):
    """Newer SDKs return a future of a client, older ones the client."""
    return client.result() if hasattr(client, "result") else client


def one_step(training, types, prompts, times):
    """Returns how many samples were trained."""
    begin = time.perf_counter()
    sampling = ready(training.save_weights_and_get_sampling_client())
    sampled = time.perf_counter()
    params = types.SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, stop=[])
    asked = [(prompt, sampling.sample(prompt=types.ModelInput.from_ints(prompt), num_samples=GROUP,
                                      sampling_params=params)) for prompt in prompts]
    data = []
    for prompt, future in asked:
        for index, each in enumerate(future.result().sequences):
            tokens = prompt + list(each.tokens)
            zeros = [0.0] * (len(prompt) - 1)
            advantage = 1.0 if index % 2 == 0 else -1.0
            data.append(types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": tokens[1:],
                                "logprobs": zeros + list(each.logprobs),
                                "advantages": zeros + [advantage] * len(each.tokens)}))
    trained = time.perf_counter()
    passed = training.forward_backward(data, "importance_sampling")
    updated = training.optim_step(types.AdamParams(learning_rate=1e-4))
    passed.result()
    updated.result()
    end = time.perf_counter()
    times.append({"sampler": sampled - begin, "sample": trained - sampled, "train": end - trained,
                  "step": end - begin})
    return len(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("base_model")
    parser.add_argument("project")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    os.environ.update(TINKER_BASE_URL=args.url, TINKER_API_KEY="tml-bench", TINKER_TELEMETRY="0")
    import tinker
    from tinker import types
    service = tinker.ServiceClient(**({"project_id": args.project} if args.project else {}))
    training = ready(service.create_lora_training_client(base_model=args.base_model, rank=8))
    prompts = [[2 + (7 * row + 3 * i) % 90 for i in range(PROMPT_TOKENS)] for row in range(PROMPTS)]
    for _ in range(args.warmup):
        one_step(training, types, prompts, [])
    print("ready", flush=True)
    times, count, begin = [], 0, time.perf_counter()
    for _ in range(args.steps):
        count += one_step(training, types, prompts, times)
    seconds = time.perf_counter() - begin
    medians = {part: round(statistics.median(each[part] for each in times), 4) for part in times[0]}
    print(json.dumps({"sdk": tinker.__version__, "samples": count, "seconds": round(seconds, 3),
                      "samples_per_s": round(count / seconds, 1), "median_s": medians}), flush=True)


if __name__ == "__main__":
    main()
