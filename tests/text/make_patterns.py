"""Matches of the `tokenizers` package: expressions on texts, and classes on all characters.

    python make_patterns.py OUT

Writes OUT/patterns.json. Everything is seeded.
"""
import json
import pathlib
import random
import sys

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?"
REAL = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    CONTRACTIONS + "|" + WORD
    + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    WORD + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?|"
    + WORD + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+|" + WORD + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}", "[0-9][0-9][0-9]", r"[^(\s|[.,!?…。，、।۔،])]+", r"\s?\p{L}+", r"\s?\p{P}+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+", r"[\r\n]", "[^\\s]+|\\s{4}", r"\d{1,3}(?=(?:\d{3})*\b)",
]
ATOMS = [
    "a", "b", "é", "中", "A", " ", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\h", r"\H", ".",
    "[abc]", "[^abc]", "[a-f&&[^cd]]", r"[\w&&[^\d]]", r"[^\w&&\d]", "[[:alpha:]]",
    r"[[:^alpha:]\d]", r"[^\W_]", r"\p{L}", r"\P{L}", r"\p{^Lu}", r"[\p{L}\p{M}]", r"[^\P{N}a]",
    r"\p{Han}", r"\p{Alpha}", r"\x41", r"\x{4e2d}", r"\u4e2d", r"\n", r"\t", r"\R", r"\N", r"\O",
    "[-a]", "[a-]", "[]a]", r"[a\-c]", r"\.", "[a[bc]]", "[a-c[x-z]&&[b-y]]", r"[\s\S]", "[あ-ん]",
    r"[^\p{L}\p{N}\s]", r"\p{Upper}", r"\p{punctuation}", "[^-a]", r"[\]\[]", "{", "}", "]", "-",
]
ZERO = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", "(?=a)", "(?!a)", "(?<=a)", "(?<!b)"]
REPEATS = [""] * 6 + ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?", "??", "*+", "++",
                      "?+", "{1,2}+", "{2}?", "{1,2}?", "{2}{2}", "{a}"]
GROUPS = ["(%s)", "(?:%s)", "(?:%s|b)", "(?i:%s)", "(?>%s)", "(?<name>%s)", "(?m:%s)", "(?i-m:%s)",
          "(?=%s).", "(?!%s).", "(?:%s(?i)b|A)", "(?#note)%s", "(%s)\\1"]
TEXTS = [
    "", "a", "ab abc  aabb\nabab AB\r\nbA", "a\nb\n\nc\n", "x1 y22 z333 4444",
    "é中文あん Ａé e\u0301", "don't WE'LL it's 'S", "__a_b-c.d[e]f{g}h",
    "  \t \u00a0\u3000 \u180e\u2028x", "\n", "\na", "a\n",
    "KkK ſs Åå ΣσςǅǄ", "١٢٣ ½ Ⅷ ² ㊿", "中b 中中 ab中", "\r\n\r\r\n\u0085\u2029", "ff00 FFz 0x1G",
    "\U0001f600\U0001f8b2\U00031350\u0897", "aaaa{2}a{a}", "]a[-b-]", "\u200ca\u200db _c",
]
CLASSES = (
    ["\\p{%s}" % name for name in (
        "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C "
        "Cc Cf Co Cn Letter Uppercase_Letter Alphabetic Lowercase White_Space Any ASCII "
        "Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Ethiopic Georgian Greek "
        "Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin "
        "Malayalam Mongolian Myanmar Oriya Sinhala Syriac Tamil Telugu Thai Tibetan").split()]
    + ["[[:%s:]]" % name for name in
       "alnum alpha ascii blank cntrl digit lower space upper word xdigit".split()]
    + [r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\h", r"\H", ".", r"[\p{L}&&[^\p{Han}]]",
       r"[^\s\p{L}\p{N}]", r"\P{L}", r"\p{^C}"])


def made(rng):
    def one(depth):
        parts = []
        for _ in range(rng.randint(1, 3)):
            if depth > 0 and rng.random() < 0.35:
                part = rng.choice(GROUPS) % one(depth - 1)
            elif rng.random() < 0.12:
                parts.append(rng.choice(ZERO))
                continue
            else:
                part = rng.choice(ATOMS)
            parts.append(part + rng.choice(REPEATS))
        return "".join(parts)
    return "|".join(one(2) for _ in range(rng.randint(1, 2)))


def matches(pattern, text):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [list(span) for _, span in split.pre_tokenize_str(text)]


def ranges(characters, split):
    text = "".join(map(chr, characters))
    return [[characters[begin], characters[end - 1]] for _, (begin, end) in
            split.pre_tokenize_str(text)]


def main(out):
    rng = random.Random(11)
    patterns = list(REAL)
    while len(patterns) < 420:
        pattern = made(rng)
        try:
            Regex(pattern)
        except Exception:
            continue
        patterns.append(pattern)
    # All assigned characters but those for private use.
    characters = [c for c in [*range(0x33480), *range(0xE0000, 0xE01F0)]
                  if not 0xD800 <= c < 0xF900]
    classes = [{"class": name, "ranges": ranges(characters, pre_tokenizers.Split(
        Regex(name + "+"), "removed", invert=True))} for name in CLASSES]
    data = {
        "patterns": [{"pattern": p, "matches": [matches(p, t) for t in TEXTS]} for p in patterns],
        "texts": TEXTS, "classes": classes, "characters": [[0, 0xD7FF], [0xF900, 0x3347F],
                                                           [0xE0000, 0xE01EF]],
        "digits": ranges(characters, pre_tokenizers.Digits(individual_digits=False)),
        "punctuation": ranges(characters, pre_tokenizers.Punctuation("contiguous")),
        "not_space": ranges(characters, pre_tokenizers.WhitespaceSplit()),
    }
    path = pathlib.Path(out)
    path.mkdir(parents=True, exist_ok=True)
    (path / "patterns.json").write_text(json.dumps(data))


if __name__ == "__main__":
    main(sys.argv[1])
