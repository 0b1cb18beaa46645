"""The environment "mcp": worker.py runs it. Tools of MCP servers, beside an Environment of a file.

Options: file (with a class Environment), servers (mcp.json: {"mcpServers": {NAME: SERVER}}, where
SERVER is {"command": ..., "args": [...], "env": {...}, "cwd": ...} or {"url": ..., "headers":
{...}}), state, start_timeout and tool_timeout (of all calls of a turn; seconds), result_bytes_max,
calls_max (of one turn), processes_max (servers of trajectories), http (the text of mcp_http.py).

A server with a command is a child process that speaks JSON-RPC over stdio, one message a line. One
with a URL speaks it over HTTP. Their tools are listed before the first call and go into each task's
`tools`. A turn with tool calls is answered by one tool message for each call; any other turn goes
to step() of the file's Environment.

A tool's error, a call that no tool fits, and a call without an answer are texts that the policy
reads. A server that ends fails the rollouts that wait for it, and is started again.
"""

import asyncio
import inspect
import json
import os
import sys

from __main__ import load, names, options, step_answer

VERSION = "2025-11-25"  # of the protocol; servers answer with the one that they speak
LINE_BYTES_MAX = 16 << 20
TOOLS_MAX = 256
PAGES_MAX = 64  # of tools/list
NOISE_MAX = 100  # lines of one server that are no JSON-RPC
SILENT_MAX = 4  # calls in a row without an answer, after which a server is started again
STARTS_MAX = 8  # starts in a row of one server that failed, after which the worker exits
START_SHARE = 0.5  # of start_timeout, for a server: the worker must be ready within all of it
METHOD_NOT_FOUND = -32601
HTTP_TYPES = "http", "streamable-http", "streamableHttp", "streamable_http"
CLOSE_SECONDS = 5  # for the end of a session over HTTP

http = load(options["http"], "mcp_http")
inner = load(options["file"])
concurrency = getattr(inner, "concurrency", 1024)
replay = getattr(inner, "replay", True)
if not hasattr(inner, "Environment"):
    raise ValueError(f"{options['file']} has no class 'Environment'")


class ServerEnded(Exception):
    """The rollouts that wait for the server fail."""


class ToolError(Exception):
    """Its text is for the policy."""


