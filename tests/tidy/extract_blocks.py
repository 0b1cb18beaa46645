"""extract_blocks.py MARKDOWN FOLDER: writes each code block under a `<!-- file: PATH -->` line to
FOLDER/PATH, with a #line directive so that compiler errors point into the document."""
import pathlib
import re
import sys

markdown, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
lines = markdown.read_text().splitlines()
found = 0
for number, line in enumerate(lines):
    marker = re.fullmatch(r"<!-- file: (\S+) -->", line)
    if not marker:
        continue
    start = number + 2
    if not lines[number + 1].startswith("```"):
        sys.exit(f"{markdown}:{number + 2}: no code block under '{line}'")
    end = lines.index("```", start)
    target = folder / marker[1]
    target.parent.mkdir(parents=True, exist_ok=True)
    text = f'#line {start + 1} "{markdown}"\n' + "\n".join(lines[start:end]) + "\n"
    if not target.exists() or target.read_text() != text:
        target.write_text(text)
    found += 1
if not found:
    sys.exit(f"{markdown}: no code block is marked with <!-- file: PATH -->")
