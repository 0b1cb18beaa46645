#!/usr/bin/env python3
"""A server of the Tinker wire that computes nothing and answers at once: the most that a client of
the SDK can reach. It keeps no state but the answers that clients have not fetched.

    stub.py PORT
"""

import asyncio
import json
import struct
import sys


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def fields_of(message):
    """(number, bytes) of each field that has a length."""
    at = 0

    def read():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(message):
        tag = read()
        if tag & 7 == 2:
            size = read()
            yield tag >> 3, message[at:at + size]
            at += size
        elif tag & 7 == 0:
            read()
        else:
            at += 8


def num_tokens(datum):
    """Of its model input: chunks of int32."""
    return sum(len(tokens) // 4
               for number, chunk in fields_of(datum) if number == 1
               for kind, text in fields_of(chunk) if kind == 1
               for part, tokens in fields_of(text) if part == 1)


def loss_answer(body):
    lengths = [num_tokens(datum) for number, datum in fields_of(body) if number == 3]
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + 4 * length)
    numbers = struct.pack("<f", -0.5) * sum(lengths)
    tensor = field(1, numbers) + field(2, struct.pack(f"<{len(offsets)}q", *offsets))
    tensor += varint(3 << 3) + varint(1)
    record = field(2, field(1, b"logprobs") + field(2, tensor)) + varint(3 << 3) + varint(
        len(lengths))
    metric = field(1, b"loss:sum") + varint(2 << 3 | 1) + struct.pack("<d", 1.5)
    return field(1, b"ArrayRecord") + field(2, record) + field(3, metric)


def samples_answer(asked):
    count = asked["sampling_params"].get("max_tokens") or 16
    sequence = varint(1 << 3) + varint(1) + field(2, struct.pack("<i", 5) * count)
    sequence += field(3, struct.pack("<f", -0.25) * count)
    return field(1, sequence) * (asked.get("num_samples") or 1)


class Stub:
    def __init__(self):
        self.answers = {}
        self.num_names = 0

    def name(self):
        self.num_names += 1
        return str(self.num_names)

    def future(self, answer, **more):
        request = "r" + self.name()
        self.answers[request] = answer
        return {"request_id": request} | more

    def answer(self, route, body):
        """bytes are protobuf, else JSON."""
        if route == "forward_backward":
            return self.future(loss_answer(body))
        asked = json.loads(body or b"{}")
        if route == "retrieve_future":
            return self.answers.pop(asked["request_id"])
        if route == "asample":
            ids = ["s" + self.name() for _ in range(asked.get("num_samples") or 1)]
            return self.future(samples_answer(asked), sample_sequence_ids=ids)
        if route == "create_model":
            return self.future({"model_id": "m" + self.name() + ":train:0"})
        if route == "optim_step":
            return self.future({"metrics": {}})
        if route == "save_weights_for_sampler":
            return self.future({"sampling_session_id": "s" + self.name() + ":sample:0"})
        if route == "create_session":
            return {"session_id": "session-" + self.name()}
        if route == "get_info":
            return {"model_id": asked["model_id"], "is_lora": True, "lora_rank": 8,
                    "model_data": {"arch": "qwen3", "model_name": "stub", "tokenizer_id": "stub"}}
        if route.startswith("samplers/"):
            return {"sampler_id": route.removeprefix("samplers/"), "base_model": "stub"}
        if route == "get_server_capabilities":
            return {"supported_models": [{"model_name": "stub"}]}
        if route == "telemetry":
            return {"status": "accepted"}
        return {"status": "ok"}

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                size = next((int(line.split(":")[1]) for line in lines
                             if line.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(size)
                route = lines[0].split(" ")[1].split("?")[0].removeprefix("/api/v1/")
                answer = self.answer(route, body)
                kind = "application/x-protobuf"
                if not isinstance(answer, bytes):
                    kind, answer = "application/json", json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n"
                             f"Content-Length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main():
    server = await asyncio.start_server(Stub().serve, "127.0.0.1", int(sys.argv[1]))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