def read_servers(path):
    with open(path, encoding="utf-8-sig") as file:
        described = json.load(file)
    servers = described.get("mcpServers") if isinstance(described, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise ValueError(f"{path} has no server: it is an object with the key 'mcpServers'")
    for name, server in servers.items():
        fault = fault_of_server(server)
        if fault:
            raise ValueError(f"{path}: server '{name}' {fault}")
    return servers


def fault_of_server(server):
    """The fault of a server of mcp.json; empty if it has none."""
    if not isinstance(server, dict):
        return "is not an object"
    kind = server.get("type", "http" if "url" in server else "stdio")
    if kind in HTTP_TYPES:
        return fault_of_http(server)
    if kind != "stdio":
        return f"has the type {kind!r}; 'stdio' and 'http' are supported"
    command, arguments = server.get("command"), server.get("args", [])
    if not isinstance(command, str) or not command:
        return "has neither 'command' nor 'url'"
    if "url" in server:
        return "has both 'command' and 'url'"
    if not isinstance(arguments, list) or not all(isinstance(a, str) for a in arguments):
        return "has 'args', which is no list of texts"
    values = server.get("env", {})
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        return "has 'env', which is no object of texts"
    return ""


def fault_of_http(server):
    url = server.get("url")
    if not isinstance(url, str):
        return "has no 'url'"
    if "command" in server:
        return "has both 'command' and 'url'"
    if http.fault_of_url(url):
        return f"has the url {url!r}: {http.fault_of_url(url)}"
    fault = http.fault_of_headers(server.get("headers", {}))
    return f"has 'headers', which {fault}" if fault else ""


class Server:
    """One server. Its calls may overlap; each has an id. A subclass knows how messages travel:
    open(), send(), deliver() (which waits until it has been sent) and shut()."""

    def __init__(self, name, spec):
        self.name, self.spec = name, spec
        self.is_open = False
        self.num_opens = 0  # differs from one start to the next
        self.last_end = ""
        self.reader = None  # the task that reads what the process writes
        self.waiting = {}  # futures, by id
        self.num_calls = self.num_silent = self.num_noise = self.num_failed_starts = 0
        self.starting = asyncio.Lock()

    async def start(self, seconds):
        """Starts the server if it has not started or has ended."""
        async with self.starting:
            if self.is_open:
                return
            if self.num_failed_starts >= STARTS_MAX:
                print(f"MCP server '{self.name}' did not start {STARTS_MAX} times: "
                      f"{self.last_end}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)
            self.num_failed_starts += 1
            try:
                await self.open()
            except OSError as why:
                raise ServerEnded(f"MCP server '{self.name}' cannot be started: {why}") from None
            self.is_open = True
            self.num_opens += 1
            self.num_silent = self.num_noise = 0
            try:
                await asyncio.wait_for(self.initialize(), seconds)
            except (asyncio.TimeoutError, ToolError) as why:
                self.end(f"did not start: {str(why) or 'no answer to initialize'}")
                raise ServerEnded(self.last_end) from None
            self.num_failed_starts = 0

    async def initialize(self):
        result = await self.ask("initialize", {
            "protocolVersion": VERSION, "capabilities": {},
            "clientInfo": {"name": "primerl-graph", "version": "1"}})
        self.use_version(result.get("protocolVersion"))
        await self.deliver({"method": "notifications/initialized"})

    def use_version(self, version):
        """Stdio needs no version in a message."""

    async def ask(self, method, arguments):
        if not self.is_open:
            raise ServerEnded(self.last_end)
        self.num_calls += 1
        number, opens = self.num_calls, self.num_opens
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.send({"id": number, "method": method, "params": arguments})
            return await answer
        except asyncio.CancelledError:
            # Beyond its time limit.
            if self.is_open and self.num_opens == opens and method != "initialize":
                self.num_silent += 1
                self.send({"method": "notifications/cancelled", "params": {"requestId": number}})
                if self.num_silent >= SILENT_MAX:
                    self.end(f"did not answer {SILENT_MAX} calls in a row")
            raise
        finally:
            self.waiting.pop(number, None)

    def accept(self, text):
        """Takes a message of the server."""
        try:
            message = json.loads(text)
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError):
            self.num_noise += 1
            shown = text[:200].decode("utf-8", "replace").strip()
            print(f"MCP server '{self.name}' wrote: {shown}", file=sys.stderr, flush=True)
            if self.num_noise >= NOISE_MAX:
                raise ServerEnded(f"wrote {NOISE_MAX} lines that are no JSON-RPC") from None
            return
        if "method" in message:
            if "id" in message:  # a question of the server
                known = {"result": {}} if message["method"] == "ping" else {
                    "error": {"code": METHOD_NOT_FOUND, "message": "not supported"}}
                self.send({"id": message["id"], **known})
            return
        answer = self.waiting.get(message.get("id"))
        if answer is None or answer.done():
            return
        self.num_silent = 0
        fault = message.get("error")
        if fault is not None:
            text = fault.get("message") if isinstance(fault, dict) else None
            answer.set_exception(ToolError(str(text or fault)))
        elif not isinstance(message.get("result"), dict):
            answer.set_exception(ToolError("an answer without a result"))
        else:
            answer.set_result(message["result"])

    def end(self, why):
        """Every call that waits fails."""
        self.last_end = f"MCP server '{self.name}' {why}"
        if self.is_open:
            self.is_open = False
            self.shut()
        waiting, self.waiting = self.waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ServerEnded(self.last_end))

    async def list_tools(self):
        await self.start(START_SHARE * options["start_timeout"])
        tools, cursor = [], None
        for _ in range(PAGES_MAX):
            page = await asyncio.wait_for(
                self.ask("tools/list", {"cursor": cursor} if cursor else {}),
                options["tool_timeout"])
            found = page.get("tools")
            if not isinstance(found, list) or not all(is_tool(tool) for tool in found):
                raise ValueError(f"MCP server '{self.name}': an answer to tools/list without tools")
            tools += found
            cursor = page.get("nextCursor")
            if not cursor:
                return tools
        raise ValueError(f"MCP server '{self.name}' has more than {PAGES_MAX} pages of tools")

    async def call(self, tool, arguments, until):
        await self.start(options["tool_timeout"])
        try:
            result = await asyncio.wait_for(
                self.ask("tools/call", {"name": tool, "arguments": arguments}),
                until - asyncio.get_running_loop().time())
        except asyncio.TimeoutError:
            raise ToolError(f"no answer within {options['tool_timeout']:g} s") from None
        return text_of(result)


