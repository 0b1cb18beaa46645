"""Writes optimizers.json: the weights of small tensors after 100 steps of optimizers of PyTorch.

    .venv/bin/python tests/cpu/make_optimizers.py

tests/cpu/optimizer_test.cc makes the same start weights and gradients and compares. sign_sgd is not
in PyTorch: here it is its formula. Run it again only if a case is added.
"""

import json
import math
import pathlib

import torch

STEPS = 100
# name, kind of tensor, shape
TENSORS = [
    ("embedding", "embedding", (5, 4)),
    ("wide", "matrix", (4, 6)),
    ("tall", "matrix", (6, 4)),
    ("bias", "vector", (3,)),
    ("norm", "norm", (4,)),
]


def start(tensor, i):
    return 0.5 * math.sin(0.7 * i + 1.3 * tensor + 0.2)


def gradient(tensor, i, step):
    return math.cos(1.1 * i + 0.37 * step + tensor) * (0.2 + 0.1 * math.sin(0.9 * i)) / (1 + tensor)


def filled(tensor, shape, value):
    count = math.prod(shape)
    return torch.tensor([value(i) for i in range(count)], dtype=torch.float32).reshape(shape)


class SignSgd(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (group["weight_decay"] * p + p.grad.sign()))


def adamw(params, **options):
    return torch.optim.AdamW(params, **options)


def make_muon(weights, lr, weight_decay, nesterov):
    """Muon for matrices, AdamW for the rest, with the rates of both equal in size."""
    matrices = [w for w, (_, kind, _) in zip(weights, TENSORS) if kind == "matrix"]
    others = [w for w, (_, kind, _) in zip(weights, TENSORS) if kind != "matrix"]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, momentum=0.95,
                            nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw(others, lr=lr, weight_decay=weight_decay, betas=(0.9, 0.95))]


def make_groups(weights, exempt, lr, weight_decay):
    kinds = [kind for _, kind, _ in TENSORS]
    return adamw([
        {"params": [w for w, k in zip(weights, kinds) if k in exempt], "weight_decay": 0.0},
        {"params": [w for w, k in zip(weights, kinds) if k not in exempt],
         "weight_decay": weight_decay}], lr=lr)


CASES = {
    "adamw": lambda w: [adamw(w, lr=0.01, weight_decay=0.1)],
    "adamw_no_decay": lambda w: [make_groups(w, ("norm", "vector", "embedding"), 0.01, 0.5)],
    "sgd": lambda w: [torch.optim.SGD(w, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)],
    "sgd_heavy": lambda w: [torch.optim.SGD(w, lr=0.01, momentum=0.5, weight_decay=0)],
    "sgd_plain": lambda w: [torch.optim.SGD(w, lr=0.1, momentum=0, weight_decay=0.01)],
    "sign_sgd": lambda w: [SignSgd(w, lr=0.001, weight_decay=0.1)],
    "muon": lambda w: make_muon(w, 0.01, 0.1, True),
    "muon_heavy": lambda w: make_muon(w, 0.01, 0.0, False),
    "adafactor": lambda w: [torch.optim.Adafactor(w, lr=0.05, weight_decay=0.1)],
    "adafactor_own": lambda w: [torch.optim.Adafactor(w, lr=0.5, weight_decay=0, beta2_decay=-0.5,
                                                      eps=(1e-4, 1e-2), d=1.5)],
}


def weights_after(make):
    weights = [torch.nn.Parameter(filled(t, shape, lambda i, t=t: start(t, i)))
               for t, (_, _, shape) in enumerate(TENSORS)]
    optimizers = make(weights)
    for step in range(1, STEPS + 1):
        for t, (w, (_, _, shape)) in enumerate(zip(weights, TENSORS)):
            w.grad = filled(t, shape, lambda i, t=t: gradient(t, i, step))
        for optimizer in optimizers:
            optimizer.step()
    return {name: [round(v, 7) for v in w.detach().flatten().tolist()]
            for w, (name, _, _) in zip(weights, TENSORS)}


def main():
    made = {"torch": torch.__version__.split("+")[0], "steps": STEPS,
            "cases": {name: weights_after(make) for name, make in CASES.items()}}
    path = pathlib.Path(__file__).parent / "fixtures" / "optimizers.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(made, indent=1)
    path.write_text(text.replace(",\n    ", ", ").replace("[\n    ", "[").replace("\n   ]", "]") + "\n")


if __name__ == "__main__":
    main()
