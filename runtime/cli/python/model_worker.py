"""Computes a causal language model with transformers, as a worker of primerl-graph.

    python3 model_worker.py

It needs the packages torch and transformers. docs/formats/outside.md has the protocol: one JSON
object a line, calls on stdin, answers on stdout. Output of the packages goes to stderr. Nothing
is downloaded, and no code of a model folder is run.
"""
import json
import math
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TQDM_DISABLE="1")
ROWS = 512  # of logits that become float32 at once


def load(model, device, dtype, threads):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if threads > 0:
        torch.set_num_threads(threads)
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False)
    return torch, loaded.to(device).eval()


def end_ids(model):
    ends = set()
    for config in (model.config.get_text_config(), model.generation_config):
        named = getattr(config, "eos_token_id", None)
        ends.update([] if named is None else [named] if isinstance(named, int) else named)
    return sorted(ends)


def finite(values):
    for i, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"log-probability {i} is {value}")
    return values


def score(torch, model, ids):
    after = torch.tensor(ids[1:], dtype=torch.long, device=model.device)
    with torch.inference_mode():
        rows = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, :-1]
        parts = [part.float().log_softmax(-1).gather(1, chosen[:, None])[:, 0]
                 for part, chosen in zip(rows.split(ROWS), after.split(ROWS))] if len(after) else []
    return finite(torch.cat(parts).tolist() if parts else [])


def choose(torch, row, sampling, chance):
    """The next token and its log-probability: temperature, top_k, top_p, min_p, renormalised."""
    if sampling["temperature"] == 0:
        token = int(row.argmax())
        return token, row.log_softmax(-1)[token].item()
    row = row / sampling["temperature"]
    weights = row.softmax(-1)
    kept = row.argsort(descending=True, stable=True)
    if sampling["top_k"] > 0:
        kept = kept[:sampling["top_k"]]
    if sampling["top_p"] < 1:
        mass = (weights[kept] / weights[kept].sum()).cumsum(0)
        kept = kept[:int((mass < sampling["top_p"]).sum()) + 1]
    if sampling["min_p"] > 0:
        kept = kept[weights[kept] >= sampling["min_p"] * weights.max()]
    logprobs = row[kept].log_softmax(-1)
    index = int(torch.multinomial(logprobs.exp(), 1, generator=chance))
    return int(kept[index]), logprobs[index].item()


def generate(torch, model, ids, max_tokens, min_tokens, end_ids, seed, sampling):
    chance = torch.Generator().manual_seed(seed)
    tokens, logprobs, given, cache = [], [], ids, None
    with torch.inference_mode():
        while len(tokens) < max_tokens:
            out = model(torch.tensor([given], device=model.device), past_key_values=cache,
                        use_cache=True)
            row = out.logits[0, -1].float().cpu()
            if len(tokens) < min_tokens:
                row[end_ids] = -math.inf
            token, logprob = choose(torch, row, sampling, chance)
            tokens.append(token)
            logprobs.append(logprob)
            if token in end_ids and len(tokens) >= min_tokens:
                break
            cache = getattr(out, "past_key_values", None)
            given = [token] if cache is not None else ids + tokens
    return {"tokens": tokens, "logprobs": finite(logprobs)}


class Worker:
    def __init__(self):
        self.torch = self.model = None

    def answer(self, call):
        name = call["call"]
        if name == "load":
            self.torch, self.model = load(call["model"], call["device"], call["dtype"],
                                          call["threads"])
            config = self.model.config.get_text_config()
            return {"model_type": self.model.config.model_type, "vocab_size": config.vocab_size,
                    "end_ids": end_ids(self.model)}
        if self.model is None:
            raise RuntimeError("no model was loaded")
        if name == "score":
            return {"logprobs": score(self.torch, self.model, call["ids"])}
        if name == "generate":
            return generate(self.torch, self.model, call["ids"], call["max_tokens"],
                            call["min_tokens"], call["end_ids"], call["seed"], call["sampling"])
        raise ValueError(f"no call '{name}'")


def described(fault):
    if isinstance(fault, ModuleNotFoundError):
        return f"the Python {sys.executable} has no package '{fault.name}'"
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return f"{type(fault).__name__}: {lines[0] if lines else ''}"[:1000]


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what packages print is no answer
    write = lambda answer: (out.write(json.dumps(answer) + "\n"), out.flush())
    write({"protocol": "primerl-graph 1", "concurrency": 1, "replay": False})
    worker = Worker()
    for line in sys.stdin:
        call = json.loads(line)
        try:
            write({"id": call["id"], **worker.answer(call)})
        except Exception as fault:
            write({"id": call["id"], "error": described(fault)})


if __name__ == "__main__":
    main()
