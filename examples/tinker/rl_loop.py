#!/usr/bin/env python3
"""A client of Tinker's SDK that trains a tenant of examples/tinker/graph.toml.

    pip install "tinker==0.38.*"
    primerl-graph run examples/tinker/graph.toml &
    python examples/tinker/rl_loop.py

It fits two sentences first, then rewards answers for their letters 'a' (a policy gradient with
importance sampling), and saves the weights.
"""

import argparse
import os

os.environ.setdefault("TINKER_BASE_URL", "http://127.0.0.1:8000")
os.environ.setdefault("TINKER_API_KEY", "tml-local")  # any key, unless the listener has a keys_file
os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker
from tinker import types

SENTENCES = ["the cat sat", "a dog ran"]
PROMPT = "say: "


def ready(client):
    """Newer SDKs return a future of a client, older ones the client."""
    return client.result() if hasattr(client, "result") else client


def datum(tokens, weights):
    """Targets are the next tokens."""
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights[1:]})


def supervised(training, tokenizer, num_steps):
    """Returns the mean loss of a token before each step."""
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in SENTENCES]
    data = [datum(tokens, [1.0] * len(tokens)) for tokens in texts]
    num_targets = sum(len(tokens) - 1 for tokens in texts)
    losses = []
    for _ in range(num_steps):
        passed = training.forward_backward(data, "cross_entropy")
        updated = training.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(passed.result().metrics["loss:sum"] / num_targets)
        updated.result()
    return losses


def reward_of(text):
    return text.count("a") / max(len(text), 1)


def reinforced(training, tokenizer, num_steps, group_size=16):
    """Returns the mean reward of each step's samples."""
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    rewards = []
    for _ in range(num_steps):
        sampling = ready(training.save_weights_and_get_sampling_client())
        sampled = sampling.sample(
            prompt=types.ModelInput.from_ints(prompt), num_samples=group_size,
            sampling_params=types.SamplingParams(max_tokens=8, temperature=1.0)).result()
        scores = [reward_of(tokenizer.decode(each.tokens)) for each in sampled.sequences]
        mean = sum(scores) / len(scores)
        rewards.append(mean)
        data = []
        for score, each in zip(scores, sampled.sequences):
            tokens = prompt + list(each.tokens)
            num_free = len(prompt) - 1  # targets inside the prompt
            data.append(types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={
                    "target_tokens": tokens[1:],
                    "logprobs": [0.0] * num_free + list(each.logprobs),
                    "advantages": [0.0] * num_free + [score - mean] * len(each.tokens)}))
        passed = training.forward_backward(data, "importance_sampling")
        updated = training.optim_step(types.AdamParams(learning_rate=3e-3))
        passed.result()
        updated.result()
    return rewards


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    service = tinker.ServiceClient()
    training = ready(service.create_lora_training_client(base_model="demo/characters", rank=8))
    tokenizer = training.get_tokenizer()
    losses = supervised(training, tokenizer, steps)
    print(f"loss of a token: {losses[0]:.3f} -> {losses[-1]:.3f}", flush=True)
    rewards = reinforced(training, tokenizer, steps)
    print(f"mean reward: {rewards[0]:.3f} -> {rewards[-1]:.3f}", flush=True)
    print("saved:", training.save_state("final").result().path, flush=True)


if __name__ == "__main__":
    main()
