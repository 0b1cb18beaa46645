"""Tiny random Hugging Face folders and what transformers says about them, for the parity tests.

    make_models.py OUT [NAME...]   writes OUT/<name>/ and OUT/<name>.json for the names of configs()
                                   (all without NAME), and the folders OUT/qwen3_sharded_bf16/ and
                                   OUT/qwen3_moe_fused/: qwen3 and qwen3_moe, saved in another way
    make_models.py --logprobs FOLDER IDS...   prints the log-probabilities of a folder as JSON
    make_models.py --processed FOLDER JSON    prints what sampling options make of a continuation's
                                   log-probabilities: {"logprobs": [...], "top": [[id, ...], ...]}

Names in the JSON are those of released checkpoints: one tensor per expert, whatever transformers
holds in memory. Mixture-of-experts models have two more keys: "experts", by the index of each layer
with a router the chosen experts of every token of the longest scored sequence, ascending; and
"router_gap", the smallest distance there of a chosen expert (or group) to the best one not chosen.
"""
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, MinNewTokensLengthLogitsProcessor,
                          RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor,
                          TemperatureLogitsWarper, TopKLogitsWarper)
from transformers import (Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig,
                          LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

VOCAB = 128
ROUTER_GAP = 5e-5  # of every token of every sequence here, so that rounding chooses no expert
GREEDY_GAP = 1e-3  # of the two best logits, so that rounding chooses no token


def configs():
    """(seed, name, class, config). Seeds are such that no choice hangs on rounding."""
    common = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
                  max_position_embeddings=256, num_attention_heads=4, bos_token_id=None,
                  pad_token_id=0, eos_token_id=1)
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=32)
    yield 0, "qwen3", Qwen3ForCausalLM, Qwen3Config(
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rope_theta=10000.0, **common)
    yield 1, "llama", LlamaForCausalLM, LlamaConfig(
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=False, attention_bias=True,
        mlp_bias=True, rope_parameters=llama3, **common)

    linear = dict(rope_type="linear", rope_theta=20000.0, factor=4.0)
    yield 22, "llama_linear", LlamaForCausalLM, LlamaConfig(
        num_key_value_heads=4, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters=linear, **common)
    # 256 positions are 8 times 32: it is `factor` that counts.
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                original_max_position_embeddings=32)
    yield 243, "llama_yarn", LlamaForCausalLM, LlamaConfig(
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, rope_parameters=yarn,
        **common)
    # Without truncation the ramp goes from 1.62 to 4.03 of the 16 frequencies.
    untruncated = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=4.0,
                       beta_slow=1.0, attention_factor=1.25, truncate=False,
                       original_max_position_embeddings=64)
    yield 364, "qwen3_yarn", Qwen3ForCausalLM, Qwen3Config(
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=False,
        rope_parameters=untruncated, **common)
    yield 5, "qwen2", Qwen2ForCausalLM, Qwen2Config(
        num_key_value_heads=2, tie_word_embeddings=True, use_sliding_window=False,
        rope_theta=1000000.0, **common)

    experts = dict(common, num_key_value_heads=2, num_experts_per_tok=2, moe_intermediate_size=40)
    qwen3_moe = dict(experts, num_hidden_layers=4, num_experts=8, tie_word_embeddings=False,
                     rope_theta=1000000.0)
    yield 446, "qwen3_moe", Qwen3MoeForCausalLM, Qwen3MoeConfig(
        head_dim=32, norm_topk_prob=True, mlp_only_layers=[1], **qwen3_moe)
    yield 507, "qwen3_moe_plain", Qwen3MoeForCausalLM, Qwen3MoeConfig(
        head_dim=16, norm_topk_prob=False, **qwen3_moe)
    glm4_moe = dict(experts, n_routed_experts=8, first_k_dense_replace=1, norm_topk_prob=True,
                    partial_rotary_factor=0.5, tie_word_embeddings=False, rope_theta=1000000.0)
    yield 608, "glm4_moe", Glm4MoeForCausalLM, Glm4MoeConfig(
        head_dim=32, n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.5,
        use_qk_norm=True, attention_bias=True, **glm4_moe)
    yield 49, "glm4_moe_groups", Glm4MoeForCausalLM, Glm4MoeConfig(
        head_dim=16, n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.0,
        use_qk_norm=False, attention_bias=False, **glm4_moe)


def tokenizer_json():
    vocab = {"<pad>": 0, "<eos>": 1} | {chr(c): c - 30 for c in range(32, 127)}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": split, "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"}}


def logprobs(model, ids):
    with torch.no_grad():
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [z[i - 1, ids[i]].item() for i in range(1, len(ids))]


