"""Normal forms, lower case and words by the `tokenizers` package, of every character.

    python make_normal_forms.py OUT   writes these files:

forms.json   {"NFC": [[text, normal form], ...], ...}: the texts that a form changes. The texts are
             each character alone, each between two marks of other classes, and each pair of
             characters that one character decomposes into.
lower.json   [[character, lower case], ...] where they differ
words.json   the characters beside which an added token with single_word is not found
"""
import json
import pathlib
import sys
import unicodedata

from tokenizers import AddedToken, Tokenizer, models, normalizers

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def texts():
    yield from CHARACTERS
    for c in CHARACTERS:
        yield f"a\u0315{c}\u0327b"
    # The pairs that Unicode 14 composes, and one of a newer Unicode.
    yield "\U000105D2\u0307"
    for c in CHARACTERS:
        parts = unicodedata.decomposition(c).split()
        if len(parts) == 2 and parts[0][0] != "<":
            yield "".join(chr(int(part, 16)) for part in parts)


def main(out):
    forms = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(),
             "NFKD": normalizers.NFKD()}
    changed = {name: [[text, made] for text in texts()
                      if (made := form.normalize_str(text)) != text]
               for name, form in forms.items()}
    (out / "forms.json").write_text(json.dumps(changed))
    lower = normalizers.Lowercase()
    (out / "lower.json").write_text(json.dumps(
        [[c, made] for c in CHARACTERS if (made := lower.normalize_str(c)) != c]))
    tok = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tok.add_tokens([AddedToken("WORD", single_word=True)])
    pieces = tok.encode_batch([c + "WORD" for c in CHARACTERS])
    (out / "words.json").write_text(json.dumps(
        [ord(c) for c, piece in zip(CHARACTERS, pieces) if 1 not in piece.ids]))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
