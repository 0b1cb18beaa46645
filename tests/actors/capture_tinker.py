#!/usr/bin/env python3
"""Writes tests/actors/tinker_bodies.h: what the Tinker SDK sends, captured by a stub server.

Needs one virtual environment for each version of the SDK:

    python3 -m venv /tmp/tinker-0.25 && /tmp/tinker-0.25/bin/pip install "tinker==0.25.*"
    python3 -m venv /tmp/tinker-0.38 && /tmp/tinker-0.38/bin/pip install "tinker==0.38.*"
    python3 tests/actors/capture_tinker.py /tmp/tinker-0.25 /tmp/tinker-0.38

The stub answers with the forms of actors/tinker, so a version of the SDK that refuses one of them
makes the script fail.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SESSION = "session-1"
MODEL = SESSION + ":train:0"
SAMPLER = SESSION + ":sample:0"


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def batch_answer(lengths):
    """A ForwardBackwardOutput with log-probabilities -0.5 for each target."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + 4 * length)
    numbers = struct.pack(f"<{sum(lengths)}f", *[-0.5] * sum(lengths))
    tensor = field(1, numbers) + field(2, struct.pack(f"<{len(offsets)}q", *offsets))
    tensor += varint(3 << 3) + varint(1)
    record = field(2, field(1, b"logprobs") + field(2, tensor)) + varint(3 << 3) + varint(
        len(lengths))
    metric = field(1, b"loss:sum") + varint(2 << 3 | 1) + struct.pack("<d", 1.5)
    return field(1, b"ArrayRecord") + field(2, record) + field(3, metric)


def sample_answer(prompt_logprobs):
    sequence = field(2, struct.pack("<2i", 5, 6)) + field(3, struct.pack("<2f", -0.25, -0.75))
    out = field(1, sequence)
    if prompt_logprobs:
        out += field(2, struct.pack("<3f", float("nan"), -1.0, -2.0))
    return out


class Stub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bodies = []
    answers = {}
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def send(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value, status=200):
        self.send(json.dumps(value).encode(), status=status)

    def future(self, answer):
        with Stub.lock:
            name = f"r{len(Stub.answers)}"
            Stub.answers[name] = answer
        return {"request_id": name}

    def do_GET(self):
        route = self.path.removeprefix("/api/v1/")
        if route == "get_server_capabilities":
            return self.send_json({"supported_models": [
                {"model_name": "tiny", "max_context_length": 128, "trainable": True,
                 "sampleable": True}]})
        if route == "healthz":
            return self.send_json({"status": "ok"})
        if route.startswith("samplers/"):
            return self.send_json({"sampler_id": route.split("/")[1], "base_model": "tiny"})
        self.send_json({"detail": "no such route"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        route = self.path.removeprefix("/api/v1/")
        # Heartbeats depend on the time, and one future is enough.
        is_known = (route, body) in Stub.bodies or route == "session_heartbeat" or (
            route == "retrieve_future" and any(each == route for each, _ in Stub.bodies))
        if not is_known:
            Stub.bodies.append((route, body))
        if route == "retrieve_future":
            answer = Stub.answers[json.loads(body)["request_id"]]
            if isinstance(answer, bytes):
                assert "application/x-protobuf" in self.headers["Accept"]
                return self.send(answer, "application/x-protobuf")
            return self.send_json(answer)
        self.answer(route, body)

    def answer(self, route, body):
        if route == "forward_backward":
            assert self.headers["Content-Type"] == "application/x-protobuf"
            return self.send_json(self.future(batch_answer(Stub.lengths)))
        asked = json.loads(body or b"{}")
        path = asked.get("path")
        plain = {
            "client/config": {"pjwt_auth_enabled": False, "use_pyqwest_transport": False},
            "create_session": {"session_id": SESSION},
            "session_heartbeat": {},
            "telemetry": {"status": "accepted"},
            "get_info": {"model_id": MODEL, "is_lora": True, "lora_rank": 8,
                         "model_data": {"arch": "qwen3", "model_name": "tiny",
                                        "tokenizer_id": "tiny"}},
            "create_sampling_session": {"sampling_session_id": SAMPLER},
        }
        futures = {
            "create_model": {"model_id": MODEL},
            "optim_step": {"metrics": {"grad_norm": 1.0}},
            "save_weights": {"path": f"tinker://{MODEL}/weights/{path}"},
            "save_weights_for_sampler": {"path": f"tinker://{MODEL}/sampler_weights/{path}"}
                                        if path else {"sampling_session_id": SAMPLER},
            "load_weights": {"path": path, "model_id": asked.get("model_id", MODEL)},
        }
        if route in plain:
            return self.send_json(plain[route])
        if route in futures:
            return self.send_json(self.future(futures[route]))
        if route == "asample":
            made = self.future(sample_answer(asked.get("prompt_logprobs")))
            return self.send_json(made | {"sample_sequence_ids": ["s0"] * asked["num_samples"]})
        self.send_json({"detail": "no such route"}, 404)


def drive():
    """The client, in the environment of one SDK."""
    import numpy
    import tinker
    from tinker import types

    def tensor(values, kind, shape=None):
        return types.TensorData(data=values, dtype=kind, shape=shape or [len(values)])

    service = tinker.ServiceClient()
    assert service.get_server_capabilities().supported_models[0].model_name == "tiny"
    training = service.create_lora_training_client(base_model="tiny", rank=8, seed=7)
    assert training.get_info().model_data.model_name == "tiny"
    plain = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": tensor([2, 3, 4], "int64"),
                        "weights": tensor([0.0, 1.0, -0.5], "float32")})
    policy = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": tensor([2, 3, 4], "int64"),
                        "logprobs": tensor([0.0, -1.0, -2.0], "float32"),
                        "advantages": tensor([0.0, 0.5, 0.5], "float32")})
    two = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": tensor([2, 3, 4, 5], "int64", [2, 2]),
                        "weights": tensor([1.0, 0.0, 0.5, 0.25], "float32", [2, 2])})
    result = training.forward_backward([plain], "cross_entropy").result()
    assert numpy.allclose(result.loss_fn_outputs[0]["logprobs"].to_numpy(), -0.5), result
    assert result.metrics == {"loss:sum": 1.5}, result.metrics
    training.forward_backward([policy], "ppo", {"clip_low_threshold": 0.7}).result()
    training.forward([two], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.001)).result()
    assert training.save_state("step-1").result().path.endswith("/weights/step-1")
    training.save_weights_for_sampler("snap").result()
    training.load_state(f"tinker://{MODEL}/weights/step-1").result()
    sampling = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=4, temperature=0.5, seed=3, stop=["end"])
    answer = sampling.sample(types.ModelInput.from_ints([1, 2, 3]), 1, params,
                             include_prompt_logprobs=True).result()
    assert answer.sequences[0].tokens == [5, 6], answer
    assert answer.prompt_logprobs == [None, -1.0, -2.0], answer
    other = service.create_sampling_client(base_model="tiny")
    other.sample(types.ModelInput.from_ints([1]), 1,
                 types.SamplingParams(max_tokens=1, stop=[])).result()
    print("accepted", tinker.__version__)


