#!/usr/bin/env python3
"""Three tenants on one model: two loops, and a client. One leaves, a worker is killed, and no
tenant loses a step.

    python3 examples/hosted/three_tenants.py [--out RUN] [--steps 6] [-- MORE WORDS OF serve]

It needs no package. Its client speaks the wire of Tinker's SDK by hand, so that one can see it;
examples/tinker/rl_loop.py does the same with the SDK.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
PATIENCE = 240  # seconds for each thing that is waited for


def wait_for(what, look):
    """The first value of look() that is not None or False."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"there was no {what} within {PATIENCE} s")


class Run:
    """A served run and its commands."""

    def __init__(self, program, folder, more):
        self.program, self.folder = program, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [program, "serve", str(HERE / "clients.toml"), "--out", str(folder), "--set",
             f'resource.tinker.listen="127.0.0.1:{port}"', *more], stderr=subprocess.DEVNULL)

    def tenant(self, *words, check=True):
        done = subprocess.run([self.program, "tenant", *words, "--serve", str(self.folder),
                               "--json"], capture_output=True, text=True)
        if check and done.returncode != 0:
            sys.exit(f"tenant {words}: {done.stderr}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def steps(self, name):
        """Numbers of the training steps of a tenant, as metrics.jsonl lists them."""
        try:
            lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        all_lines = [json.loads(line) for line in lines if line.endswith("}")]
        return [line["step"] for line in all_lines
                if line.get("tenant") == name and any(key.startswith("loss/") for key in line)]

    def worker(self):
        status = subprocess.run([self.program, "ps", str(self.folder), "--json"],
                                capture_output=True, text=True)
        found = [each["pid"] for each in json.loads(status.stdout)["processes"] if each.get("pid")]
        return found[0] if found else None


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field of a protobuf message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(form, values, dtype):
    data = struct.pack(f"<{len(values)}{form}", *values)
    return field(1, data) + field(3, dtype) + field(4, len(values))


class Client:
    """Trains a tenant: a forward and backward pass and an update, again and again."""

    def __init__(self, run, key):
        self.run, self.key, self.seq = run, key, 0
        self.session = self.post("create_session", {"sdk_version": "0.38.0"})["session_id"]
        lora = {"rank": 8, "train_attn": True, "train_mlp": True, "train_unembed": True}
        self.model = self.future("create_model", {
            "session_id": self.session, "model_seq_id": 0, "base_model": "demo/words",
            "lora_config": lora})["model_id"]

    def post(self, route, body):
        """Repeats a request whose server has gone, as the SDK does. Returns JSON or bytes."""
        is_json = isinstance(body, dict)
        data = json.dumps(body).encode() if is_json else body
        headers = {"X-API-Key": self.key,
                   "Content-Type": "application/json" if is_json else "application/x-protobuf"}

        def ask():
            asked = urllib.request.Request(f"{self.run.url}/api/v1/{route}", data, headers)
            try:
                with urllib.request.urlopen(asked, timeout=60) as reply:
                    is_text = reply.headers.get_content_type() == "application/json"
                    return (json.load(reply) if is_text else reply.read()) or {"empty": True}
            except urllib.error.HTTPError as refused:
                if route == "retrieve_future" and refused.code in (404, 410):
                    return {"is_gone": True}  # the server was gone before it kept the request
                if refused.code not in (408, 409, 429) and refused.code < 500:
                    sys.exit(f"{route}: {refused.code} {refused.read().decode()}")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            return None
        return wait_for(f"answer to {route}", ask)

    def future(self, route, body):
        """The answer of a request; one whose future is lost is sent again."""
        request = self.post(route, body)["request_id"]
        while True:
            answer = self.post("retrieve_future", {"request_id": request})
            if isinstance(answer, dict) and answer.get("type") == "try_again":
                continue
            if isinstance(answer, dict) and answer.get("is_gone"):
                request = self.post(route, body)["request_id"]
                continue
            if isinstance(answer, dict) and "error" in answer:
                sys.exit(f"{route}: {answer['error']}")
            return answer

    def step(self):
        tokens = [5, 6, 7, 8]
        inputs = b""
        for name, values in (("target_tokens", tensor("q", tokens[1:], 2)),
                             ("weights", tensor("f", [1.0] * 3, 1))):
            inputs += field(2, field(1, name.encode()) + field(2, values))
        text = field(1, struct.pack("<3i", *tokens[:-1]))
        datum = field(1, field(1, text)) + inputs
        self.future("forward_backward", field(1, self.model.encode()) + field(2, self.seq + 1) +
                    field(3, datum) + field(4, b"cross_entropy"))
        self.future("optim_step", {"model_id": self.model, "seq_id": self.seq + 2,
                                   "adam_params": {"learning_rate": 1e-3}})
        self.seq += 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="primerl-graph")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=6, help="steps before and after the kill")
    parser.add_argument("more", nargs="*", help="further words of `serve`, after --")
    given = parser.parse_args()
    folder = given.out or pathlib.Path(tempfile.mkdtemp()) / "run"
    run = Run(given.program, folder, given.more)
    try:
        wait_for("run", lambda: run.tenant("ls", check=False) is not None)
        for name in ("alice", "bob"):
            file = pathlib.Path(tempfile.mkdtemp()) / f"{name}.toml"
            text = (HERE / f"{name}.toml").read_text()
            file.write_text(text.replace("max_steps = 100", "max_steps = 1000000"))
            run.tenant("add", str(file), "--wait")
        carol = run.tenant("add", str(HERE / "carol.toml"), "--wait")
        client = Client(run, carol["token"])
        for _ in range(given.steps):
            client.step()
        wait_for("step of alice", lambda: run.steps("alice"))
        run.tenant("remove", "alice")
        wait_for("end of alice", lambda: run.tenant("show", "alice", check=False) is None)
        print(f"alice has left after {len(run.steps('alice'))} steps")
        killed, before = run.worker(), run.steps("bob")
        os.kill(killed, signal.SIGKILL)
        print(f"worker {killed} was killed: bob had {len(before)} steps, carol {given.steps}")
        for _ in range(given.steps):
            client.step()
        wait_for("step of bob", lambda: len(run.steps("bob")) > len(before))
        run.process.send_signal(signal.SIGINT)
        run.process.wait(PATIENCE)
    finally:
        if run.process.poll() is None:
            run.process.kill()
    lost = []
    for name in ("alice", "bob", "carol"):
        steps = run.steps(name)
        print(f"{name}: {len(steps)} steps")
        if steps != list(range(1, len(steps) + 1)):
            lost.append(f"{name}: {steps}")
    if lost or len(run.steps("carol")) != 2 * given.steps:
        sys.exit(f"steps were lost or made twice: {lost}")
    print("no tenant lost a step")


if __name__ == "__main__":
    main()
