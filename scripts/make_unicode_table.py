"""Writes kernels/text/newer_characters.cc: the characters that Unicode got after version 14, and
the numbers and punctuation of the `tokenizers` package.

    python scripts/make_unicode_table.py

PCRE2 of Debian 12 knows Unicode 14, the `tokenizers` package knows 16. Needs a Python with Unicode
14 (3.11) and that package; it asks the package for each class.
"""
import pathlib
import unicodedata

from tokenizers import Regex, pre_tokenizers

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


def table(name, split):
    """The characters that `split` isolates: every other piece, since U+0000 is not among them."""
    pieces = [(CHARACTERS[begin], CHARACTERS[end - 1]) for _, (begin, end) in
              split.pre_tokenize_str(TEXT)][1::2]
    rows, line = [], "   "
    for first, last in pieces:
        item = " {0x%X, 0x%X}," % (first, last)
        if len(line) + len(item) > 100:
            rows.append(line)
            line = "   "
        line += item
    text = "\n".join(rows + [line])
    return f"constexpr std::array<CharacterRange, {len(pieces)}> {name} = {{{{\n{text}\n}}}};\n"


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

{table("kNumbers", pre_tokenizers.Digits(individual_digits=False))}
{table("kPunctuation", pre_tokenizers.Punctuation("contiguous"))}
}}  // namespace

std::span<const NewerCharacters> newer_characters() {{ return kNewer; }}
std::span<const CharacterRange> number_ranges() {{ return kNumbers; }}
std::span<const CharacterRange> punctuation_ranges() {{ return kPunctuation; }}

}}  // namespace primerl
''')


if __name__ == "__main__":
    main()
