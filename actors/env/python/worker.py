"""Runs the rewards or the environment of a Python file as a worker of primerl-graph.

    python3 worker.py FILE [OPTIONS]

It needs Python 3.8 and nothing else. docs/formats/outside.md has the protocol: one JSON object a
line, calls on stdin, answers on stdout. What FILE prints goes to stderr, so to the run's log.
OPTIONS is a JSON object for FILE: `from __main__ import options`.

FILE has a function `reward`, a class `Environment`, or both; their functions may be `async`:

    def reward(completion, answer):          # also: prompt, actions, messages, row, given; by name
        return 1.0 if completion.strip() == answer else 0.0

    class Environment:
        def __init__(self, ordinal, seed): ...
                                             # __init__(self, ordinal, seed, evaluation): True for
                                             # a row that measures the policy; ordinal is the row
        def task(self): ...                  # the prompt, or {"prompt": ..., "messages": ...}
        def step(self, action): ...          # text to read next, or {"done": True, "reward": 0.5}
                                             # step(self, action, message): also the parsed answer
        def close(self): ...                 # may be left out

    def start(): ...                         # before the first call; may be left out
    def stop(): ...                          # after the last call; may be left out

`replay = False` in FILE: an Environment that was lost cannot be made again by its actions.
`concurrency = 64` in FILE: most calls at once, for `async` functions.
"""

# asyncio, hashlib and traceback are imported where they are needed: a worker starts in half the
# time without them.
import collections
import inspect
import json
import math
import os
import sys
import types

PROTOCOL = "primerl-graph 1"
AHEAD = 8  # calls that wait in the pipe of a worker without `async` functions
CONCURRENCY = 1024
READ_BYTES = 1 << 18
SOURCE = "source:"  # FILE is a name, a line end, and the text of the file itself
options = {}  # OPTIONS
user_files = []  # errors name the last line of a call that is in one of these


def load(path, name="user_file"):
    """The module of a Python file, or of its text."""
    module = types.ModuleType(name)
    if path.startswith(SOURCE):
        module.__file__, _, text = path[len(SOURCE):].partition("\n")
    else:
        module.__file__ = os.path.abspath(path)
        sys.path.insert(0, os.path.dirname(module.__file__))
        with open(module.__file__, "rb") as file:
            text = file.read()
    sys.modules[name] = module
    user_files.append(module.__file__)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def load_calls(path):
    module = load(path)
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


def exit_with(fault):
    """Its last line names file and line, because the run shows the last line of a worker."""
    import traceback

    traceback.print_exception(type(fault), fault, fault.__traceback__)
    where = traceback.extract_tb(fault.__traceback__)
    name, line = where[-1].filename, where[-1].lineno
    if isinstance(fault, SyntaxError) and fault.filename:
        name, line = fault.filename, fault.lineno
    hint = ""
    if isinstance(fault, ModuleNotFoundError):
        hint = f" for {sys.executable}: install it, or let the option 'python' name another Python"
    sys.exit(f"{name}:{line}: {described(fault)}{hint}")


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
    import hashlib

    text = answer.get("text") or ""
    for message in answer.get("messages") or []:
        text += "\n" + message["content"]
    return hashlib.sha256(text.encode()).hexdigest()


