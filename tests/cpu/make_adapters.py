"""Adapters of the folders of make_models.py and what peft says about them, for the parity tests.

    make_adapters.py OUT           writes for each of ADAPTERS a PEFT folder OUT/<name>/ on the model
                                   OUT/../reference_models/<name>/, and OUT/<name>.json: the
                                   log-probabilities of some sequences, and the loss and the
                                   adapter's gradients of a batch of documents, by torch's autograd
    make_adapters.py --logprobs BASE ADAPTER IDS...   prints those of a PEFT folder, by peft
    make_adapters.py --merged BASE ADAPTER IDS...     the same of the base with scaling * B A added
                                   to its weights, which is how experts are compared: peft adapts no
                                   single expert of those that transformers holds in one tensor
"""
import json
import os
import sys

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

VOCAB = 128
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTENTION = LINEAR[:4]
# Name: rank, alpha, rslora, targets.
ADAPTERS = {
    "qwen3": (8, 16, False, LINEAR + ["lm_head"]),  # tied to the embedding
    "llama": (5, 10, True, LINEAR + ["lm_head"]),   # with a head of its own
    "qwen2": (16, 8, False, ["q_proj", "v_proj", "down_proj"]),
    "qwen3_moe": (4, 8, False, ATTENTION),
    "glm4_moe": (12, 6, True, ATTENTION),
}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logprobs(model, ids):
    with torch.no_grad():
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [z[i - 1, ids[i]].item() for i in range(1, len(ids))]


def gradients(model, documents, prompt_tokens):
    """Of the mean cross-entropy over the tokens after each document's prompt."""
    count = sum(len(d) - prompt_tokens for d in documents)
    loss = 0
    for ids in documents:
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        for i in range(prompt_tokens, len(ids)):
            loss = loss - z[i - 1, ids[i]] / count
    loss.backward()
    return loss.item(), {n.replace(".default.", "."): p.grad.flatten().tolist()
                         for n, p in model.named_parameters() if p.requires_grad}


def make(out, seed, name, rank, alpha, rslora, targets):
    torch.manual_seed(seed)
    base = os.path.join(out, "..", "reference_models", name)
    config = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, target_modules=targets,
                        lora_dropout=0.0, task_type="CAUSAL_LM")
    model = get_peft_model(load(base), config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.08)
    model.save_pretrained(os.path.join(out, name))
    generator = torch.Generator().manual_seed(200 + seed)
    ids = lambda n: torch.randint(2, VOCAB, (n,), generator=generator).tolist()
    documents = [ids(4) + ids(n) for n in (1, 5, 16, 9)]
    loss, grads = gradients(model, documents, 4)
    scored = [{"ids": d, "logprobs": logprobs(model, d)} for d in documents + [ids(100)]]
    with open(os.path.join(out, name + ".json"), "w") as file:
        json.dump({"sequences": scored, "documents": documents, "num_prompt_tokens": 4,
                   "loss": loss, "gradients": grads}, file, separators=(",", ":"))


def merged(base, adapter):
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        config = json.load(file)
    rank = config["r"]
    scaling = config["lora_alpha"] / (rank ** 0.5 if config["use_rslora"] else rank)
    tensors = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    model = load(base)
    state = model.state_dict()
    for name, a in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        delta = scaling * (tensors[name.replace("lora_A", "lora_B")] @ a)
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if ".experts." not in module:
            state[module + ".weight"] += delta
            continue
        stem, rest = module.split(".experts.")
        expert, kind = rest.split(".")
        width = delta.shape[0]
        if kind == "down_proj":
            state[stem + ".experts.down_proj"][int(expert)] += delta
        else:
            first = 0 if kind == "gate_proj" else width
            state[stem + ".experts.gate_up_proj"][int(expert), first:first + width] += delta
    return model


def main(out):
    for seed, (name, words) in enumerate(ADAPTERS.items()):
        make(out, seed, name, *words)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if sys.argv[1] == "--logprobs":
        model = PeftModel.from_pretrained(load(sys.argv[2]), sys.argv[3]).eval()
        print(json.dumps(logprobs(model, [int(i) for i in sys.argv[4:]])))
    elif sys.argv[1] == "--merged":
        print(json.dumps(logprobs(merged(sys.argv[2], sys.argv[3]),
                                  [int(i) for i in sys.argv[4:]])))
    else:
        main(sys.argv[1])
