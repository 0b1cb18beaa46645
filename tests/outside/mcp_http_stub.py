"""An MCP server over HTTP without dependencies, for tests. It prints its port, and ends with stdin.

    python3 mcp_http_stub.py FORM [FAULT]      FORM: json | events
                                               FAULT: dumb | refused | moved | page | closed

Each session counts its own sums. The tools whose names are faults have these.
"""

import itertools
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FORM, FAULT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
TOOLS = ["add", "count", "wrong", "hang", "busy", "gone", "text", "cut", "flood", "noise", "later",
         "never", "lost", "seen"]
sums = {}  # by session
numbers = itertools.count()  # of sessions: a name is used once
seen = []  # what was sent, for the tool `seen`
later = {}  # answers that are given when the stream is continued, by the number of its event


def text(words):
    return {"content": [{"type": "text", "text": str(words)}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", kind="application/json", more=()):
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin_events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, lines):
        data = b": a comment\r\n" + lines + b"\r\n\r\n"
        for part in (data[:7], data[7:]):  # a chunk may end anywhere
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.flush()

    def answer(self, number, result, more=()):
        body = json.dumps({"jsonrpc": "2.0", "id": number, **result}).encode()
        if FORM == "json":
            return self.reply(200, body, more=more)
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream"), *more,
                            ("Transfer-Encoding", "chunked")):
            self.send_header(name, value)
        self.end_headers()
        self.event(b'data: {"jsonrpc": "2.0", "id": "question", "method": "ping"}')
        half = body.index(b",") + 1  # two lines of data are one text with a line end
        self.event(b"event: message\r\ndata: " + body[:half] + b"\r\ndata:" + body[half:])
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        number = self.headers["Last-Event-ID"]
        seen.append(f"GET {number}")
        if number not in later:
            return self.reply(405)
        self.begin_events()
        self.event(b"data: " + json.dumps(later.pop(number)).encode())
        self.wfile.write(b"0\r\n\r\n")

    def do_DELETE(self):
        seen.append("DELETE")
        sums.pop(self.headers["Mcp-Session-Id"], None)
        self.reply(200)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, number = message.get("method"), message.get("id")
        session = self.headers["Mcp-Session-Id"]
        if method == "initialize":
            return self.initialize(number)
        version = self.headers["MCP-Protocol-Version"]
        if session not in sums or (method is not None and version != "2025-06-18"):
            return self.reply(400, json.dumps(
                {"error": {"message": f"no session {session}"}}).encode())
        if method is None or number is None:
            seen.append(method or f"answer to {number}")
            return self.reply(202)
        if method == "tools/list":
            return self.answer(number, {"result": {"tools": [
                {"name": name, "inputSchema": NUMBERS} for name in TOOLS]}})
        name, values = message["params"]["name"], message["params"]["arguments"]
        if name == "add":
            sums[session] += 1
            return self.answer(number, {"result": text(values["a"] + values["b"])})
        if name == "count":
            return self.answer(number, {"result": text(sums[session])})
        if name == "wrong":
            return self.answer(number, {"error": {"code": -32602, "message": "it went wrong"}})
        if name == "seen":
            return self.answer(number, {"result": text(sorted(set(seen)))})
        return getattr(self, name)(number)

    def initialize(self, number):
        if FAULT == "dumb":
            time.sleep(1000)
        if FAULT == "refused" or self.headers["Authorization"] != "Bearer key":
            return self.reply(401, b"who are you?")
        if FAULT == "moved":
            return self.reply(307, more=(("Location", "http://elsewhere/mcp"),))
        if FAULT == "page":
            return self.reply(200, b"<html>", "text/html")
        if FAULT == "closed":
            return self.connection.close()
        session = f"session-{next(numbers)}"
        sums[session] = 0
        return self.answer(number, {"result": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "serverInfo": {"name": "stub", "version": "1"}}}, (("Mcp-Session-Id", session),))

    # Faults, by the name of the tool.

    def hang(self, number):
        time.sleep(1000)

    def busy(self, number):
        self.reply(503, b"come back later")

    def gone(self, number):
        sums.clear()
        self.reply(404)

    def text(self, number):
        self.reply(200, b"5", "text/plain")

    def cut(self, number):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"{")
        self.close_connection = True

    def flood(self, number):
        self.reply(200, b" " * ((16 << 20) + 1))

    def noise(self, number):
        self.begin_events()
        for _ in range(100):
            self.event(b"data: no JSON")
        self.wfile.write(b"0\r\n\r\n")

    def later(self, number):
        self.begin_events()
        later["7"] = {"jsonrpc": "2.0", "id": number, "result": text("in the end")}
        self.event(b"id: 7\r\nretry: 1\r\ndata:")
        self.wfile.write(b"0\r\n\r\n")

    def never(self, number):
        self.begin_events()
        self.event(b"data:")
        self.wfile.write(b"0\r\n\r\n")

    def lost(self, number):
        self.begin_events()
        self.event(b"id: unknown\r\ndata:")
        self.wfile.write(b"0\r\n\r\n")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
