"""The environment "skyrl_gym": worker.py runs it. The rows of a JSONL file, in an environment of
SkyRL-Gym.

Options: id (of skyrl_gym.make; a row's `env_class` comes first), file (rows as SkyRL has them:
`prompt`, `env_class`, `reward_spec`, ...), config (a JSON object, the env_config), max_turns (0: as
the row or the environment says), environments (a Python file that registers environments of your
own), shuffle, eval_file (the rows of evaluations; without it they are those of file, in its order).

A rollout's reward is the sum of the rewards of its turns. `postprocessed_action` is not used:
sampled tokens are never changed.
"""

import copy
import json
import random

import skyrl_gym
from omegaconf import OmegaConf

from __main__ import load, options

if options.get("environments"):
    load(options["environments"], "environments")
config = OmegaConf.create(json.loads(options.get("config") or "{}"))


def read_rows(path):
    rows = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as why:
                raise ValueError(f"{path}:{number}: {why}") from None
            if not isinstance(row, dict):
                raise TypeError(f"{path}:{number}: a row is an object")
            prompt = row.get("prompt")
            if not isinstance(prompt, (str, list)) or not prompt:
                raise TypeError(f"{path}:{number}: 'prompt' is a text or a list of messages")
            if not row.get("env_class") and not options.get("id"):
                raise ValueError(f"{path}:{number}: no 'env_class', and the option 'id' is not set")
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


rows = read_rows(options["file"])
eval_file = options.get("eval_file") or options["file"]
eval_rows = read_rows(eval_file) if options.get("eval_file") else rows
orders = {}  # of the rows, by epoch; the last two are kept


def row_of(ordinal):
    epoch, index = divmod(ordinal, len(rows))
    if not options.get("shuffle", True):
        return rows[index]
    if epoch not in orders:
        while len(orders) > 1:
            del orders[min(orders)]
        orders[epoch] = list(range(len(rows)))
        random.Random(epoch).shuffle(orders[epoch])
    return rows[orders[epoch][index]]


def evaluation_row(row):
    if row >= len(eval_rows):
        raise IndexError(f"{eval_file} has {len(eval_rows)} rows, row {row} was asked for")
    return eval_rows[row]


def make(row):
    extras = {key: value for key, value in copy.deepcopy(row).items() if key != "prompt"}
    if options.get("max_turns"):
        extras["max_turns"] = options["max_turns"]
    name = extras.pop("env_class", None) or options["id"]
    return skyrl_gym.make(name, env_config=config, extras=extras)


make(rows[0]).close()  # a fault of the first row is found before the first call


def texts(messages):
    return "\n".join(message["content"] for message in messages)


class Environment:
    def __init__(self, ordinal, seed, evaluation):
        self.row = evaluation_row(ordinal) if evaluation else row_of(ordinal)
        random.seed(seed)
        self.env = make(self.row)
        self.is_text = isinstance(self.row["prompt"], str)
        self.total = 0.0

    def task(self):
        prompt = copy.deepcopy(self.row["prompt"])
        if self.is_text:
            prompt = [{"role": "user", "content": prompt}]
        messages, _ = self.env.init(prompt)
        return texts(messages) if self.is_text else {"messages": messages}

    def step(self, action):
        output = self.env.step(action)
        self.total += float(output["reward"])
        if output["done"]:
            return {"reward": self.total}
        if self.is_text:
            return texts(output["observations"])
        return {"messages": output["observations"]}

    def close(self):
        self.env.close()