class StdioServer(Server):
    """A child process."""

    process = None

    async def open(self):
        self.process = await asyncio.create_subprocess_exec(
            self.spec["command"], *self.spec.get("args", []),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self.spec.get("env", {})}, cwd=self.spec.get("cwd"),
            limit=LINE_BYTES_MAX)
        self.reader = asyncio.ensure_future(self.read(self.process))

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def deliver(self, message):
        self.send(message)

    async def read(self, process):
        why = "ended"
        try:
            while line := await process.stdout.readline():
                if self.process is process:  # what an ended server wrote is of no use
                    self.accept(line)
        except ValueError:
            why = f"wrote a line of more than {LINE_BYTES_MAX} bytes"
        except ServerEnded as end:
            why = str(end)
        if self.process is process:
            self.end(why)
        code = await process.wait()
        print(f"MCP server '{self.name}' ended with code {code}", file=sys.stderr, flush=True)

    def shut(self):
        process, self.process = self.process, None
        process.stdin.close()  # ends what the process has started, such as the node of npx
        if process.returncode is None:
            process.kill()


class HttpServer(Server):
    """A session with a server that runs elsewhere."""

    endpoint = None

    async def open(self):
        self.endpoint = http.Endpoint(
            self.spec["url"], self.spec.get("headers", {}), LINE_BYTES_MAX)
        self.posts = set()  # messages on their way, with their answers

    def use_version(self, version):
        self.endpoint.use_version(version)

    def send(self, message):
        post = asyncio.ensure_future(self.post(self.endpoint, message))
        self.posts.add(post)
        post.add_done_callback(self.posts.discard)
        # A call beyond its time limit wants no answer any more.
        answer = self.waiting.get(message.get("id")) if "method" in message else None
        if answer is not None:
            answer.add_done_callback(lambda _: post.cancel())

    async def deliver(self, message):
        await self.post(self.endpoint, message, is_needed=True)
        if not self.is_open:
            raise ServerEnded(self.last_end)

    async def post(self, endpoint, message, is_needed=False):
        """Sends a message and accepts its answers. A fault ends the session, unless it may get
        lost: an answer or a cancel."""
        number = message.get("id") if "method" in message else None
        texts = endpoint.post({"jsonrpc": "2.0", **message})
        try:
            async for text in texts:
                self.accept(text)
            if number is not None and number in self.waiting and not self.waiting[number].done():
                raise ServerEnded("ended its answer without a result")
        except (OSError, http.HttpFault, ServerEnded) as why:
            if self.endpoint is endpoint and (is_needed or number is not None):
                self.end(f"cannot be reached: {why}" if isinstance(why, OSError) else str(why))
        finally:
            await texts.aclose()

    def shut(self):
        endpoint, self.endpoint = self.endpoint, None
        for post in self.posts:
            if post is not asyncio.current_task():
                post.cancel()
        close = asyncio.ensure_future(self.close(endpoint))
        closing.add(close)
        close.add_done_callback(closing.discard)

    async def close(self, endpoint):
        try:
            await asyncio.wait_for(endpoint.close(), CLOSE_SECONDS)
        except (OSError, http.HttpFault, asyncio.TimeoutError):
            return  # it ends by itself


def server_of_spec(name, spec):
    return (HttpServer if "url" in spec else StdioServer)(name, spec)


def is_tool(tool):
    return isinstance(tool, dict) and isinstance(tool.get("name"), str) and bool(tool["name"])


def text_of(result):
    """The texts of a result; what is not text is named."""
    texts = []
    for part in result.get("content") or []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("text", "")))
        elif kind == "resource" and "text" in (part.get("resource") or {}):
            texts.append(str(part["resource"]["text"]))
        elif kind == "resource_link":
            texts.append(str(part.get("uri", "")))
        else:
            texts.append(f"({kind} left out)")
    if not texts and result.get("structuredContent") is not None:
        texts.append(json.dumps(result["structuredContent"], ensure_ascii=False))
    return cut("\n".join(texts))