def capture(environment):
    Stub.bodies, Stub.answers, Stub.lengths = [], {}, [3]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = os.environ | {"TINKER_BASE_URL": f"http://127.0.0.1:{server.server_port}",
                             "TINKER_API_KEY": "tml-stub", "TINKER_TELEMETRY": "0"}
    subprocess.run([pathlib.Path(environment) / "bin" / "python", __file__, "--drive"],
                   check=True, timeout=100, env=settings)
    server.shutdown()
    return list(Stub.bodies)


def literal(body):
    """C++ string literals of at most 80 bytes; an escape ends its literal where a digit follows."""
    lines, line = [], ""
    for byte in body:
        text = chr(byte)
        if text in '"\\':
            piece = "\\" + text
        elif 32 <= byte < 127 and text != "?":
            piece = text
        else:
            piece = f"\\{byte:03o}"
        if len(line) + len(piece) > 80:
            lines.append(line)
            line = ""
        line += piece
    lines.append(line)
    return "\n".join(f'       "{each}"sv' if i == len(lines) - 1 else f'       "{each}"'
                     for i, each in enumerate(lines))


def main():
    out = ["/// Bodies that the Tinker SDK sends, written by tests/actors/capture_tinker.py.",
           "#pragma once", "", "#include <string_view>", "#include <vector>", "",
           "namespace primerl::tinker {", "", "struct CapturedBody {",
           "  std::string_view sdk, route, body;", "};", "",
           "inline const std::vector<CapturedBody>& captured_bodies() {",
           "  using namespace std::string_view_literals;",
           "  static const std::vector<CapturedBody> all = {"]
    for environment in sys.argv[1:]:
        python = pathlib.Path(environment) / "bin" / "python"
        version = subprocess.run([python, "-c", "import tinker; print(tinker.__version__)"],
                                 check=True, capture_output=True, text=True).stdout.strip()
        for route, body in capture(environment):
            out.append(f'      {{"{version}"sv, "{route}"sv,\n{literal(body)}}},')
    out += ["  };", "  return all;", "}", "", "}  // namespace primerl::tinker", ""]
    header = pathlib.Path(__file__).parent / "tinker_bodies.h"
    header.write_text("\n".join(out))
    subprocess.run(["clang-format", "-i", header], check=True)


if __name__ == "__main__":
    drive() if sys.argv[1:] == ["--drive"] else main()
