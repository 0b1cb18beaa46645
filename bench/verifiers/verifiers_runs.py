"""256 runs in flight at a verifiers server that answers at once (W2): the client of primerl-graph
beside the Python client of verifiers, with the same server and the same answers. Prints one line of
JSON for each. Needs a Python with verifiers 0.4, pyzmq and msgpack:

    python bench/verifiers/verifiers_runs.py build [--runs 2000] [--tokens 512]

The answer is one of a real server (tests/outside/verifiers/golden); its sampled message has --tokens
tokens.
"""

import argparse
import asyncio
import json
import multiprocessing
import pathlib
import resource
import subprocess
import time

import msgpack
import zmq

ROOT = pathlib.Path(__file__).resolve().parents[2]
INFLIGHT = 256


def unpack(data):
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def with_tokens(payload, tokens):
    """The last sampled node of a delta gets that many tokens."""
    for node in payload.get("nodes", []):
        if node["sampled"] and any(node["mask"]):
            node["token_ids"] = [7 + i % 400 for i in range(tokens)]
            node["mask"] = [True] * tokens
            node["is_content"] = [True] * tokens
            node["logprobs"] = [-0.25] * tokens
    return msgpack.packb(payload, use_bin_type=True)


def answer(tokens):
    """Kinds and payloads of one run that ended well."""
    golden = json.loads((ROOT / "tests/outside/verifiers/golden/w2-0.4.0.json").read_text())
    name = next(key for key, value in golden["expected"].items() if value.get("reward") == 1.0)
    frames = [[bytes.fromhex(each) for each in message["frames"]]
              for message in golden["frames"] if message["to"] == "client"]
    return [(kind, with_tokens(unpack(data), tokens))
            for run, kind, data in frames if run.decode() == name]


def serve(pipe, tokens):
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)  # as the real servers: else answers would be dropped
    router.setsockopt(zmq.RCVHWM, 0)
    router.bind("tcp://127.0.0.1:*")
    pipe.send(router.getsockopt_string(zmq.LAST_ENDPOINT))
    parts = answer(tokens)
    healthy = msgpack.packb({"success": True, "error": None})
    while True:
        peer, request, method, _ = router.recv_multipart()
        if method == b"run":
            for kind, data in parts:
                router.send_multipart([peer, request, kind, data], copy=False)
        else:
            router.send_multipart([peer, request, b"reply", healthy])


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def python_runs(address, runs):
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.types import SamplingConfig

    client = EnvClient(address)
    await client.wait_for_server_startup()
    config = TrainClientConfig(base_url="http://127.0.0.1:1/v1", api_key_var="PRIMERL_KEY")
    gate = asyncio.Semaphore(INFLIGHT)

    async def one(number):
        async with gate:
            episode = await client.run(config, "main", SamplingConfig(), {"idx": number})
        return sum(len(branch.token_ids) for trace in episode.traces for branch in trace.branches)

    await one(0)
    began, before = time.monotonic(), cpu_seconds()
    tokens = sum(await asyncio.gather(*(one(number) for number in range(runs))))
    seconds, cpu = time.monotonic() - began, cpu_seconds() - before
    await client.close()
    return {"runs": runs, "seconds": seconds, "client_cpu_ms_per_run": cpu * 1e3 / runs,
            "tokens": tokens}


def python_client(pipe, address, runs):
    pipe.send(asyncio.run(python_runs(address, runs)))


def in_process(function, *arguments):
    """Runs it in a fresh process; the process and what it sends first."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=function, args=(there, *arguments), daemon=True)
    process.start()
    there.close()  # so that the end of the process is seen
    return process, here.recv()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    server, address = in_process(serve, chosen.tokens)
    for _ in range(chosen.rounds):
        process, seen = in_process(python_client, address, chosen.runs)
        process.join()
        print(json.dumps({"client": "verifiers", **seen}), flush=True)
        pool = json.dumps({"address": address})
        done = subprocess.run(
            [chosen.build / "bin/verifiers_client", pool, str(chosen.runs), str(INFLIGHT)],
            capture_output=True, text=True, check=True)
        print(json.dumps({"client": "primerl-graph", **json.loads(done.stdout)}), flush=True)
    server.kill()


if __name__ == "__main__":
    main()
