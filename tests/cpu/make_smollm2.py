"""Results of transformers with the folder of SmolLM2-135M-Instruct, in float32.

    make_smollm2.py OUT   writes OUT/expected.json

scripts/setup.sh --tests makes the folder. Greedy tokens are compared one by one, so the two best
logits must differ by GREEDY_GAP at each of them: rounding then chooses no token.
"""
import json
import pathlib
import random
import sys

import torch
import transformers

FOLDER = pathlib.Path.home() / ".cache/primerl-graph/models/smollm2-135m-instruct"
NUM_TOKENS = 32
GREEDY_GAP = 2e-3

user = lambda text: {"role": "user", "content": text}
CHATS = [
    [user("Name the capital of France.")],
    [user("Write one sentence about the sea.")],
    [user("Compute 17 + 25.")],
    [user("Name three colours, separated by commas.")],
    [{"role": "system", "content": "You answer in one word."}, user("Is ice cold?")],
    [user("Translate to French: good morning")],
    [user("Hi!"), {"role": "assistant", "content": "Hello! How can I help you?"},
     user("Write a Python function that adds two numbers.")],
]
WORDS = ["the", "The", "graph", " node", "don't", "we'll", "12345", "3.14", "é", "naïve", "日本語",
         "Привет", "🙂👩‍👩‍👧", "\n", "\n\n", "\t", "  ", "def f(x):", "return x", "<|im_start|>",
         "<|im_end|>", "<|endoftext|>", "http://a.b/c?d=e", "x_1", "ﬁ", "\u00a0", "…", "A", "zzzz"]


def texts():
    rng = random.Random(5)
    return ["", " "] + ["".join(rng.choice(WORDS) + rng.choice(["", " "])
                                for _ in range(rng.randint(1, 30))) for _ in range(198)]


def case(model, tokenizer, messages):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True,
                                           return_dict=False)
    with torch.no_grad():
        ids, cache, rows = torch.tensor([prompt]), None, []
        for _ in range(NUM_TOKENS):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append(out.logits[0, -1])
            ids = rows[-1].argmax().view(1, 1)
        tokens = [row.argmax().item() for row in rows]
        best = torch.stack(rows).topk(2).values
        gap = (best[:, 0] - best[:, 1]).min().item()
        assert gap > GREEDY_GAP, (messages, gap)
        # One forward pass over all tokens: another order of the same arithmetic.
        whole = model(torch.tensor([prompt + tokens])).logits[0, :-1].log_softmax(-1)
    after = torch.tensor(prompt[1:] + tokens)
    scores = whole.gather(1, after[:, None])[:, 0]
    top = whole[len(prompt) - 1:].topk(5)
    return {"messages": messages, "prompt": prompt, "tokens": tokens, "logprobs": scores.tolist(),
            "top": [[[i, p] for i, p in zip(*row)]
                    for row in zip(top.indices.tolist(), top.values.tolist())]}


def main(out):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # other tests run beside it, and OpenMP waits for its slowest thread
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    encoded = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}
               for text in texts()]
    expected = {"cases": [case(model, tokenizer, chat) for chat in CHATS], "texts": encoded}
    (pathlib.Path(out) / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(sys.argv[1])
