"""The environment "gymnasium": worker.py runs it. An environment of Gymnasium, played by text.

Options: id, kwargs (of gymnasium.make), prompt (text before the first observation), adapter (a
Python file; each of its functions may be left out):

    def observe(observation, info, env): ...     # the text to read
    def act(text, env): ...                      # the action; ValueError(why): the policy reads why
    def hint(env): ...                           # the text that asks for an action

A rollout's reward is the sum of the environment's rewards, until it has terminated or was
truncated. A text that is no action does not step the environment.
"""

import json
import re

import gymnasium
import numpy
from gymnasium import spaces

from __main__ import load, options

# FrozenLake and its like mark a position only by its colour: it is written in brackets.
COLOURED = re.compile("\x1b\\[[0-9;]+m(.*?)\x1b\\[0m")
INTEGER = re.compile(r"-?\d+")
SHOWN_MAX = 200

adapter = load(options["adapter"], "adapter") if options.get("adapter") else None
arguments = json.loads(options.get("kwargs") or "{}")


def make():
    return gymnasium.make(options["id"], **arguments)


def of_adapter(name, otherwise):
    return getattr(adapter, name, otherwise)


def plain(value):
    """Arrays and numbers of numpy, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def observed(observation, info, env):
    if env.render_mode == "ansi":
        return COLOURED.sub(r"[\1]", env.render()).strip("\n")
    if isinstance(observation, str):
        return observation
    return json.dumps(observation, default=plain)


def asked(env):
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return f"action ({space.start} to {space.start + space.n - 1}): "
    if isinstance(space, spaces.Text):
        return "action: "
    return f"action (JSON, {space}): "


def chosen(text, env):
    space = env.action_space
    if isinstance(space, spaces.Text):
        action = text.strip()
    elif isinstance(space, spaces.Discrete):
        found = INTEGER.findall(text)
        if not found:
            raise ValueError("no number")
        action = int(found[-1])
    else:
        try:
            action = numpy.asarray(json.loads(text), dtype=space.dtype)
        except (TypeError, OverflowError, RecursionError) as why:
            raise ValueError(why) from None
    if not space.contains(action):
        raise ValueError(f"{text.strip()[:SHOWN_MAX]!r} is no action")
    return action


observe = of_adapter("observe", observed)
act = of_adapter("act", chosen)
hint = of_adapter("hint", asked)

# A fault of id, kwargs or adapter is found before the first call.
first = make()
if "ansi" in first.metadata.get("render_modes", []) and "render_mode" not in arguments:
    first.close()
    arguments["render_mode"] = "ansi"
    first = make()
known = (spaces.Discrete, spaces.Text, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
if act is chosen and not isinstance(first.action_space, known):
    raise TypeError(
        f"actions of {options['id']} are {first.action_space}: an adapter must define act()"
    )
replay = not first.spec.nondeterministic
first.close()


class Environment:
    def __init__(self, ordinal, seed):
        self.seed = seed
        self.env = make()
        self.total = 0.0

    def text(self, observation, info):
        return observe(observation, info, self.env) + "\n" + hint(self.env)

    def task(self):
        observation, info = self.env.reset(seed=self.seed)
        return options.get("prompt", "") + self.text(observation, info)

    def step(self, action):
        try:
            chosen_action = act(action, self.env)
        except ValueError as why:
            return f"\n{why}\n{hint(self.env)}"
        observation, reward, terminated, truncated, info = self.env.step(chosen_action)
        self.total += float(reward)
        if terminated or truncated:
            return {"reward": self.total}
        return "\n" + self.text(observation, info)

    def close(self):
        self.env.close()
