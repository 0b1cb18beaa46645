#!/usr/bin/env python3
"""bench_page.py [--check] [ROOT]: renders docs/bench/README.md from docs/bench/results/*.json.

--check compares instead of writing, and exits with 1 where the page is not what the files say.
ROOT is the tree with docs/; by default the one of this script.

One file holds one run of one benchmark:

  part     heading of the page under which it stands, one of PARTS
  title    heading of its table
  bench    the program or script that measures it
  about    what was measured, in one to four sentences (optional)
  machine  the machine's line
  date     of the run, or of the commit that recorded it: "2026-11-25"
  commit   measured, or the one that recorded the figures
  rows     name, value, unit; optional: spread [least, most], target, better ("higher" or "lower";
           needed beside a target), peer {name, value, spread, target}, bound, note

A peer is measured in the same run; its target is the number of times that ours must be better.
Every other number has the row's unit.
"""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
PARTS = ["Training runs", "Runtime", "Recovery and replay", "Kernels on the CPU", "CUDA devices"]
HEAD_KEYS = {"part", "title", "bench", "machine", "date", "commit", "rows"}
ROW_KEYS = {"name", "value", "unit", "spread", "target", "better", "peer", "bound", "note"}
MISSED = ", **missed**"
OPENING = """# Benchmarks

<!-- Written by scripts/bench_page.py from docs/bench/results/*.json. Change those files. -->

Each table is one run of one benchmark, with its machine, its date and the commit that recorded it.
A row from another run says so. Values are medians unless the table says otherwise, and brackets
hold the least and the most. "Peer" was measured in the same run; its ratio is how many times better
ours is. A target that is not reached is marked **missed**.
Older figures, and what was tried and dropped, are in the git history of this page.

`make bench` runs the programs of the CPU. `scripts/bench_page.py` has the format of the files.
"""


def refuse(path, why):
    sys.exit(f"{path}: {why}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_row(path, row):
    name = row.get("name", "a row without a name")
    if unknown := set(row) - ROW_KEYS:
        refuse(path, f"'{name}' has unknown keys: {', '.join(sorted(unknown))}")
    if not (row.get("name") and row.get("unit") and is_number(row.get("value"))):
        refuse(path, f"'{name}' needs a name, a unit and a value that is a number")
    if row.get("better", "higher") not in ("higher", "lower"):
        refuse(path, f"'{name}': better is 'higher' or 'lower'")
    if ("target" in row or "target" in row.get("peer", {})) and "better" not in row:
        refuse(path, f"'{name}' has a target and does not say whether higher or lower is better")
    for spread in (row.get("spread"), row.get("peer", {}).get("spread")):
        if spread and (len(spread) != 2 or spread[0] > spread[1]):
            refuse(path, f"'{name}': a spread is [least, most]")


def read_results(folder):
    """All files, in the order of the page: by part, then by file name."""
    found = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        if missing := HEAD_KEYS - set(data):
            refuse(path, f"lacks {', '.join(sorted(missing))}")
        if data["part"] not in PARTS:
            refuse(path, f"part is '{data['part']}', not one of {', '.join(PARTS)}")
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", data["date"]):
            refuse(path, f"date is '{data['date']}', not like 2026-11-25")
        if not data["rows"]:
            refuse(path, "has no rows")
        for row in data["rows"]:
            check_row(path, row)
        found.append(data)
    return found


def number(value):
    """Four digits and more get separators: 41,797; small ones stay as written: 0.05."""
    return f"{value:,}" if abs(value) >= 1e-3 or value == 0 else f"{value:g}"


def with_spread(value, spread):
    return number(value) + (f" [{number(spread[0])}, {number(spread[1])}]" if spread else "")


def target_of(row):
    if "target" not in row:
        return ""
    ahead = row["value"] - row["target"]
    wins = ahead >= 0 if row["better"] == "higher" else ahead <= 0
    return number(row["target"]) + ("" if wins else MISSED)


def peer_of(row):
    peer = row.get("peer")
    if not peer:
        return ""
    text = f"{peer['name']} {with_spread(peer['value'], peer.get('spread'))}"
    if "better" not in row or not row["value"] or not peer["value"]:
        return text
    ratio = row["value"] / peer["value"]
    ratio = ratio if row["better"] == "higher" else 1 / ratio
    text += f": {ratio:.3g} times"
    if "target" in peer:
        text += f" (target {number(peer['target'])})" + ("" if ratio >= peer["target"] else MISSED)
    return text


COLUMNS = [
    ("What", lambda row: row["name"]),
    ("Measured", lambda row: f"{with_spread(row['value'], row.get('spread'))} {row['unit']}"),
    ("Target", target_of),
    ("Peer", peer_of),
    ("Bound", lambda row: number(row["bound"]) if "bound" in row else ""),
    ("Note", lambda row: row.get("note", "")),
]


def table_of(rows):
    """Columns that no row fills are left out."""
    columns = [(title, cell) for title, cell in COLUMNS if any(cell(row) for row in rows)]
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row) for _, cell in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def render(results):
    page = OPENING
    for part in PARTS:
        page += f"\n## {part}\n"
        for data in (each for each in results if each["part"] == part):
            page += f"\n### {data['title']}\n\n"
            page += f"{data['about']}\n\n" if data.get("about") else ""
            origin = [f"`{data['bench']}`", data["machine"], data["date"], data["commit"]]
            page += " · ".join(origin) + "\n\n"
            page += table_of(data["rows"])
    return page


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    root = pathlib.Path(words[0]) if words else HERE
    target = root / "docs/bench/README.md"
    page = render(read_results(root / "docs/bench/results"))
    if "--check" not in sys.argv[1:]:
        target.write_text(page)
    elif target.read_text() != page:
        sys.exit(f"{target} is not what docs/bench/results/*.json say: run scripts/bench_page.py")


main()
