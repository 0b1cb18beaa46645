"""follow_guide.py GUIDE TREE WORK PYTHON: does in WORK, a copy of TREE, what the text GUIDE says.

GUIDE is a path in the tree. Its marked code blocks are followed from top to bottom:
    <!-- file: PATH -->   the file is written
    <!-- edit: PATH -->   lines with '+' are added to the file, lines with '-' taken out, at the one
                          place where the others stand as they do in the block; '@@' parts two places
    <!-- do -->           the commands are run, in bash, in the copy
The first step that fails ends it, with the line of the text. Commands find the compiler's cache and
the Python of the tree; nothing is installed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys


def blocks_of(text):
    """(line number, marker, lines) of every code block under a marker."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        marker = re.fullmatch(r"<!-- ((?:file|edit): \S+|do) -->", line)
        if not marker:
            continue
        if not lines[number + 1].startswith("```"):
            raise ValueError(f"{number + 1}: no code block under '{line}'")
        yield number + 1, marker[1], lines[number + 2:lines.index("```", number + 2)]


def edited(text, block):
    lines = text.splitlines()
    for part in "\n".join(block).split("\n@@\n"):
        part = part.splitlines()
        if any(line[:1] not in ("+", "-", " ") for line in part):
            raise ValueError("a line of an edit starts with '+', '-' or a space")
        old = [line[1:] for line in part if line[0] != "+"]
        new = [line[1:] for line in part if line[0] != "-"]
        places = [i for i in range(len(lines)) if lines[i:i + len(old)] == old]
        if len(places) != 1:
            raise ValueError(f"found in {len(places)} places, not 1:\n" + "\n".join(old))
        lines[places[0]:places[0] + len(old)] = new
    return "\n".join(lines) + "\n"


def copy_tree(tree, work):
    """All but what is built, and the environment, which is shared."""
    left_out = shutil.ignore_patterns("build", "build-*", ".venv", ".git", ".ccache", "runs",
                                      "__pycache__")
    shutil.copytree(tree, work, ignore=left_out, symlinks=True, dirs_exist_ok=True)


def environment_of(work, python):
    known = dict(os.environ)
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PRIMERL_PYTHON", "PRIMERL_UPDATE_GOLDEN"):
        known.pop(name, None)
    # Where no locale is set Python sets this one, with which ccache finds nothing again.
    if known.get("LC_CTYPE") == "C.UTF-8" and "LANG" not in known and "LC_ALL" not in known:
        known.pop("LC_CTYPE")
    home = python.parent.parent
    if not (home / "pyvenv.cfg").exists():
        sys.exit(f"{python} is in no virtual environment: `make setup` makes one")
    (work / ".venv").symlink_to(home)
    known.update(CCACHE_BASEDIR=str(work), CCACHE_NOHASHDIR="1", PRIMERL_OFFLINE="1")
    return known


def follow(guide, tree, work, python):
    copy_tree(tree, work)
    known = environment_of(work, python)
    num_steps = 0
    for number, marker, block in blocks_of((tree / guide).read_text()):
        what, _, path = marker.partition(": ")
        try:
            if what == "do":
                subprocess.run(["bash", "-euxo", "pipefail", "-c", "\n".join(block)], cwd=work,
                               env=known, stdin=subprocess.DEVNULL, check=True)
            elif what == "file":
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_text("\n".join(block) + "\n")
            else:
                (work / path).write_text(edited((work / path).read_text(), block))
        except (ValueError, subprocess.CalledProcessError) as fault:
            sys.exit(f"{guide}:{number}: '{marker}': {fault}")
        num_steps += 1
    if num_steps == 0:
        sys.exit(f"{guide}: no block is marked")
    print(f"followed {num_steps} steps")


if __name__ == "__main__":
    guide, tree, work, python = sys.argv[1:]
    # Not resolved: in a virtual environment python itself is a link.
    follow(guide, pathlib.Path(tree), pathlib.Path(work), pathlib.Path(python))
