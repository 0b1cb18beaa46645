"""An MCP server without dependencies, for tests: its tools add, fail, hang, end, write too much.

    python3 mcp_stub.py [FAULT]      FAULT: dumb | twice | noise | exit
"""

import json
import os
import sys
import time

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
if FAULT == "exit":
    sys.exit("no licence")
if FAULT == "dumb":
    time.sleep(1000)
num_added = 0
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
           "required": ["a", "b"]}


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name, schema=None):
    return {"name": name, "description": f"{name} it", "inputSchema": schema or {"type": "object"}}


def call(name, arguments):
    global num_added
    if name == "add":
        num_added += 1
        return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}
    if name == "count":
        return {"content": [{"type": "text", "text": f"{num_added} in {os.environ.get('PLACE')}"}]}
    if name == "wrong":
        return {"content": [{"type": "text", "text": "it went wrong"}], "isError": True}
    if name == "image":
        return {"content": [{"type": "image", "data": "", "mimeType": "image/png"},
                            {"type": "resource", "resource": {"uri": "x:y", "text": "a page"}}]}
    if name == "giant":
        return {"content": [{"type": "text", "text": "é" * arguments["characters"]}]}
    if name == "end":
        os._exit(3)
    if name == "hang":
        time.sleep(1000)
    if name == "late":
        time.sleep(0.2)
        return {"structuredContent": {"late": True}}
    if name == "garbage":
        for _ in range(arguments.get("lines", 1)):
            sys.stdout.write("this is no JSON\n")
        return {"content": [{"type": "text", "text": "garbage was written"}]}
    if name == "flood":
        sys.stdout.write("x" * (17 << 20) + "\n")
    return None


for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        assert message["params"]["protocolVersion"] == "2025-11-25"
        write({"id": number, "result": {"protocolVersion": "2025-06-18", "capabilities": {},
                                        "serverInfo": {"name": "stub", "version": "1"}}})
    elif method == "notifications/initialized":
        write({"id": "question", "method": "ping"})
        write({"method": "notifications/message", "params": {}})
    elif method == "tools/list" and "cursor" not in message.get("params", {}):
        names = ["count", "wrong", "image", "giant", "end", "hang", "late", "garbage", "flood"]
        write({"id": number, "result": {"tools": [tool("add", NUMBERS)] + [tool(n) for n in names],
                                        "nextCursor": "2"}})
    elif method == "tools/list":
        last = "add" if FAULT == "twice" else "unlisted"
        write({"id": number, "result": {"tools": [tool(last)]}})
    elif method == "tools/call":
        params = message["params"]
        result = call(params["name"], params["arguments"])
        if result is None:
            write({"id": number, "error": {"code": -32602, "message": "unknown tool"}})
        else:
            write({"id": number, "result": result})
