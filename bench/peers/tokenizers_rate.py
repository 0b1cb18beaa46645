"""Tokenises 1 MB with text_bench and with the Python package `tokenizers`, in turns.

    python3 bench/peers/tokenizers_rate.py build/bin/text_bench FOLDER

FOLDER has a tokenizer.json. The text is the pages of docs/, repeated to 1 MB. Both use one thread,
and both must give the same number of tokens. Prints the medians of five rounds.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 5
BYTES = 1_000_000


def the_text():
    pages = sorted((pathlib.Path(__file__).parents[2] / "docs").rglob("*.md"))
    text = "".join(page.read_text() for page in pages)
    while len(text.encode()) < BYTES:
        text += text
    return text.encode()[:BYTES].decode(errors="ignore")


def time_of_program(program, folder, file):
    environment = dict(os.environ, PRIMERL_BENCH_MODEL=folder, PRIMERL_BENCH_TEXT=file)
    out = subprocess.run(
        [program, "--benchmark_filter=^tokenize$", "--benchmark_format=json"],
        env=environment, capture_output=True, text=True, check=True).stdout
    run = json.loads(out)["benchmarks"][0]
    if "error_message" in run:
        sys.exit(run["error_message"])
    return run["cpu_time"], int(run["tokens"])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1:]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    import tokenizers

    text = the_text()
    peer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    times = {"primerl-graph": [], "tokenizers": []}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        for _ in range(ROUNDS):
            spent, count = time_of_program(program, folder, file.name)
            times["primerl-graph"].append(spent)
            began = time.process_time()
            ids = peer.encode(text, add_special_tokens=False).ids
            times["tokenizers"].append((time.process_time() - began) * 1000)
            if len(ids) != count:
                sys.exit(f"{count} tokens, but tokenizers {tokenizers.__version__} gives {len(ids)}")
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, spent in medians.items():
        print(f"{name:14} {spent:8.1f} ms CPU for {len(text.encode())} bytes, {count} tokens")
    print(f"ratio          {medians['primerl-graph'] / medians['tokenizers']:8.2f}")


if __name__ == "__main__":
    main()
