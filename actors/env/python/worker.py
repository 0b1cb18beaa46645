"""Runs the rewards or the environment of a Python file as a worker of primerl-graph.

    python3 worker.py FILE

It needs Python 3.8 and nothing else. docs/formats/outside.md has the protocol: one JSON object a
line, calls on stdin, answers on stdout. What FILE prints goes to stderr, so to the run's log.

FILE has a function `reward`, a class `Environment`, or both; their functions may be `async`:

    def reward(completion, answer):          # also: prompt, actions, row, given; by name
        return 1.0 if completion.strip() == answer else 0.0

    class Environment:
        def __init__(self, ordinal, seed): ...
        def task(self): ...                  # the prompt, or {"prompt": ..., "messages": ...}
        def step(self, action): ...          # text to read next, or {"done": True, "reward": 0.5}
        def close(self): ...                 # may be left out

`replay = False` in FILE: an Environment that was lost cannot be made again by its actions.
`concurrency = 64` in FILE: most calls at once, for `async` functions.
"""

import asyncio
import collections
import hashlib
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback
import types

PROTOCOL = "primerl-graph 1"
AHEAD = 8  # calls that wait in the pipe of a worker without `async` functions
CONCURRENCY = 1024
SOURCE = "source:"  # FILE is the text of the file itself


def load(path):
    if path.startswith(SOURCE):
        module = types.ModuleType("user_file")
        module.__file__ = "reward.py"
        exec(compile(path[len(SOURCE):], module.__file__, "exec"), module.__dict__)
        return module
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("user_file", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_file"] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "reward") and not hasattr(module, "Environment"):
        raise SystemExit(f"{path} has neither a function 'reward' nor a class 'Environment'")
    return module


def described(fault):
    """The type and text of an exception, as valid UTF-8."""
    try:
        text = str(fault)
    except Exception:
        text = "its text cannot be made"
    text = f"{type(fault).__name__}: {text}"
    return text.encode("utf-8", "replace").decode()


def load_or_exit(path):
    """load(); the last line of a failure names file and line, because the run shows that line."""
    try:
        return load(path)
    except Exception as fault:
        traceback.print_exc()
        where = traceback.extract_tb(fault.__traceback__)
        name, line = where[-1].filename, where[-1].lineno
        if isinstance(fault, SyntaxError) and fault.filename:
            name, line = fault.filename, fault.lineno
        sys.exit(f"{name}:{line}: {described(fault)}")


def number(value, what):
    if isinstance(value, bool):
        return float(value)
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {value!r}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}, not a finite number")
    return value


def digest(answer):
    text = answer.get("text") or ""
    for message in answer.get("messages") or []:
        text += "\n" + message["content"]
    return hashlib.sha256(text.encode()).hexdigest()


def step_answer(result):
    if isinstance(result, str):
        return {"done": False, "text": result}
    if isinstance(result, (tuple, list)) and len(result) == 3:
        result = {"text": result[0], "reward": result[1], "done": bool(result[2])}
    if not isinstance(result, dict):
        raise TypeError(f"step() returned {result!r}, not a text, a dict or (text, reward, done)")
    answer = dict(result)
    answer["done"] = bool(answer.get("done", "reward" in answer))
    if answer["done"]:
        answer["reward"] = number(answer.get("reward"), "the reward")
        answer.pop("text", None)
    else:
        answer.pop("reward", None)
        if not answer.get("text") and not answer.get("messages"):
            raise ValueError("step() returned neither a text nor the end")
    return answer


