"""llama.cpp through llama-cpp-python: new tokens per second of a random Qwen3 model as F32 GGUF, one and several sequences.

The GGUF is written here from the weights that hf_generate.py uses, and its logits are compared with transformers'.
Beside the packages of bench/demo/compare.py, built for this machine's processor (3 to 5 minutes on two idle cores):

    peers/bin/pip install gguf==0.19.0
    CMAKE_ARGS="-DGGML_NATIVE=ON" peers/bin/pip install llama-cpp-python==0.3.36
    peers/bin/python bench/peers/llama_cpp_rate.py
"""
import argparse
import ctypes
import os
import time

import numpy as np

import common

PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def write_gguf(shape, path):
    import gguf
    model = common.qwen3(shape)
    c = model.config
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_name(f"random-{shape}")
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    # The wanted tokens need only exist: nothing here is tokenized.
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    w.add_token_types([gguf.TokenType.NORMAL] * c.vocab_size)
    w.add_token_merges(["t 0"])
    w.add_eos_token_id(1)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for i in range(c.num_hidden_layers):
        names |= {f"model.layers.{i}.{a}.weight": f"blk.{i}.{b}.weight" for a, b in PARTS.items()}
    for name, tensor in model.state_dict().items():
        if name in names:  # lm_head is tied to token_embd
            w.add_tensor(names[name], tensor.float().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Model:
    """One loaded GGUF, a batch that is filled by hand, and the seconds spent inside llama_decode."""

    def __init__(self, path, shape, args):
        import llama_cpp
        self.lc, self.args, self.vocab = llama_cpp, args, common.SHAPES[shape]["vocab_size"]
        self.rng = np.random.default_rng(0)
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        began = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self.load_s = time.perf_counter() - began
        self.batch = llama_cpp.llama_batch_init(max(args.batches) * args.prompt, 0, 1)
        self.inside = 0.0

    def context(self, sequences):
        p = self.lc.llama_context_default_params()
        p.n_ctx = sequences * (self.args.prompt + self.args.new)
        p.n_batch = p.n_ubatch = max(512, sequences * self.args.prompt)
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = self.args.threads
        p.type_k = p.type_v = 0  # GGML_TYPE_F32
        p.kv_unified = False
        return self.lc.llama_init_from_model(self.model, p)

    def put(self, i, token, position, sequence, has_logits):
        b = self.batch
        b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = int(token), position, 1, sequence, has_logits

    def decode(self, ctx, count):
        self.batch.n_tokens = count
        began = time.perf_counter()
        assert self.lc.llama_decode(ctx, self.batch) == 0
        self.lc.llama_synchronize(ctx)
        self.inside += time.perf_counter() - began

    def prefill(self, ctx, prompts):
        last = self.args.prompt - 1
        count = 0
        for sequence, prompt in enumerate(prompts):
            for i, token in enumerate(prompt):
                self.put(count, token, i, sequence, i == last)
                count += 1
        self.decode(ctx, count)

    def logits(self, ctx, rows):
        return np.ctypeslib.as_array(self.lc.llama_get_logits(ctx), shape=(rows, self.vocab))

    def sample(self, ctx, rows):
        """Gumbel-max at temperature 1 over the logits of every row at once."""
        logits = self.logits(ctx, rows)
        return (logits + self.rng.gumbel(size=logits.shape).astype(np.float32)).argmax(-1)

    def generate(self, ctx, prompts):
        """New tokens a second, whole and inside llama_decode alone, without the sampling around it."""
        self.lc.llama_memory_clear(self.lc.llama_get_memory(ctx), True)
        self.inside, began = 0.0, time.perf_counter()
        self.prefill(ctx, prompts)
        for step in range(self.args.new):
            tokens = self.sample(ctx, len(prompts))
            if step == self.args.new - 1:
                break
            for sequence, token in enumerate(tokens):
                self.put(sequence, token, self.args.prompt + step, sequence, True)
            self.decode(ctx, len(prompts))
        count = len(prompts) * self.args.new
        return count / (time.perf_counter() - began), count / self.inside


def difference_to_hf(model, shape, prompt):
    """The same prompt through both: are these the same model?"""
    import torch
    ctx = model.context(1)
    model.prefill(ctx, prompt[None])
    ours = model.logits(ctx, 1)[0].copy()
    model.lc.llama_free(ctx)
    with torch.no_grad():
        theirs = common.qwen3(shape).eval()(torch.tensor(prompt)[None]).logits[0, -1].numpy()
    return {"max_logit_difference_to_hf": float(np.abs(ours - theirs).max()), "logit_std": float(theirs.std())}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--shapes", nargs="+", default=["50m"])
    args.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    args.add_argument("--prompt", type=int, default=16)
    args.add_argument("--new", type=int, default=64)
    args.add_argument("--runs", type=int, default=5)
    args.add_argument("--threads", type=int, default=2)
    args = args.parse_args()
    os.makedirs(common.STATE, exist_ok=True)
    rates, decode_rates, facts = {}, {}, {}
    for shape in args.shapes:
        path = os.path.join(common.STATE, f"{shape}-f32.gguf")
        if not os.path.exists(path):
            write_gguf(shape, path + ".part")
            os.replace(path + ".part", path)
        model = Model(path, shape, args)
        for sequences in args.batches:
            ctx = model.context(sequences)
            prompts = model.rng.integers(2, model.vocab, (sequences, args.prompt))
            model.generate(ctx, prompts)
            whole, bare = zip(*(model.generate(ctx, prompts) for _ in range(args.runs)))
            rates[f"{shape}/float32/b{sequences}"] = common.spread(whole, 1)
            decode_rates[f"{shape}/float32/b{sequences}"] = common.spread(bare, 1)
            model.lc.llama_free(ctx)
        facts[shape] = {"load_s": round(model.load_s, 3), "gguf_mib": round(os.path.getsize(path) / 2**20, 1),
                        **difference_to_hf(model, shape, model.rng.integers(2, model.vocab, args.prompt))}
    common.emit(bench="llama_cpp_rate", tokens_per_s=rates, tokens_per_s_llama_decode_alone=decode_rates, prompt=args.prompt,
                new=args.new, threads=args.threads, models=facts, system=model.lc.llama_print_system_info().decode(),
                peak_rss_mib=common.peak_rss_mib(), **common.machine("llama_cpp_python", "gguf", "torch", "transformers"))


if __name__ == "__main__":
    main()