def processed(model, wanted):
    """Of the tokens after the prompt, each given those before it, by transformers' processors; it
    has none for frequency and presence, which are as OpenAI writes them."""
    prompt, tokens = wanted["prompt"], wanted["tokens"]
    before = [SequenceBiasLogitsProcessor([[[t], b] for t, b in wanted["logit_bias"]]),
              RepetitionPenaltyLogitsProcessor(wanted["repetition_penalty"])]
    after = [MinNewTokensLengthLogitsProcessor(len(prompt), wanted["min_tokens"], wanted["ends"]),
             TemperatureLogitsWarper(wanted["temperature"]), TopKLogitsWarper(wanted["top_k"])]
    with torch.no_grad():
        rows = model(torch.tensor([prompt + tokens])).logits[0].float()
    logprobs, top = [], []
    for i, token in enumerate(tokens):
        history = torch.tensor([prompt + tokens[:i]])
        scores = rows[None, len(prompt) + i - 1].clone()
        for one in before:
            scores = one(history, scores)
        counts = torch.bincount(torch.tensor(tokens[:i], dtype=torch.long), minlength=VOCAB)
        scores -= wanted["frequency_penalty"] * counts + wanted["presence_penalty"] * (counts > 0)
        for one in after:
            scores = one(history, scores)
        row = scores.log_softmax(-1)[0]
        logprobs.append(row[token].item())
        top.append([[t.item(), row[t].item()] for t in row.topk(wanted["num_top"]).indices])
    return {"logprobs": logprobs, "top": top}


def greedy(model, prompt, count):
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count,
                         attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         min_new_tokens=count, eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt):].tolist()


