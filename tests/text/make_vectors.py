"""Golden vectors of the `tokenizers` package: folders with tokenizer.json and vectors.json.

    python make_vectors.py OUT [FOLDER ...]

Trains BPE tokenizers on the text below with the parts of known families, reads the small tokenizers
of tests/text/small/ (sources.txt there says where they come from), and writes what the package
encodes and decodes. With folders it reads these instead. Everything is seeded; nothing is
downloaded.
"""
import json
import pathlib
import random
import sys

from tokenizers.decoders import DecodeStream
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
WORDS = r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+"

CORPUS = """
A graph is a file: nodes, edges, tenants, where they run. Reading the file tells you the whole
system.
Don't guess; they're the ones who've measured, I'll wait, you'd better, it's what I'm told.
DON'T SHOUT.
The rollout opens a group of eight with one seed each and sends 8 requests, 1234567 tokens,
3.14159, 2026-11-21.
def encode(self, text: str) -> list[int]:\n    return [self.vocab[c] for c in text if c !=
'\\n']\n
for (int i = 0; i < 10; ++i) {\n\tsum += values[i] * 0.5f;  // a comment\r\n}\r\n
Größe, Straße, naïve café, Ångström, señor, façade. Ελληνικά γράμματα. Привет, как дела? Хорошо!
今天天气很好，我们去公园吧。日本語のテキスト、カタカナとひらがな。한국어 문장입니다. नमस्ते दुनिया। مرحبا بالعالم
Emoji: 😀 😃 👩‍👩‍👧 🇩🇪 👍🏽 ❤️ and symbols ∑ ∫ √ ≤ ≥ → ← € £ ¥ © ® ™ … — – “quoted” ‘single’.
The prefill hands the prompt to its engine; the batch scheduler finds cached tokens, computes
the rest.
Every generated token knows the version that made it. The newest wins. The older ones are kept
until then.
<|im_start|>user\nWhat is 12+34?<|im_end|>\n<|im_start|>assistant\nIt is 46.<|im_end|>\n
""" * 3

HAND = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "a ", "  a  b   c    ",
    "\u00a0x", "x\u3000y", "\u180ex y", "don't DON'T we'LL you'RE I'm 'S 'ſ it’s", "1", "12",
    "123", "1234", "12345678901", "3.14", "1,000,000", "x1y22z333", "٣٤٥ ½ ² Ⅷ ㊿", "hello world",
    "Hello, World!", "hello\nworld", "hello \n\n world\r\n\r\n\tend", "trailing   ", "\n   lead",
    "a\u0301 e\u0301 \u1e9b\u0323 q\u0307\u0323 \u2126 \ufb01", "\u0301alone",
    "한국어 \u1112\u1161\u11ab\u1100\u1173\u11af", "😀😃👩‍👩‍👧🇩🇪👍🏽❤️", "x😀y 😀 z", "\u200b\u200d\ufeff",
    "\x00\x01\x7f", "\u0085\u2028\u2029", "ǅ ʰ ª º", "_under_score_", "...!!!???\n\n--- *** ###",
    "{}[]()<>;:'\"\\/|@#$%^&*~`", "if(x){y=z;}\n\treturn 0;", "zyxwv zyxwvu  zyxwv",
    "¡¢£ Ġ Ċ ĠĠ é", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_start",
    "<|im_end|", "a<|im_end|>b <|im_end|> c", "x <mask>  y", "x<mask>y", "x \n<mask>\t y",
    "<mask><mask>", "  <mask>  ", "pre WORD post", "preWORDpost", "WORD", "WORD,WORD WORDS",
    "caf\u00e9tok cafe\u0301tok", "<tool> a </tool>", "<tool_call>x</tool_call>", "<tool",
    "r:abcdefgh>hgfedcba<eos><pad>", "long" * 200, " " * 300, "ab" * 500 + " " + "9" * 50,
    "\n" * 40 + "x", "é" * 100, "語" * 60, "▁", "▁x ▁ y▁", " ▁ x",
    "<0x0A><0xE4><0xB8><0xAD>", "\u3000 \u00a0", "<bos><eos><unk><pad>", "<s>[INST] hi [/INST]</s>", "[gMASK]<sop>x", "<｜begin▁of▁sentence｜>a<｜end▁of▁sentence｜>",
    "<|begin_of_text|>a<|eot_id|>", "<|endoftext|>a<|endofprompt|>", "<EOT>a<META>",
    "<|startoftext|>a<|return|>", "ﬁ ﬀ ß İ Σς ǅ Ⅷ ①",
    "𝔘𝔫𝔦 \U00031350\U0001fae8\u0cf3",
]

