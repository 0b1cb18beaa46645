#!/usr/bin/env python3
"""count_words.py [--update]: how often the tree still has each old word of docs/design/words.md.

A row of the page's first table is `| old words | where | plain word | sense | places |`. Old words
are code spans: case counts, `*` stands for any letters of one identifier, and a space for any
white space. "Where" is `all`, or code spans with the beginnings of paths. Prints one line a row
whose number has changed, and the sum. --update writes the numbers of today into the page.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/design/words.md"
SOURCES = re.compile(r"\.(h|cc|cu|cuh|py|sh|cmake|toml|md)$|(^|/)CMakeLists\.txt$")
SKIPPED = ("CHANGELOG.md", "docs/bench/", "docs/design/words.md", "scripts/count_words.py")
SPAN = re.compile(r"`([^`]+)`")


def sources():
    """The text of every source and page that git tracks, by path."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [name for name in names
             if SOURCES.search(name) and not name.startswith(SKIPPED) and "/golden/" not in name]
    return {path: (ROOT / path).read_text("utf-8", "replace")
            for path in paths if (ROOT / path).is_file()}


def pattern_of(word):
    text = re.escape(word).replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
    return re.compile(rf"(?<!\w){text}(?!\w)")


def count(words, where, files):
    patterns = [pattern_of(word) for word in words]
    return sum(len(pattern.findall(text)) for pattern in patterns for path, text in files.items()
               if not where or path.startswith(tuple(where)))


def main():
    is_update = "--update" in sys.argv[1:]
    files, lines, before, now = sources(), [], 0, 0
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        cells = line.split(" | ")
        if len(cells) == 5 and line.startswith("| `"):
            old, where, _, _, places = cells
            found = count(SPAN.findall(old), SPAN.findall(where), files)
            written = int(places.rstrip(" |"))
            if found != written and not is_update:
                print(f"{PAGE.name}:{number}: {', '.join(SPAN.findall(old))}: {written} -> {found}")
            before, now = before + written, now + found
            line = " | ".join([*cells[:4], f"{found} |"])
        lines.append(line)
    if is_update:
        PAGE.write_text("\n".join(lines) + "\n")
    print(f"{now} places ({before} when the page was written)")


main()
