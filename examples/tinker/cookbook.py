#!/usr/bin/env python3
"""Runs a loop of tinker-cookbook, unchanged, against examples/tinker/graph.toml.

    pip install "tinker-cookbook[math-rl]==0.6.1"
    primerl-graph run examples/tinker/graph.toml &
    python examples/tinker/cookbook.py sl_loop batch_size=8
    python examples/tinker/cookbook.py rl_loop batch_size=4 max_tokens=8 loss_fn=importance_sampling

It registers a tokenizer, and serves two local files as the data sets. The server sees token ids
alone, so the tokenizer may have words where the model had characters.
"""

import importlib
import json
import os
import pathlib
import sys

os.environ.setdefault("TINKER_BASE_URL", "http://127.0.0.1:8000")
os.environ.setdefault("TINKER_API_KEY", "tml-local")  # any key, unless the listener has a keys_file
os.environ.setdefault("TINKER_TELEMETRY", "0")

import chz
import datasets
import transformers
from tinker_cookbook import tokenizer_utils

MODEL = "Qwen/Qwen3-8B-Base"  # `served_as` of the model
FILES = {"HuggingFaceH4/no_robots": "conversations.jsonl", "openai/gsm8k": "sums.jsonl"}
HERE = pathlib.Path(__file__).parent


def load_dataset(name, *_):
    rows = [json.loads(line) for line in (HERE / FILES[name]).read_text().splitlines()]
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})


datasets.load_dataset = load_dataset
tokenizer_utils.register_tokenizer(MODEL, lambda: transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(HERE / "words.json"), eos_token="<eos>", unk_token="<unk>"))
loop = importlib.import_module("tinker_cookbook.recipes." + sys.argv[1])
chz.nested_entrypoint(loop.main, argv=[f"model_name={MODEL}", "lora_rank=8", *sys.argv[2:]])