RANGES = [
    *[(0x20, 0x7E)] * 6, (0x09, 0x0D), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x5D0, 0x5EA), (0x621, 0x64A), (0x660, 0x669), (0x905, 0x939),
    (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2150, 0x2188), (0x2190, 0x22FF),
    (0x3041, 0x3096), (0x4E00, 0x4FFF), (0xAC00, 0xAFFF), (0x1F300, 0x1F64F), (0x1D400, 0x1D4FF),
]


def texts(seed):
    rng = random.Random(seed)
    made = list(HAND)
    words = CORPUS.split(" ")
    for _ in range(150):  # what real text looks like
        made.append(" ".join(rng.choice(words) for _ in range(rng.randint(1, 12))))
    for _ in range(200):  # what it does not look like
        pick = lambda: chr(rng.randint(*rng.choice(RANGES)))
        made.append("".join(pick() for _ in range(rng.randint(1, 40))))
    for _ in range(60):  # white space of every kind between short words
        spaces = [" ", "  ", "\n", "\r\n", "\t", " \n", "\u00a0", "\u2003", "\r"]
        short = ["a", "Bc", "1", "23", "'s", ",", "é"]
        made.append("".join(rng.choice(short) + rng.choice(spaces) * rng.randint(0, 3)
                            for _ in range(rng.randint(1, 15))))
    for _ in range(60):  # special tokens anywhere
        parts = ["<|im_end|>", "<|im_start|>", "<mask>", "WORD", "<tool>", " ", "x", "\n", "<",
                 "|>", "é", "1"]
        made.append("".join(rng.choice(parts) for _ in range(rng.randint(1, 14))))
    for _ in range(60):  # bytes read as UTF-8
        noise = bytes(rng.randrange(256) for _ in range(rng.randint(1, 30)))
        made.append(noise.decode("utf-8", "replace"))
    return made


def trained(pre, normalizer=None, vocab_size=700):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False, special_tokens=[]))
    return tok


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_added(tok):
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>",
                            AddedToken("<mask>", lstrip=True, rstrip=True)])
    tok.add_tokens([AddedToken("<tool>", normalized=False),
                    AddedToken("<tool_call>", normalized=False),
                    AddedToken("</tool_call>", normalized=False),
                    AddedToken("WORD", single_word=True, normalized=True),
                    AddedToken("caf\u00e9tok", normalized=True)])
    return tok


def with_unreachable_pieces(tok):
    """Tokens that no merge makes: only ignore_merges finds them."""
    data = json.loads(tok.to_str())
    model = data["model"]
    model["ignore_merges"] = True
    for piece in ["Ġzyxwv", "zyxwv", "ĠHello"]:
        model["vocab"].setdefault(piece, len(model["vocab"]))
    return Tokenizer.from_str(json.dumps(data))


def characters():
    vocab = {"<pad>": 0, "<eos>": 1} | {chr(c): c - 30 for c in range(32, 127)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tok.decoder = decoders.Fuse()
    tok.add_special_tokens(["<pad>", "<eos>"])
    return tok


def with_bytes(tok):
    """A vocabulary of characters with a token for each byte, and an unknown token."""
    data = json.loads(tok.to_str())
    model = data["model"]
    for token in ["<unk>", "<s>"] + [f"<0x{byte:02X}>" for byte in range(256)]:
        model["vocab"].setdefault(token, len(model["vocab"]))
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens(["<unk>", "<s>", "<|im_start|>", "<|im_end|>"])
    return tok


def characters_bpe(normalizer, pre, decoder, vocab_size=500):
    """Without the special tokens in the text: no merge may make one."""
    corpus = CORPUS.replace("<|im_start|>", "").replace("<|im_end|>", "")
    tok = Tokenizer(models.BPE())
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    tok.decoder = decoder
    tok.train_from_iterator(corpus.split("\n"), trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=["<unk>"]))
    return tok


def sentence_pieces():
    """The forms of Llama 2, Mistral and Gemma."""
    space = decoders.Replace("▁", " ")
    decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(),
                                 decoders.Strip(" ", 1, 0)])
    plain = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    to_space = normalizers.Replace(" ", "▁")
    llama2 = with_bytes(characters_bpe(
        normalizers.Sequence([normalizers.Prepend("▁"), to_space]), None, decoder))
    llama2.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", llama2.token_to_id("<s>"))])
    mistral = with_bytes(characters_bpe(None, pre_tokenizers.Metaspace(
        "▁", prepend_scheme="first", split=False), decoder))
    gemma = with_bytes(characters_bpe(to_space, pre_tokenizers.Split(
        " ", "merged_with_previous"), plain))
    return {"llama2": llama2, "mistral": mistral, "gemma": gemma}


