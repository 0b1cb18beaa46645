"""Starts the server of a verifiers environment, and gives its tasks to primerl-graph.

    python3 verifiers_server.py OPTIONS

docs/formats/outside.md has the protocol of its pipes. OPTIONS is a JSON object: id (of the
environment), args (an object), path (the folder of its module; empty: an installed package),
serves (whether it starts a server, or gives tasks only), address (of the server), num_workers,
shuffle. The package verifiers is the user's, version 0.1.14 or later:

    an environment with load_environment(): W0, of its versions before 0.4
    a taskset: W1a of version 0.2, W1b of 0.3.0, W1c of 0.3.1, W2 of 0.4

The server is a child. When it ends, or when this process ends, the other one ends too.
"""

import collections
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import random
import signal
import sys
import threading

PROTOCOL = "primerl-graph 1"
LOOPBACK = "tcp://127.0.0.1:0"
AHEAD = 8  # calls that wait in the pipe
KEPT = 4096  # tasks of an endless taskset
PROMPT_CHARS = 16384  # of the text for people
STOP_SECONDS = 5


def described(fault):
    """On one line, as valid UTF-8."""
    text = " ".join(f"{type(fault).__name__}: {fault}".split())
    return text.encode("utf-8", "replace").decode()


def exit_with(fault):
    """The run shows the last line of a worker that ends."""
    import traceback

    traceback.print_exception(type(fault), fault, fault.__traceback__)
    hint = ""
    if isinstance(fault, ModuleNotFoundError):
        hint = f" for {sys.executable}: install it, or let the option 'python' name another Python"
    sys.exit(described(fault) + hint)


def version():
    try:
        return importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError("No module named 'verifiers'") from None


def found(name):
    """The module if it exists. Its own faults are errors."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return None if spec is None else importlib.import_module(name)


def merged(below, above):
    """`above` into `below`, object by object."""
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            value = merged(result[key], value)
        result[key] = value
    return result


def text_of(prompt):
    """The text that people read of a prompt, which is a text or a list of messages."""
    if prompt is None:
        return ""
    if isinstance(prompt, str):
        return prompt[:PROMPT_CHARS]
    texts = []
    for message in prompt:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(part for part in parts if part)
        if content:
            texts.append(str(content))
    return "\n".join(texts)[:PROMPT_CHARS]


class Stream:
    """The items of an endless iteration by their position. The last KEPT are at hand; for an
    earlier one the iteration begins again."""

    def __init__(self, begin):
        self.begin = begin
        self.restart()

    def restart(self):
        self.items = iter(self.begin())
        self.kept = collections.deque(maxlen=KEPT)
        self.count = 0

    def __getitem__(self, index):
        if index < self.count - len(self.kept):
            self.restart()
        while self.count <= index:
            try:
                self.kept.append(next(self.items))
            except StopIteration:
                raise IndexError(f"the taskset ended after {self.count} tasks") from None
            self.count += 1
        return self.kept[index - self.count]


class Orders:
    """Each epoch has an order of its own. The last two are kept."""

    def __init__(self, is_shuffled):
        self.is_shuffled = is_shuffled
        self.orders = {}

    def index(self, ordinal, size):
        epoch, index = divmod(ordinal, size)
        if not self.is_shuffled:
            return index
        if epoch not in self.orders:
            while len(self.orders) > 1:
                del self.orders[min(self.orders)]
            self.orders[epoch] = list(range(size))
            random.Random(epoch).shuffle(self.orders[epoch])
        return self.orders[epoch][index]


class Legacy:
    """An environment that a module's load_environment() makes."""

    dialect = "w0"

    def __init__(self, options):
        self.id = options["id"]
        self.args = options["args"]
        self.num_workers = options["num_workers"]
        self.address = options["address"]

    def load(self):
        import verifiers

        self.environment = verifiers.load_environment(self.id, **self.args)
        self.rows = self.environment.get_dataset()
        self.scores_groups = bool(getattr(self.environment, "requires_group_rollouts", False))
        self.eval_rows = None  # they are loaded for the first evaluation

    def size(self, is_evaluation):
        return len(self.rows_of(is_evaluation))

    def rows_of(self, is_evaluation):
        if not is_evaluation:
            return self.rows
        if self.eval_rows is None:
            self.eval_rows = self.environment.get_eval_dataset()
        return self.eval_rows

    def task(self, index, is_evaluation):
        row = dict(self.rows_of(is_evaluation)[index])
        return {"data": {"input": row}, "prompt": text_of(row.get("prompt"))}

    def serve(self, death_pipe, report):
        import asyncio

        import zmq

        serve = found("verifiers.serve") or found("verifiers.legacy.serve")
        server = serve.ZMQEnvServer(
            self.id,
            self.args,
            log_level="WARNING",
            address=self.address,
            num_workers=self.num_workers,
            death_pipe=death_pipe,
        )
        report(server.frontend.getsockopt_string(zmq.LAST_ENDPOINT))
        asyncio.run(server.run())


