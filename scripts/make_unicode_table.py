"""Writes kernels/text/newer_characters.cc: the characters that Unicode got after version 14, and
how the `tokenizers` package classifies, normalizes and lowers characters.

    python scripts/make_unicode_table.py

PCRE2 of Debian 12 knows Unicode 14, utf8proc 15; the `tokenizers` package knows 16 in patterns and
9 in normal forms. Needs a Python with Unicode 14 (3.11), that package, and the package unicodedata2
(18.0.0). It asks `tokenizers` about each character.
"""
import pathlib
import unicodedata

import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
SCRIPTS = """Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Ethiopic Georgian Greek
Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam
Mongolian Myanmar Oriya Sinhala Syriac Tamil Telugu Thai Tibetan"""
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CHARACTERS))


def members(name):
    split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed", invert=True)
    return {CHARACTERS[i] for _, (begin, end) in split.pre_tokenize_str(TEXT)
            for i in range(begin, end)}


def isolated(split):
    """The ranges that `split` isolates: every other piece, since U+0000 is not among them."""
    return [(CHARACTERS[begin], CHARACTERS[end - 1]) for _, (begin, end) in
            split.pre_tokenize_str(TEXT)][1::2]


def ranges_of(characters):
    ranges = []
    for c in characters:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def table(name, ranges, kind="CharacterRange"):
    rows, line = [], "   "
    for values in ranges:
        item = " {0x%X, 0x%X%s}," % (*values[:2], "".join(f", {v}" for v in values[2:]))
        if len(line) + len(item) > 100:
            rows.append(line)
            line = "   "
        line += item
    text = "\n".join(rows + [line])
    return f"constexpr std::array<{kind}, {len(ranges)}> {name} = {{{{\n{text}\n}}}};\n"


def unnormalized():
    """Characters without a normal form in `tokenizers`, though a newer Unicode has one. For every
    other character the two agree, alone and between marks of other classes."""
    forms = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(),
             "NFKD": normalizers.NFKD()}
    found = []
    for c in CHARACTERS:
        for name, form in forms.items():
            texts = [chr(c), f"a\u0315{chr(c)}\u0327b"]
            if [form.normalize_str(t) for t in texts] == \
                    [unicodedata2.normalize(name, t) for t in texts]:
                continue
            assert [form.normalize_str(t) for t in texts] == texts, hex(c)
            found.append(c)
            break
    # Also the first of two characters that only a newer Unicode composes.
    parts = [unicodedata2.decomposition(chr(c)).split() for c in CHARACTERS]
    pairs = [chr(int(p[0], 16)) + chr(int(p[1], 16)) for p in parts
             if len(p) == 2 and p[0][0] != "<"]
    found += [ord(pair[0]) for pair in pairs
              if forms["NFC"].normalize_str(pair) != unicodedata2.normalize("NFC", pair)]
    for c in found:
        assert all(form.normalize_str(chr(c)) == chr(c) for form in forms.values()), hex(c)
    return ranges_of(sorted(set(found)))


def more_words():
    """Characters of words (an added token with single_word is not found beside them) whose category
    in Unicode 14 is not that of a letter, mark, digit or connector."""
    tok = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tok.add_tokens([AddedToken("WORD", single_word=True)])
    known = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
    texts = tok.encode_batch([chr(c) + "WORD" for c in CHARACTERS])
    return ranges_of(c for c, ids in zip(CHARACTERS, texts) if 1 not in ids.ids
                     and unicodedata.category(chr(c)) not in known)


def newer_capitals():
    """(first, last, distance) of characters that have a lower case since Unicode 15."""
    lower, rows = normalizers.Lowercase(), []
    for c in CHARACTERS:
        small = lower.normalize_str(chr(c))
        if c == 0x130 or small == chr(c).lower():
            continue
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == ord(small) - c:
            rows[-1][1] = c
        else:
            rows.append([c, c, ord(small) - c])
    return rows


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    category = {c: name for name in CATEGORIES.split() for c in members(name)}
    script = {c: name for name in SCRIPTS.split() for c in members(name)}
    alphabetic, lower, upper = members("Alphabetic"), members("Lowercase"), members("Uppercase")
    rows = []
    for c in CHARACTERS:
        if unicodedata.category(chr(c)) != "Cn" or c not in category:
            continue
        kind = (category[c], c in alphabetic, c in lower, c in upper, script.get(c, ""))
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == kind:
            rows[-1][1] = c
        else:
            rows.append([c, c, kind])
    flag = {True: "true", False: "false"}
    lines = ["    {0x%X, 0x%X, \"%s\", %s, %s, %s, \"%s\"},\n" % (
        first, last, kind[0], *[flag[k] for k in kind[1:4]], kind[4])
        for first, last, kind in rows]
    path = pathlib.Path(__file__).parent.parent / "kernels" / "text" / "newer_characters.cc"
    path.write_text(f'''// Written by scripts/make_unicode_table.py; not edited by hand.
#include "kernels/text/newer_characters.h"

#include <array>

namespace primerl {{
namespace {{

constexpr std::array<NewerCharacters, {len(rows)}> kNewer = {{{{
{"".join(lines)}}}}};

{table("kNumbers", isolated(pre_tokenizers.Digits(individual_digits=False)))}
{table("kPunctuation", isolated(pre_tokenizers.Punctuation("contiguous")))}
{table("kUnnormalized", unnormalized())}
{table("kMoreWords", more_words())}
{table("kNewerCapitals", newer_capitals(), "Capitals")}
}}  // namespace

std::span<const NewerCharacters> newer_characters() {{ return kNewer; }}
std::span<const CharacterRange> number_ranges() {{ return kNumbers; }}
std::span<const CharacterRange> punctuation_ranges() {{ return kPunctuation; }}
std::span<const CharacterRange> unnormalized_ranges() {{ return kUnnormalized; }}
std::span<const CharacterRange> more_word_ranges() {{ return kMoreWords; }}
std::span<const Capitals> newer_capitals() {{ return kNewerCapitals; }}

}}  // namespace primerl
''')


if __name__ == "__main__":
    main()
