"""The sums of the example as an environment of verifiers before 0.4: load_environment()."""

import random
import re

import verifiers as vf
from datasets import Dataset


def load_environment(num_tasks=100, digits=1, source="local"):
    if source != "local":
        from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

        return ReasoningGymEnv(gym=source, num_train_examples=num_tasks, num_eval_examples=8)
    numbers = random.Random(0)
    rows = []
    for _ in range(num_tasks):
        a, b = (numbers.randrange(10**digits) for _ in range(2))
        rows.append({"question": f"{a} + {b} = ", "answer": str(a + b)})

    def correct(completion, answer, **others):
        found = re.findall(r"-?\d+", str(completion[-1]["content"]))
        return 1.0 if found and found[-1] == answer else 0.0

    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[correct]))
