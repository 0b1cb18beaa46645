"""The gateway of a run with scripted engine and learner, recording on: open loop, closed loop, idle
connections. Prints one line of JSON for each.

    .venv/bin/python bench/gateway/gateway.py build [--seconds 10]
"""

import argparse
import json
import pathlib
import re
import signal
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


def graph_text():
    text = (ROOT / "tests/cli/graphs/scripted.toml").read_text()
    text = text.replace("../../../examples", str(ROOT / "examples"))
    # Rollouts would share the two cores with the clients: one group at a time remains.
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
                return int(found.group(1)), worker_of(folder)
        time.sleep(0.1)
    raise SystemExit("the gateway does not listen")


def worker_of(folder):
    """The process that has the node, as `primerl-worker host --run FOLDER` shows it."""
    found = subprocess.run(
        ["pgrep", "-f", f"primerl-worker host --run {folder}"], capture_output=True, text=True
    )
    return found.stdout.split()[0] if found.stdout else "0"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--seconds", default="10")
    arguments = parser.parse_args()
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        graph, folder = scratch / "graph.toml", scratch / "run"
        graph.write_text(graph_text())
        run = subprocess.Popen(
            [binaries / "primerl-graph", "run", graph, "--out", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port, pid = port_of(folder)
            cases = [
                ("open", "5000", "512"),
                ("closed", "0", "512"),
                ("idle", pid, "8192"),
            ]
            for mode, value, connections in cases:
                words = [str(port), mode, value, connections, arguments.seconds]
                result = subprocess.run(
                    [binaries / "gateway_client", *words], capture_output=True, text=True
                )
                line = json.loads(result.stdout) if result.stdout else {"fault": result.stderr}
                print(json.dumps({"mode": mode, **line}), flush=True)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait()


if __name__ == "__main__":
    main()
