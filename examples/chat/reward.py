"""The reward of one answer: 1 for the right number, at most half for more words than needed."""
import re


def reward(completion, answer):
    numbers = re.findall(r"-?\d+", completion)
    if not numbers or numbers[-1] != answer:
        return 0.0
    return 1.0 if len(completion) <= 40 else 0.5