def odd_ones():
    """Parts that few models have."""
    unknown = lambda tok: Tokenizer.from_str(json.dumps(
        (d := json.loads(tok.to_str())) | {"model": d["model"] | {
            "unk_token": "<unk>", "fuse_unk": True}}))
    digits, punctuation = pre_tokenizers.Digits, pre_tokenizers.Punctuation
    falcon = trained(pre_tokenizers.Sequence([
        punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    words = unknown(characters_bpe(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(),
                              normalizers.Replace(Regex(r"\s+"), " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), digits(individual_digits=True)]),
        decoders.BPEDecoder(suffix="</w>")))
    behaviors = unknown(characters_bpe(
        normalizers.NFD(),
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"[,.;]"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\p{Lu}"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\d"), "contiguous"),
            pre_tokenizers.Split("e", "removed"), pre_tokenizers.WhitespaceSplit(),
            punctuation("merged_with_next")]),
        decoders.Fuse()))
    spaces = with_bytes(characters_bpe(None, pre_tokenizers.Sequence([
        pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="always")]),
        decoders.Metaspace(prepend_scheme="always")))
    for tok in [words, behaviors]:
        tok.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    spaces.post_processor = processors.RobertaProcessing(
        ("<|im_end|>", spaces.token_to_id("<|im_end|>")),
        ("<|im_start|>", spaces.token_to_id("<|im_start|>")))
    return {"falcon": with_added(falcon), "words": words, "behaviors": behaviors, "spaces": spaces}


def streamed(tok, ids):
    stream = DecodeStream(skip_special_tokens=True)
    return "".join(stream.step(tok, i) or "" for i in ids)


def vectors_of(name, tok, seed, eos):
    encoded, decoded = [], []
    for text in texts(seed):
        ids = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = True  # transformers: split_special_tokens=True
        text_ids = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        has_unknown = name == "characters" and any(ord(c) < 32 or ord(c) > 126 for c in text)
        encoded.append({"text": text, "ids": ids, "text_ids": text_ids,
                        "has_unknown": has_unknown})
        decoded.append(ids)
    streams = [{"ids": ids, "text": streamed(tok, ids)} for ids in decoded[:400]]
    alone, around = tok.encode("x", add_special_tokens=False).ids, tok.encode("x").ids
    begin = next(i for i in range(len(around)) if around[i:i + len(alone)] == alone)
    ends = {"prefix": around[:begin], "suffix": around[begin + len(alone):]}
    rng = random.Random(seed)
    for _ in range(200):  # sequences that no text gives: broken UTF-8 among them
        decoded.append([rng.randrange(tok.get_vocab_size()) for _ in range(rng.randint(1, 12))])
    decoded = [{"ids": ids, "text": tok.decode(ids),
                "all": tok.decode(ids, skip_special_tokens=False)} for ids in decoded]
    unknown = json.loads(tok.to_str())["model"].get("unk_token")
    ends["unknown"] = tok.token_to_id(unknown) if unknown else -1
    return {"vocab_size": max(tok.get_vocab().values()) + 1, "eos": tok.token_to_id(eos),
            "encoded": encoded, "decoded": decoded, "streams": streams, **ends}


def special_of(tok):
    """Any special token, in place of the end."""
    return [t.content for t in tok.get_added_tokens_decoder().values() if t.special][-1]


def main(out, folders):
    if folders:
        for folder in map(pathlib.Path, folders):
            tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
            write(pathlib.Path(out) / folder.name, folder.name, tok, 7, special_of(tok), None)
        return
    byte_level = pre_tokenizers.ByteLevel
    nfc = normalizers.Sequence([normalizers.NFC()])
    tokenizers = {
        "gpt2": with_added(trained(byte_level(add_prefix_space=False))),
        "gpt2_prefix_space": with_added(trained(byte_level(add_prefix_space=True))),
        "qwen3": with_added(trained(split(QWEN), normalizers.NFC())),
        "llama3": with_added(with_unreachable_pieces(trained(split(LLAMA3)))),
        "words_only": with_added(trained(split(WORDS, "removed", True), nfc)),
        "characters": characters(),
    }
    tokenizers["gpt2"].post_processor = processors.ByteLevel(trim_offsets=False)
    start = ("<|im_start|>", tokenizers["llama3"].token_to_id("<|im_start|>"))
    tokenizers["llama3"].post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[start])])
    tokenizers |= sentence_pieces() | odd_ones()
    for seed, (name, tok) in enumerate(tokenizers.items()):
        eos, pad = ("<eos>", "<pad>") if name == "characters" else ("<|im_end|>", None)
        write(pathlib.Path(out) / name, name, tok, seed, eos, pad)
    for seed, path in enumerate(sorted(pathlib.Path(__file__).parent.glob("small/*.json"))):
        tok = Tokenizer.from_file(str(path))
        write(pathlib.Path(out) / f"small_{path.stem}", path.stem, tok, seed, special_of(tok), None)


def write(folder, name, tok, seed, eos, pad):
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"))
    config = {"eos_token": eos, "pad_token": pad}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "vectors.json").write_text(json.dumps(vectors_of(name, tok, seed, eos)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