def greedy_gap(model, prompt, tokens):
    """The smallest difference of the two best logits where a token was chosen."""
    with torch.no_grad():
        z = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1]
    assert z.argmax(-1).tolist() == tokens
    best = z.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def released(tensors):
    """Fused experts ([expert, gate rows then up rows, in] and [expert, out, in]) one by one."""
    for name, tensor in tensors:
        if name.endswith(".experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                stem = f"{name.removesuffix('.gate_up_proj')}.{expert}."
                gate, up = both.chunk(2)
                yield stem + "gate_proj.weight", gate
                yield stem + "up_proj.weight", up
        elif name.endswith(".experts.down_proj"):
            for expert, down in enumerate(tensor):
                yield f"{name.removesuffix('.down_proj')}.{expert}.down_proj.weight", down
        else:
            yield name, tensor


def gradients(model, documents, prompt_tokens):
    """Of the mean cross-entropy over the tokens after each document's prompt. An expert without a
    token has zeros."""
    model.zero_grad()
    count = sum(len(d) - prompt_tokens for d in documents)
    loss = 0
    for ids in documents:
        z = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        for i in range(prompt_tokens, len(ids)):
            loss = loss - z[i - 1, ids[i]] / count
    loss.backward()
    all = dict(released((n, p.grad) for n, p in model.named_parameters()))
    norms = {n: g.norm().item() for n, g in all.items()}
    grads = {n: g.flatten().tolist() for n, g in all.items()}
    return loss.item(), norms, grads


def randomise(model):
    """Norm weights of 1 and biases of 0 would hide a mistake, and weak routers choose narrowly."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.uniform_(0.5, 1.5)
            elif "bias" in name:
                p.normal_(0, 0.1)
            elif name.endswith(".mlp.gate.weight"):
                p.normal_(0, 0.3)
            else:
                p.normal_(0, 0.08)
        for name, buffer in model.named_buffers():
            if name.endswith(".e_score_correction_bias"):
                buffer.normal_(0, 0.3)


def routers(model):
    """Layer index to router."""
    layers = enumerate(model.model.layers)
    return {i: layer.mlp.gate for i, layer in layers if hasattr(layer.mlp, "experts")}


def distance(scores, count):
    """Of the last chosen to the first not chosen, by row; infinite where all are chosen."""
    if count >= scores.shape[-1]:
        return torch.full(scores.shape[:1], torch.inf)
    best = scores.sort(-1, descending=True).values
    return best[:, count - 1] - best[:, count]


def choices(router, logits):
    """The chosen experts of each token, its distance from another choice, and the experts that
    would be chosen without correction bias and groups: the router's words once more."""
    if not hasattr(router, "e_score_correction_bias"):
        scores = logits.softmax(-1)
        chosen = scores.topk(router.top_k).indices
        return chosen.sort(-1).values, distance(scores, router.top_k), []
    plain = logits.sigmoid()
    biased = plain + router.e_score_correction_bias
    grouped = biased.view(len(logits), router.num_group, -1)
    of_group = grouped.topk(2).values.sum(-1)
    kept = torch.zeros_like(of_group).scatter(1, of_group.topk(router.topk_group).indices, 1) > 0
    scores = grouped.masked_fill(~kept[..., None], -torch.inf).view_as(biased)
    gap = torch.minimum(distance(scores, router.top_k), distance(of_group, router.topk_group))
    ignoring = [plain] + ([biased] if router.num_group > 1 else [])
    first, *others = [s.topk(router.top_k).indices.sort(-1).values for s in [scores] + ignoring]
    return first, gap, others


def routing(model, ids):
    """By layer the chosen experts of each token, and the smallest distance from another choice."""
    seen, hooks = {}, []
    for layer, router in routers(model).items():
        hooks.append(router.register_forward_hook(
            lambda _, __, out, layer=layer: seen.__setitem__(layer, (out[0], out[2]))))
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    experts, gap = {}, float("inf")
    differ = None
    for layer, (logits, indices) in seen.items():
        chosen, distances, others = choices(routers(model)[layer], logits)
        assert torch.equal(chosen, indices.sort(-1).values), "a router chooses in another way"
        experts[str(layer)] = chosen.tolist()
        gap = min(gap, distances.min().item())
        changed = [(chosen != other).any(-1).sum().item() for other in others]
        differ = changed if differ is None else [a + b for a, b in zip(differ, changed)]
    return experts, gap, differ


def rounded(value):
    """Nine digits are all of a 32-bit float."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def make(out, seed, name, kind, config):
    torch.manual_seed(seed)
    model = kind(config).float().eval()
    randomise(model)
    folder = os.path.join(out, name)
    model.save_pretrained(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(tokenizer_json(), file)
    generator = torch.Generator().manual_seed(100 + seed)
    ids = lambda n: torch.randint(2, VOCAB, (n,), generator=generator).tolist()
    prompts = [ids(n) for n in (1, 3, 7, 12, 40)]
    documents = [ids(4) + ids(n) for n in (1, 5, 16, 9)]
    documents += [documents[0][:4] + ids(6)]
    loss, norms, grads = gradients(model, documents, 4)
    long = ids(150)
    scored = [{"ids": d, "logprobs": logprobs(model, d)} for d in documents + [long]]
    picked = [{"prompt": p, "tokens": greedy(model, p, 64)} for p in prompts]
    gap = min(greedy_gap(model, p["prompt"], p["tokens"]) for p in picked)
    assert gap > GREEDY_GAP or name in ("qwen3", "llama"), f"{name}: greedy gap {gap}"
    result = {"sequences": scored, "greedy": picked, "documents": documents,
              "num_prompt_tokens": 4, "loss": loss, "gradient_norms": norms, "gradients": grads,
              "greedy_gap": gap}
    if routers(model):
        everything = documents + [p["prompt"] + p["tokens"] for p in picked]
        least = min(routing(model, one)[1] for one in everything)
        result["experts"], result["router_gap"], differ = routing(model, long)
        least = min(least, result["router_gap"])
        assert least > ROUTER_GAP, f"{name}: router gap {least}"
        assert all(differ), f"{name}: the correction bias or the groups decide nothing"
    with open(os.path.join(out, name + ".json"), "w") as file:
        json.dump(rounded(result), file, separators=(",", ":"))
    return model


def fused(out, name, model):
    """The same model with the names that transformers 5 holds in memory: experts in one tensor."""
    folder = os.path.join(out, name + "_fused")
    shutil.copytree(os.path.join(out, name), folder, dirs_exist_ok=True)
    tensors = {n: t.contiguous() for n, t in model.state_dict().items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def main(out, names):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for seed, name, kind, config in configs():
        if names and name not in names:
            continue
        model = make(out, seed, name, kind, config)
        if name == "qwen3_moe":
            fused(out, name, model)
        if name == "qwen3":
            model = AutoModelForCausalLM.from_pretrained(os.path.join(out, "qwen3"),
                                                         dtype=torch.bfloat16)
            model.save_pretrained(os.path.join(out, "qwen3_sharded_bf16"), max_shard_size="100KB")


if __name__ == "__main__":
    if sys.argv[1] == "--logprobs":
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
        print(json.dumps(logprobs(model, [int(i) for i in sys.argv[3:]])))
    elif sys.argv[1] == "--processed":
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
        print(json.dumps([processed(model, one) for one in json.loads(sys.argv[3])]))
    else:
        main(sys.argv[1], sys.argv[2:])