def names(function, parameter):
    """Whether a function, or __init__ of a class, has a parameter of this name."""
    try:
        return parameter in inspect.signature(function).parameters
    except ValueError:  # it is not written in Python
        return False


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
        self.answers = {}  # of the tasks that have one, by trajectory: for rewards
        self.pid = os.getpid()
        reward = getattr(module, "reward", None)
        self.names = None  # parameters of reward(); None: all
        if reward is not None:
            parameters = inspect.signature(reward).parameters.values()
            if all(p.kind != p.VAR_KEYWORD for p in parameters):
                self.names = {p.name for p in parameters}
        environment = getattr(module, "Environment", None)
        step = getattr(environment, "step", None)
        self.reads_message = step is not None and names(step, "message")
        self.reads_evaluation = environment is not None and names(environment, "evaluation")
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
        names = ("prompt", "answer", "actions", "messages", "row", "given")
        facts = {k: call.get(k) for k in names}
        facts["completion"] = call["actions"][-1]
        if self.names is not None:
            facts = {k: v for k, v in facts.items() if k in self.names}
        score = yield self.module.reward(**facts)
        return {"reward": number(score, "reward()")}

    def made(self, call):
        """The Environment of a call. In an evaluation its ordinal is the row."""
        more = {"evaluation": bool(call.get("evaluation"))} if self.reads_evaluation else {}
        return self.module.Environment(call["ordinal"], call["seed"], **more)

    def task(self, call):
        environment = self.made(call)
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
            environment = self.made(call)
            task = yield environment.task()
            self.environments[name] = environment
            if isinstance(task, dict) and task.get("answer") is not None:
                self.answers[name] = task["answer"]
        environment = self.environments[name]
        # Without a chat template there are no parsed answers.
        messages = call.get("messages") or [None] * len(call["actions"])
        played = []
        for action, message in zip(call["actions"], messages):
            more = {"message": message} if self.reads_message else {}
            result = yield environment.step(action, **more)
            answer = step_answer(result)
            played.append(digest(answer))
        played.pop()  # the last one is the answer itself
        if call["first_turn"] == 0 and played:
            answer["played"] = played
        if answer["done"]:
            if name in self.answers:
                answer.setdefault("answer", self.answers[name])
            yield from self.end(call)
        return answer

    def end(self, call):
        environment = self.environments.pop(call["trajectory"], None)
        self.answers.pop(call["trajectory"], None)
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
        import traceback

        where = traceback.extract_tb(fault.__traceback__)
        own = [frame for frame in where if frame.filename in user_files]
        at = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
        return json.dumps({"id": call["id"], "error": described(fault) + at}, ensure_ascii=False)

    def run_call(self, call):
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

    async def run_call_async(self, call):
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


async def start_file(worker):
    try:
        value = worker.module.start() if hasattr(worker.module, "start") else None
        if inspect.isawaitable(value):
            await value
    except Exception as fault:
        exit_with(fault)


async def stop_file(worker):
    value = worker.module.stop() if hasattr(worker.module, "stop") else None
    if inspect.isawaitable(value):
        await value


def say_hello(worker, answers):
    answers.write(json.dumps(worker.hello()).encode() + b"\n")
    answers.flush()


def run(worker, calls, answers):
    if hasattr(worker.module, "start"):
        import asyncio

        asyncio.run(start_file(worker))
    say_hello(worker, answers)
    for line in calls:
        text = worker.run_call(json.loads(line))
        if text is not None:
            answers.write(text.encode() + b"\n")
            answers.flush()
    if hasattr(worker.module, "stop"):
        import asyncio

        asyncio.run(stop_file(worker))


async def run_async(worker, calls, answers):
    import asyncio

    loop = asyncio.get_running_loop()
    await start_file(worker)
    say_hello(worker, answers)
    queues = {}  # calls of one trajectory are done in their order
    tasks = set()  # asyncio itself keeps only weak references
    written = []  # the answers of one round of the loop leave in one write

    def flush():
        texts, written[:] = b"".join(written), []
        answers.write(texts)
        answers.flush()

    def start(call):
        task = loop.create_task(one(call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def one(call):
        text = await worker.run_call_async(call)
        if text is not None:
            if not written:
                loop.call_soon(flush)
            written.append(text.encode() + b"\n")
        name = call.get("trajectory")
        if name is not None:
            waiting = queues[name]
            waiting.popleft()
            if waiting:
                start(waiting[0])
            else:
                del queues[name]

    def accept(line):
        call = json.loads(line)
        name = call.get("trajectory")
        if name is not None:
            waiting = queues.setdefault(name, collections.deque())
            waiting.append(call)
            if len(waiting) > 1:
                return
        start(call)

    partial = []  # of the next line
    ended = loop.create_future()

    def read():
        data = os.read(calls.fileno(), READ_BYTES)
        if not data:
            loop.remove_reader(calls)
            ended.set_result(None)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            partial.append(line)
            accept(b"".join(partial))
            partial.clear()
        partial.append(rest)

    loop.add_reader(calls, read)
    await ended
    await stop_file(worker)


def main():
    # Only the protocol uses the pipes: print() goes to stderr, and input() finds nothing.
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        options.update(json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
        worker = Worker(load_calls(sys.argv[1]))
    except Exception as fault:
        exit_with(fault)
    if worker.is_async:
        import asyncio

        asyncio.run(run_async(worker, calls, answers))
    else:
        run(worker, calls, answers)


if __name__ == "__main__":
    main()
