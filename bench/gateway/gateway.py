"""The gateway of a run with scripted engine and learner, recording on, beside its peers: an epoll
echo of one thread and, if FASTAPI is a Python that has fastapi and uvicorn, an echo in FastAPI.
Prints one table, and with --json one line of JSON for each case.

    .venv/bin/python bench/gateway/gateway.py build [--seconds 10] [--fastapi FASTAPI] [--json]

Latencies of the open loop count from the time at which a request was due. "CPU" is what the
server's process used for a request, in user and in system mode; other work on the machine changes
the latencies more than the CPU.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EDGES = {
    "forward = [\n": ["gateway.generate -> router.generate"],
    "feedback = [\n": [
        "gateway.cancel -> router.cancel",
        "decode.completion -> gateway.completion",
        "prefill.refused -> gateway.completion",
        "router.refused -> gateway.completion",
        "broadcaster.live -> gateway.policy",
    ],
}
NODE = """
[resource.front]
kind = "outside"
backend = "http"
listen = "127.0.0.1:0"
requests_max = 8192

[node.gateway]
actor = "gateway"
max_inflight = 1024
max_waiting = 16384

[edges]"""
FASTAPI = """
import sys
import fastapi
import uvicorn

app = fastapi.FastAPI()


@app.post("/inference/v1/generate")
async def generate(body: dict):
    return {"request_id": "echo", "padding": "x" * 560, "count": len(body["token_ids"])}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
"""


def graph_text():
    text = (ROOT / "tests/cli/graphs/scripted.toml").read_text()
    text = text.replace("../../../examples", str(ROOT / "examples"))
    # Rollouts would share the cores with the clients: one group at a time remains.
    text = text.replace("max_inflight = 32", "max_inflight = 4")
    text = text.replace("batch_size = 16", "batch_size = 4")
    text = text.replace("max_steps = 8", "max_steps = 1000000000")
    text = text.replace("checkpoint_every = 4", "checkpoint_every = 0")
    for mark, edges in EDGES.items():
        text = text.replace(mark, mark + "".join(f'  "{edge}",\n' for edge in edges))
    return text.replace("\n[edges]", NODE)


def port_of(folder):
    for _ in range(600):
        for file in folder.glob("logs/*"):
            found = re.search(r"listens on http://127.0.0.1:(\d+)", file.read_text())
            if found:
                return int(found.group(1))
        time.sleep(0.1)
    raise SystemExit("the gateway does not listen")


def worker_of(folder):
    """The process that has the node, as `primerl-worker host --run FOLDER` shows it."""
    found = subprocess.run(
        ["pgrep", "-f", f"primerl-worker host --run {folder}"], capture_output=True, text=True
    )
    return found.stdout.split()[0] if found.stdout else "0"


@contextlib.contextmanager
def ended(process, how):
    try:
        yield process
    finally:
        process.send_signal(how)
        process.wait()


@contextlib.contextmanager
def gateway(binaries):
    with tempfile.TemporaryDirectory() as scratch:
        graph, folder = pathlib.Path(scratch) / "graph.toml", pathlib.Path(scratch) / "run"
        graph.write_text(graph_text())
        words = [binaries / "primerl-graph", "run", graph, "--out", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with ended(subprocess.Popen(words, **quiet), signal.SIGINT):
            yield port_of(folder), worker_of(folder)


@contextlib.contextmanager
def echo(binaries):
    words = [binaries / "gateway_echo"]
    with ended(subprocess.Popen(words, stdout=subprocess.PIPE, text=True), signal.SIGTERM) as run:
        yield int(run.stdout.readline()), str(run.pid)


@contextlib.contextmanager
def fastapi(python):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ended(subprocess.Popen([python, "-c", FASTAPI, str(port)]), signal.SIGTERM) as run:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield port, str(run.pid)


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(each) / os.sysconf("SC_CLK_TCK") for each in fields[11:13]]


def measured(binaries, server, port, pid, mode, value, connections, seconds):
    before = cpu_seconds(pid)
    words = [binaries / "gateway_client", port, mode, value, connections, seconds]
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    line = {"server": server, "mode": mode}
    line |= json.loads(result.stdout) if result.stdout else {"fault": result.stderr}
    if line.get("replies"):
        user, system = (b - a for a, b in zip(before, cpu_seconds(pid)))
        line["user_us"] = round(1e6 * user / line["replies"], 1)
        line["system_us"] = round(1e6 * system / line["replies"], 1)
    return line


def table(lines):
    columns = ["server", "mode", "requests_s", "p50_ms", "p99_ms", "max_ms"]
    columns += ["user_us", "system_us", "failed"]
    rows = [columns] + [[str(line.get(name, "")) for name in columns] for line in lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--seconds", default="10")
    parser.add_argument("--fastapi")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    servers = {"gateway": gateway(binaries), "echo": echo(binaries)}
    if arguments.fastapi:
        servers["fastapi"] = fastapi(arguments.fastapi)
    lines = []
    for name, server in servers.items():
        with server as (port, pid):
            for mode, value in (("open", 5000), ("closed", 0)):
                lines.append(
                    measured(binaries, name, port, pid, mode, value, 512, arguments.seconds)
                )
            if name == "gateway":
                idle = measured(binaries, name, port, pid, "idle", pid, 8192, arguments.seconds)
    print("load of the machine", *os.getloadavg())
    table(lines)
    print("8192 idle connections:", idle["with_them_kb"] - idle["before_kb"], "KiB more")
    if arguments.json:
        for line in lines + [idle]:
            print(json.dumps(line))


if __name__ == "__main__":
    main()
