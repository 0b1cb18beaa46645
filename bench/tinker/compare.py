#!/usr/bin/env python3
"""Samples a second of one SDK client, and of two, against three servers on one machine: this one,
SkyRL's Tinker server with its CPU backend, and a stub that answers at once. One after the other;
at most --limit seconds for each. The model has 1 M parameters, the adapter rank 8.

    python3.12 -m venv SKYRL && SKYRL/bin/pip install "skyrl[tinker,jax]==0.4.0" aiohttp
    python3 bench/tinker/compare.py --skyrl SKYRL --programs build/bin

SKYRL's environment has SDK 0.25, and its Python runs all clients. Its `tinker` extra lacks aiohttp.
Without --skyrl, --python names an environment with the SDK, and SkyRL is left out.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "examples/reverse_text/model"
# SkyRL starts its engine with `uv run ... -m skyrl.tinker.engine`. This stands for uv, which would
# download packages. The server reads the arguments of its parent, so this process stays.
UV = """#!/bin/sh
while [ "$1" != "-m" ]; do shift; done
case "$2" in skyrl.tinker.engine) exec "$SKYRL_PYTHON" "$@" ;; esac
"$SKYRL_PYTHON" "$@" &
trap 'kill $!' TERM INT
wait $!
wait $!
"""
GRAPH = """[graph]
name = "bench-tinker"
seed = 17

{tenants}
[model.policy]
path = "{model}"
served_as = ["bench"]

[resource.tinker]
listen = "127.0.0.1:{port}"
"""
TENANT = """[tenant.client_{number}]
client = true
seq_len = 64
checkpoint_every = 0
[tenant.client_{number}.adapter]
rank = 8
targets = ["all-linear", "lm_head"]
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(url, process, limit):
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url + "/api/v1/healthz", timeout=2):
                return
        time.sleep(0.2)
    raise RuntimeError(f"no server at {url} within {limit} s")


@contextlib.contextmanager
def running(command, folder, log, **settings):
    with open(folder / log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder,
                                   env=os.environ | settings, start_new_session=True)
        try:
            yield process
        finally:
            is_ours = "primerl" in str(command[0])
            os.killpg(process.pid, signal.SIGINT if is_ours else signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ours(args, folder, num_clients, port):
    file = folder / f"graph-{num_clients}.toml"
    tenants = "\n".join(TENANT.format(number=i) for i in range(num_clients))
    file.write_text(GRAPH.format(tenants=tenants, model=MODEL, port=port))
    command = [args.programs / "primerl-graph", "run", file, "--out", folder / f"run-{num_clients}"]
    return command, "bench", [f"client_{i}" for i in range(num_clients)], {}


def skyrl(args, folder, num_clients, port):
    shim = folder / "uv"
    shim.write_text(UV)
    shim.chmod(0o755)
    database = f"sqlite:///{folder}/skyrl-{num_clients}.db"
    settings = {"PATH": f"{folder}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu",
                "SKYRL_PYTHON": str(args.skyrl / "bin/python"), "HF_HUB_OFFLINE": "1"}
    backend = json.dumps({"max_lora_adapters": 4, "max_lora_rank": 8})
    command = [shim, "run", "--", "python", "-m", "skyrl.tinker.api", "--base-model", str(MODEL),
               "--backend", "jax", "--backend-config", backend, "--host", "127.0.0.1", "--port",
               str(port), "--checkpoints-base", str(folder / "skyrl"), "--database-url", database]
    return command, str(MODEL), [""] * num_clients, settings


def stub(args, folder, num_clients, port):
    return [sys.executable, HERE / "stub.py", str(port)], "stub", [""] * num_clients, {}


def measure(args, folder, server, num_clients):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command, base, projects, settings = server(args, folder, num_clients, port)
    log = f"{server.__name__}-{num_clients}.log"
    deadline = time.monotonic() + args.limit
    with running([str(part) for part in command], folder, log, **settings) as process:
        wait_until_healthy(url, process, args.limit)
        clients = [subprocess.Popen(
            [args.python, HERE / "client.py", url, base, project, "--steps", str(args.steps),
             "--warmup", str(args.warmup)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True) for project in projects]
        rows = []
        try:
            for client in clients:
                out, _ = client.communicate(timeout=max(deadline - time.monotonic(), 1))
                if client.returncode != 0:
                    raise RuntimeError(f"a client of {server.__name__} failed")
                rows.append(json.loads(out.splitlines()[-1]))
        finally:
            for client in clients:
                if client.poll() is None:
                    client.kill()
                    client.wait()
    return {"server": server.__name__, "clients": num_clients, "sdk": rows[0]["sdk"],
            "samples_per_s": round(sum(row["samples_per_s"] for row in rows), 1),
            "median_s": {part: round(statistics.median(row["median_s"][part] for row in rows), 4)
                         for part in rows[0]["median_s"]}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skyrl", type=pathlib.Path, help="a virtual environment with skyrl")
    parser.add_argument("--python", help="one with the SDK; as --skyrl")
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/bin"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--limit", type=float, default=400, help="seconds for each row")
    args = parser.parse_args()
    args.programs = args.programs.resolve()
    if args.skyrl:
        args.skyrl = args.skyrl.absolute()
    args.python = args.python or (args.skyrl / "bin/python" if args.skyrl else sys.executable)
    servers = [stub, ours] + ([skyrl] if args.skyrl else [])
    machine = {"cores": len(os.sched_getaffinity(0)), "load1": round(os.getloadavg()[0], 2)}
    print(json.dumps(machine), flush=True)
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-tinker-") as name:
        for num_clients in (1, 2):
            for server in servers:
                try:
                    row = measure(args, pathlib.Path(name), server, num_clients)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    row = {"server": server.__name__, "clients": num_clients, "error": str(error)}
                    log = pathlib.Path(name) / f"{server.__name__}-{num_clients}.log"
                    if log.exists():
                        row["log"] = log.read_text(errors="replace")[-2000:]
                found[row["server"], num_clients] = row.get("samples_per_s")
                print(json.dumps(row), flush=True)
    for num_clients in (1, 2):
        mine = found.get(("ours", num_clients))
        for other in ("skyrl", "stub"):
            if mine and found.get((other, num_clients)):
                ratio = round(mine / found[other, num_clients], 3)
                print(json.dumps({"clients": num_clients, f"ours_over_{other}": ratio}), flush=True)


if __name__ == "__main__":
    main()
