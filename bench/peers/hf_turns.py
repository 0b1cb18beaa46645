"""transformers on CPU, sessions of several turns that extend each other: seconds for all turns, the prompt computed
anew in each turn, and with the cache of the turn before handed on."""
import argparse
import time

import torch

import common


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--shapes", nargs="+", default=["5m", "50m"])
    args.add_argument("--sessions", type=int, default=8)
    args.add_argument("--turns", type=int, default=8)
    args.add_argument("--prompt", type=int, default=432)
    args.add_argument("--new", type=int, default=16)
    args.add_argument("--observation", type=int, default=32)
    args.add_argument("--runs", type=int, default=3)
    args.add_argument("--threads", type=int, default=2)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    from transformers import DynamicCache
    rows = {}
    for shape in args.shapes:
        model = common.qwen3(shape, torch.float32).eval()
        vocab = common.SHAPES[shape]["vocab_size"]

        def once(keeps_cache, turns):
            ids = torch.randint(2, vocab, (args.sessions, args.prompt))
            cache = DynamicCache() if keeps_cache else None
            began = time.perf_counter()
            with torch.no_grad():
                for _ in range(turns):
                    ids = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0,
                                         min_new_tokens=args.new, max_new_tokens=args.new, use_cache=True,
                                         **({"past_key_values": cache} if keeps_cache else {}))
                    ids = torch.cat([ids, torch.randint(2, vocab, (args.sessions, args.observation))], dim=1)
            return time.perf_counter() - began
        for name, keeps_cache in (("anew", False), ("cache", True)):
            once(keeps_cache, 1)
            rows[f"{shape}/{name}"] = common.spread([once(keeps_cache, args.turns) for _ in range(args.runs)], 3)
    common.emit(bench="hf_turns", seconds=rows, sessions=args.sessions, turns=args.turns, prompt=args.prompt, new=args.new,
                observation=args.observation, threads=args.threads, **common.machine("torch", "transformers"))


if __name__ == "__main__":
    main()