class Bound:
    """Takes the address of a server, as a queue of multiprocessing does."""

    def __init__(self, report):
        self.put = report


class Taskset:
    """A taskset of verifiers.v1, in the environment that its configuration names."""

    def __init__(self, options):
        self.num_workers = options["num_workers"]
        self.address = options["address"]
        self.numbers = tuple(int(part) for part in version().split(".")[:3] if part.isdigit())
        if self.numbers >= (0, 4):
            self.dialect = "w2"
        elif self.numbers >= (0, 3, 1):
            self.dialect = "w1c"
        else:
            self.dialect = "w1b" if self.numbers >= (0, 3) else "w1a"
        self.raw = merged({"taskset": {"id": options["id"]}}, options["args"])
        self.config = self.resolved(self.raw)
        self.scores_groups = False

    def resolved(self, raw):
        loaders = found("verifiers.v1.utils.loaders")
        if not hasattr(loaders, "resolve_env_config"):
            from verifiers.v1.env import EnvConfig

            return EnvConfig.model_validate(raw)
        config = loaders.resolve_env_config(raw)
        # From 0.4 a program of a rollout runs in a sandbox of Prime's service if nothing is set.
        for name, field in type(config).model_fields.items():
            runtime = getattr(field.default, "runtime", None)
            if getattr(runtime, "type", None) == "prime" and "runtime" not in raw.get(name, {}):
                raw = merged(raw, {name: {"runtime": {"type": "subprocess"}}})
        return loaders.resolve_env_config(raw)

    def load(self):
        loaders = found("verifiers.v1.utils.loaders") or importlib.import_module(
            "verifiers.v1.loaders"
        )
        taskset = loaders.load_taskset(self.config.taskset)
        # Before 0.4 only load() gives the tasks, and a task has its own index.
        begin = taskset.__iter__ if hasattr(taskset, "__iter__") else taskset.load
        self.count = None
        if type(taskset).INFINITE:
            self.tasks = Stream(begin)
        else:
            self.tasks = list(begin())
            self.count = len(self.tasks)
        # Only servers of 0.2 score groups of a taskset.
        if self.dialect == "w1a" and self.count != 0:
            from verifiers.v1.decorators import discover_decorated

            self.scores_groups = bool(discover_decorated(self.tasks[0], "group_reward"))

    def size(self, is_evaluation):
        return self.count

    def task(self, index, is_evaluation):
        data = self.tasks[index].data
        wire = data.model_dump(mode="json", exclude_defaults=True)
        prompt = text_of(wire.get("prompt"))
        if self.dialect == "w1a":
            return {"data": {"task_idx": index}, "prompt": prompt}
        return {"data": {"task_data": wire}, "prompt": prompt}

    def serve(self, death_pipe, report):
        from functools import partial
        import logging

        from verifiers.v1.serve import serve_env

        serve_env(
            max_workers=self.num_workers,
            elastic=False,
            address=self.address,
            address_queue=Bound(report),
            death_pipe=death_pipe,
            log_setup=partial(logging.basicConfig, level=logging.WARNING),
            config_data=self.config.model_dump(mode="json"),
        )


def environment_of(options):
    """The environment of the module. A taskset comes first."""
    version()
    name = options["id"].rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
    v1 = None
    if found("verifiers.v1.serve"):
        v1 = importlib.import_module("verifiers.v1")
        if importlib.util.find_spec(f"verifiers.v1.tasksets.{name.lower()}"):
            return Taskset(options)
    module = found(name) or found(name.lower())
    if module is None:
        raise ModuleNotFoundError(f"No module named '{name}' of the environment '{options['id']}'")
    exported = [getattr(module, each, None) for each in getattr(module, "__all__", [])]
    if v1 and any(isinstance(each, type) and issubclass(each, v1.Taskset) for each in exported):
        return Taskset(options)
    if not hasattr(module, "load_environment"):
        raise AttributeError(
            f"the module '{name}' has no load_environment(), and its __all__ no Taskset"
            + ("" if v1 else f", which verifiers {version()} cannot serve")
        )
    if not (found("verifiers.serve") or found("verifiers.legacy.serve")):
        raise AttributeError(
            f"verifiers {version()} serves tasksets only, and '{name}' has load_environment()"
        )
    return Legacy(options)


