#!/usr/bin/env python3
"""count_words.py [--check | --update]: how often the tree has each old word of docs/design/words.md.

A row of the page's first table is `| old words | where | plain word | sense | places |`. Old words
are code spans: case counts, `*` stands for any letters of one identifier, and a space for any
white space. "Where" is `all`, or code spans with the beginnings of paths. Prints one line a row
whose number has changed, and the sum. --update writes the numbers of today into the page. --check
exits with 1 if a number is greater than in the page: an old word was written again.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/design/words.md"
SOURCES = re.compile(r"\.(h|cc|cu|cuh|py|sh|cmake|toml|md)$|(^|/)CMakeLists\.txt$")
SKIPPED = ("CHANGELOG.md", "docs/bench/", "docs/design/words.md", "scripts/count_words.py")
SPAN = re.compile(r"`([^`]+)`")


class Text:
    """One source or page: how often it has each identifier, and its words with single spaces."""

    def __init__(self, path, text):
        self.path = path
        self.identifiers = collections.Counter(re.findall(r"\w+", text))
        self.line = " ".join(text.split())

    def count(self, word):
        if " " in word:  # most texts have no such phrase, which a plain search tells faster
            phrase = rf"(?<!\w){re.escape(word)}(?!\w)"
            return len(re.findall(phrase, self.line)) if word in self.line else 0
        if "*" not in word:
            return self.identifiers[word]
        pattern = re.compile(re.escape(word).replace(r"\*", r"\w*"))
        return sum(n for name, n in self.identifiers.items() if pattern.fullmatch(name))


def sources():
    """Every source and page that git tracks."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [name for name in names
             if SOURCES.search(name) and not name.startswith(SKIPPED) and "/golden/" not in name]
    return [Text(path, (ROOT / path).read_text("utf-8", "replace"))
            for path in paths if (ROOT / path).is_file()]


def count(words, where, texts):
    return sum(text.count(word) for text in texts for word in words
               if not where or text.path.startswith(tuple(where)))


def main():
    is_update, is_check = "--update" in sys.argv[1:], "--check" in sys.argv[1:]
    texts, lines, before, now, has_more = sources(), [], 0, 0, False
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        cells = line.split(" | ")
        if len(cells) == 5 and line.startswith("| `"):
            old, where, _, _, places = cells
            found = count(SPAN.findall(old), SPAN.findall(where), texts)
            written = int(places.rstrip(" |"))
            has_more |= found > written
            if found > written or (found != written and not is_update and not is_check):
                print(f"{PAGE.name}:{number}: {', '.join(SPAN.findall(old))}: {written} -> {found}")
            before, now = before + written, now + found
            line = " | ".join([*cells[:4], f"{found} |"])
        lines.append(line)
    if is_update:
        PAGE.write_text("\n".join(lines) + "\n")
    print(f"{now} places ({before} when the page was written)")
    if is_check and has_more:
        sys.exit("write the word of the column 'Write instead'")


main()