def cut(text):
    data = text.encode("utf-8", "replace")
    most = options["result_bytes_max"]
    if len(data) <= most:
        return data.decode()
    kept = data[:most].decode("utf-8", "ignore")
    return f"{kept}\n(cut: {len(data)} bytes, {most} are most)"


specs = read_servers(options["servers"])
closing = set()  # sessions over HTTP that end
shared = {}  # servers by name
server_of = {}  # the name of a tool's server
tools = []  # as chat templates read them
num_own = 0  # servers of single trajectories


async def start():
    try:
        await list_all_tools()
    except Exception:
        await end_servers()  # what they write must not follow the reason
        raise


async def stop():
    await end_servers()


async def end_servers():
    for server in shared.values():
        server.end("was closed")
    ends = [server.reader for server in shared.values() if server.reader is not None]
    if ends or closing:
        await asyncio.wait([*ends, *closing], timeout=CLOSE_SECONDS)


async def list_all_tools():
    for name, spec in specs.items():
        server = shared[name] = server_of_spec(name, spec)
        for tool in await server.list_tools():
            if tool["name"] in server_of:
                raise ValueError(
                    f"MCP servers '{server_of[tool['name']]}' and '{name}' have a tool "
                    f"'{tool['name']}'")
            server_of[tool["name"]] = name
            tools.append({"type": "function", "function": {
                "name": tool["name"], "description": tool.get("description") or "",
                "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}}}})
    if len(tools) > TOOLS_MAX:
        raise ValueError(f"the MCP servers have {len(tools)} tools, {TOOLS_MAX} are most")


async def result_of(value):
    return await value if inspect.isawaitable(value) else value


class Environment:
    def __init__(self, ordinal, seed, evaluation):
        more = {"evaluation": evaluation} if names(inner.Environment, "evaluation") else {}
        self.inner = inner.Environment(ordinal, seed, **more)
        self.reads_message = names(self.inner.step, "message")
        self.own = {}  # servers of this trajectory, by name

    async def task(self):
        task = await result_of(self.inner.task())
        task = {"prompt": task} if isinstance(task, str) else dict(task)
        return {**task, "tools": tools + list(task.get("tools") or [])}

    async def step(self, action, message=None):
        calls = (message or {}).get("tool_calls") or []
        is_for_us = any((call.get("function") or {}).get("name") in server_of for call in calls)
        # Calls that no server has are for the file's Environment, if it reads messages.
        if calls and (is_for_us or not self.reads_message):
            until = asyncio.get_running_loop().time() + options["tool_timeout"]
            answers = [await self.answer(i, call, until) for i, call in enumerate(calls)]
            return {"messages": answers}
        step = self.inner.step(action, message) if self.reads_message else self.inner.step(action)
        return step_answer(await result_of(step))

    async def answer(self, index, call, until):
        function = call.get("function") or {}
        name = function.get("name") or ""
        try:
            if index >= options["calls_max"]:
                raise ToolError(f"{options['calls_max']} calls a turn are most")
            if name not in server_of:
                raise ToolError(f"no tool {name!r}; tools: {', '.join(sorted(server_of))}")
            server = self.server(server_of[name])
            text = await server.call(name, arguments_of(function), until)
        except ToolError as why:
            text = cut(f"error: {why}")
        message = {"role": "tool", "name": name, "content": text}
        if call.get("id"):
            message["tool_call_id"] = call["id"]
        return message

    def server(self, name):
        if options["state"] == "shared":
            return shared[name]
        global num_own
        if name not in self.own:
            if num_own >= options["processes_max"]:
                raise RuntimeError(
                    f"the trajectories of this worker have {num_own} MCP servers, "
                    f"processes_max is {options['processes_max']}")
            num_own += 1
            self.own[name] = server_of_spec(name, specs[name])
        return self.own[name]

    async def close(self):
        global num_own
        for server in self.own.values():
            server.end("was closed with its trajectory")
        num_own -= len(self.own)
        self.own = {}
        if hasattr(self.inner, "close"):
            await result_of(self.inner.close())


def arguments_of(function):
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as why:
            raise ToolError(f"the arguments are not JSON: {why}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are not an object")
    return arguments