def read_options(text):
    options = json.loads(text)
    if not isinstance(options.setdefault("args", {}), dict):
        raise TypeError(f"args is {options['args']!r}, not an object")
    defaults = {"path": "", "serves": True, "address": LOOPBACK, "num_workers": 1, "shuffle": True}
    return {**defaults, **options}


class Server:
    """The child with the server of the environment."""

    def __init__(self, environment, own_fds):
        from multiprocessing import Pipe

        death_pipe, self.alive = Pipe(duplex=False)
        reported, report = os.pipe()
        self.is_stopping = False
        # Before any thread or task exists, so the child has the modules and nothing else.
        self.pid = os.fork()
        if self.pid == 0:
            self.alive.close()
            os.close(reported)
            for fd in own_fds:
                os.close(fd)
            self.run(environment, death_pipe, report)
        death_pipe.close()
        os.close(report)
        self.reported = os.fdopen(reported, "rb")

    def run(self, environment, death_pipe, report):
        status = 1
        try:
            environment.serve(death_pipe, lambda address: self.send(report, {"address": address}))
            status = 0
        except BaseException as fault:
            import traceback

            traceback.print_exc()
            self.send(report, {"error": described(fault)})
        finally:
            sys.stderr.flush()
            os._exit(status)

    @staticmethod
    def send(report, message):
        try:
            os.write(report, json.dumps(message).encode() + b"\n")
        except OSError:
            return  # the parent has ended

    def address(self):
        line = self.reported.readline()
        message = json.loads(line) if line else {"error": "it ended before it had an address"}
        if "error" in message:
            sys.exit(f"the server of the environment: {message['error']}")
        return message["address"]

    def watch(self):
        threading.Thread(target=self.wait, daemon=True).start()

    def wait(self):
        _, status = os.waitpid(self.pid, 0)
        if self.is_stopping:
            return
        code = os.waitstatus_to_exitcode(status)
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        line = self.reported.readline()  # a fault after its start
        if line:
            why += f": {json.loads(line).get('error')}"
        os.write(2, f"the server of the environment ended: {why}\n".encode())
        os._exit(1)

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return  # it has ended, and the thread of watch() knows

    def stop(self):
        import time

        self.is_stopping = True
        self.alive.close()
        end = time.monotonic() + STOP_SECONDS
        while time.monotonic() < end:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                    return
            except ChildProcessError:
                return
            time.sleep(0.02)
        self.kill()


def answer(environment, orders, call):
    if call.get("call") != "task":
        raise ValueError(f"unknown call {call.get('call')!r}")
    ordinal = call["ordinal"]
    is_evaluation = bool(call.get("evaluation"))
    size = environment.size(is_evaluation)
    if size == 0:
        raise ValueError("the environment has no tasks")
    if size is None:
        index = ordinal
    elif is_evaluation:
        index = ordinal % size
    else:
        index = orders.index(ordinal, size)
    task = environment.task(index, is_evaluation)
    return dict(task, num_tasks=size, scores_groups=environment.scores_groups)


def written(environment, orders, line):
    call = json.loads(line)
    if "id" not in call:
        return None  # `end`, which has no answer
    try:
        task = dict(answer(environment, orders, call), id=call["id"])
        text = json.dumps(task, allow_nan=False, ensure_ascii=False)
        text.encode()  # half a surrogate pair is no JSON: its task fails, not the server
        return text
    except (Exception, SystemExit) as fault:
        return json.dumps({"id": call["id"], "error": described(fault)})


def main():
    # Only the protocol uses the pipes: print() goes to stderr, and input() finds nothing.
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    server = None
    try:
        options = read_options(sys.argv[1])
        if options["path"]:
            sys.path.insert(0, os.path.abspath(options["path"]))
        environment = environment_of(options)
        if options["serves"]:
            server = Server(environment, [calls.fileno(), answers.fileno()])
        environment.load()
    except Exception as fault:
        if server:
            server.kill()
        exit_with(fault)
    hello = {"protocol": PROTOCOL, "concurrency": AHEAD, "in_order": True}
    hello.update(verifiers=version(), dialect=environment.dialect)
    hello.update(num_tasks=environment.size(False), scores_groups=environment.scores_groups)
    if server:
        hello["address"] = server.address()
        server.watch()
    orders = Orders(options["shuffle"])
    for line in itertools.chain([None], calls):
        text = json.dumps(hello) if line is None else written(environment, orders, line)
        if text is not None:
            answers.write(text.encode() + b"\n")
            answers.flush()
    if server:
        server.stop()


if __name__ == "__main__":
    main()