class Worker:
    def __init__(self, module):
        self.module = module
        self.environments = {}  # by trajectory
        self.pid = os.getpid()
        reward = getattr(module, "reward", None)
        self.names = None  # parameters of reward(); None: all
        if reward is not None:
            parameters = inspect.signature(reward).parameters.values()
            if all(p.kind != p.VAR_KEYWORD for p in parameters):
                self.names = {p.name for p in parameters}
        environment = getattr(module, "Environment", None)
        functions = [reward] + [getattr(environment, n, None) for n in ("task", "step", "close")]
        self.is_async = any(inspect.iscoroutinefunction(f) for f in functions)

    def hello(self):
        hello = {"protocol": PROTOCOL, "replay": bool(getattr(self.module, "replay", True))}
        if self.is_async:
            hello["concurrency"] = int(getattr(self.module, "concurrency", CONCURRENCY))
            hello["in_order"] = False
        else:
            hello["concurrency"] = AHEAD
            hello["in_order"] = True
        return hello

    # Each generator yields what its caller must await, if it is awaitable, and gets the result.

    def reward(self, call):
        facts = {k: call.get(k) for k in ("prompt", "answer", "actions", "row", "given")}
        facts["completion"] = call["actions"][-1]
        if self.names is not None:
            facts = {k: v for k, v in facts.items() if k in self.names}
        score = yield self.module.reward(**facts)
        return {"reward": number(score, "reward()")}

    def task(self, call):
        environment = self.module.Environment(call["ordinal"], call["seed"])
        task = yield environment.task()
        if hasattr(environment, "close"):
            yield environment.close()
        if isinstance(task, str):
            return {"prompt": task}
        if not isinstance(task, dict):
            raise TypeError(f"task() returned {task!r}, not a text or a dict")
        return task

    def step(self, call):
        name = call["trajectory"]
        if call["first_turn"] == 0:
            yield from self.end(call)
            environment = self.module.Environment(call["ordinal"], call["seed"])
            yield environment.task()
            self.environments[name] = environment
        environment = self.environments[name]
        played = []
        for action in call["actions"][:-1]:
            result = yield environment.step(action)
            played.append(digest(step_answer(result)))
        result = yield environment.step(call["actions"][-1])
        answer = step_answer(result)
        if call["first_turn"] == 0 and played:
            answer["played"] = played
        if answer["done"]:
            yield from self.end(call)
        return answer

    def end(self, call):
        environment = self.environments.pop(call["trajectory"], None)
        if hasattr(environment, "close"):
            yield environment.close()
        return None

    def work(self, call):
        kind = call.get("call")
        if kind not in ("reward", "task", "step", "end"):
            raise ValueError(f"unknown call {kind!r}")
        return getattr(self, kind)(call)

    def written(self, call, answer, fault):
        if os.getpid() != self.pid:
            os._exit(0)  # a fork of the user's code must not answer too
        if "id" not in call:
            return None
        if fault is None:
            try:
                text = json.dumps(dict(answer, id=call["id"]), allow_nan=False, ensure_ascii=False)
                text.encode()  # a lone surrogate is no UTF-8
                return text
            except (TypeError, ValueError) as error:
                fault = error
        where = traceback.extract_tb(fault.__traceback__)
        own = [frame for frame in where if frame.filename == self.module.__file__]
        at = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
        return json.dumps({"id": call["id"], "error": described(fault) + at}, ensure_ascii=False)

    def run_call(self, line):
        call = json.loads(line)
        answer = fault = None
        try:
            work = self.work(call)
            try:
                value = next(work)
                while True:
                    value = work.send(value)
            except StopIteration as stop:
                answer = stop.value
        except (Exception, SystemExit) as error:
            fault = error
        return self.written(call, answer, fault)

    async def run_call_async(self, line):
        call = json.loads(line)
        answer = fault = None
        try:
            work = self.work(call)
            try:
                value = next(work)
                while True:
                    if inspect.isawaitable(value):
                        value = await value
                    value = work.send(value)
            except StopIteration as stop:
                answer = stop.value
        except (Exception, SystemExit) as error:
            fault = error
        return self.written(call, answer, fault)


def run(worker, calls, answers):
    for line in calls:
        text = worker.run_call(line)
        if text is not None:
            answers.write(text.encode() + b"\n")
            answers.flush()


async def run_async(worker, calls, answers):
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 30)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), calls)
    queues = {}  # calls of one trajectory are done in their order
    tasks = set()  # asyncio itself keeps only weak references

    def start(line, queue):
        task = loop.create_task(one(line, queue))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def one(line, queue):
        text = await worker.run_call_async(line)
        if text is not None:
            answers.write(text.encode() + b"\n")
            answers.flush()
        if queue is not None:
            name, lines = queue
            lines.popleft()
            if lines:
                start(lines[0], queue)
            else:
                del queues[name]

    while True:
        line = await reader.readline()
        if not line:
            return
        name = json.loads(line).get("trajectory")
        if name is None:
            start(line, None)
            continue
        lines = queues.setdefault(name, collections.deque())
        lines.append(line)
        if len(lines) == 1:
            start(line, (name, lines))


def main():
    # Only the protocol uses the pipes: print() goes to stderr, and input() finds nothing.
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    worker = Worker(load_or_exit(sys.argv[1]))
    answers.write(json.dumps(worker.hello()).encode() + b"\n")
    answers.flush()
    if worker.is_async:
        asyncio.run(run_async(worker, calls, answers))
    else:
        run(worker, calls, answers)


if __name__ == "__main__":
    main()
