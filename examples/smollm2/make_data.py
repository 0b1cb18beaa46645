"""make_data.py: writes train.jsonl, 600 questions of arithmetic with small numbers, the same ones each time."""
import json
import pathlib
import random

NAMES = ["Anna", "Ben", "Chen", "Dana", "Emil", "Fatima"]
THINGS = ["apples", "books", "coins", "pencils", "stamps", "stones"]


def question(random_source):
    a, b = random_source.randint(2, 60), random_source.randint(2, 30)
    name, thing = random_source.choice(NAMES), random_source.choice(THINGS)
    big, small = max(a, b), min(a, b)
    return random_source.choice([
        (f"What is {a} + {b}?", a + b),
        (f"What is {big} - {small}?", big - small),
        (f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", a + b),
        (f"{name} has {big} {thing} and gives away {small}. How many {thing} are left?", big - small),
    ])


def main():
    random_source = random.Random(17)
    rows = {}
    while len(rows) < 600:
        text, answer = question(random_source)
        rows[text] = answer
    lines = [json.dumps({"prompt": text, "answer": str(answer)}) for text, answer in rows.items()]
    (pathlib.Path(__file__).parent / "train.jsonl").write_text("\n".join(lines) + "\n")


main()
