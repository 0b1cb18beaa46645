"""Golden vectors of block names, made by hashlib alone: block_hash.h says what is hashed.

    make_block_hashes.py > fixtures/block_hashes.json
"""
import hashlib
import json
import struct


def counted(data):
    return struct.pack("<I", len(data)) + data


def chain(case):
    """The 16-byte names of all blocks of a case, as hex."""
    size = case["block_size"]
    parent = hashlib.sha256(b"primerl-graph/kv/v2" + counted(case["fingerprint"].encode()) +
                            counted(case["layout"].encode()) + struct.pack("<I", size)).digest()
    names = []
    for begin in range(0, len(case["tokens"]), size):
        tokens = case["tokens"][begin:begin + size]
        data = parent + struct.pack("<I", size) + struct.pack(f"<{size}I", *tokens)
        data += b"\x01" + counted(struct.pack("<II", case["tenant"], case["adapter"]))
        if begin == 0 and case["salt"]:
            data += b"\x02" + counted(case["salt"].encode())
        elif begin == 0:
            data += b"\x03" + counted(struct.pack("<q", case["version"]))
        parent = hashlib.sha256(data).digest()
        names.append(parent[:16].hex())
    return names


def cases():
    base = dict(fingerprint="model", layout="all: 0.keys F32 8, 0.values F32 8", block_size=4, tokens=list(range(8)), tenant=0,
                adapter=0, salt="main:3", version=3)
    yield base
    yield {**base, "salt": ""}
    yield {**base, "salt": "", "version": 2**40}
    yield {**base, "salt": "main:4"}
    yield {**base, "tenant": 1}
    yield {**base, "adapter": 7}
    yield {**base, "fingerprint": ""}
    yield {**base, "layout": "all: 0.keys BF16 8, 0.values BF16 8"}
    yield {**base, "layout": ""}
    yield {**base, "block_size": 8}
    yield {**base, "block_size": 1, "tokens": [151935, 0, 2**31 - 1]}
    yield {**base, "block_size": 16, "tokens": [(i * 7919) % 151936 for i in range(64)]}


print(json.dumps([{**case, "names": chain(case)} for case in cases()], indent=1))
