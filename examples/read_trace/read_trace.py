#!/usr/bin/env python3
"""Lists the trace of a run as text: read_trace.py RUN_FOLDER. Written from docs/formats/trace.md
alone, with Python's standard library; packed segments also need the package `zstandard`."""
import collections, json, pathlib, struct, sys

KINDS = {1: 16, 2: 104, 3: 88, 4: 32, 5: 48, 6: 40, 7: 24, 8: 32}  # fixed bytes
STEP_KINDS = ["message", "timer", "work", "drain", "peer", "command", "tenant"]
NONE, TABLE = 0xFFFFFFFF, []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ 0x82F63B78 * (number & 1)
    TABLE.append(number)

def crc32c(data, before=0):
    crc = before ^ 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF

def zstd(path):
    try:
        import zstandard
    except ImportError:
        sys.exit(f"{path}: packed with zstd; install the Python package 'zstandard' to read it")
    return zstandard

def unpacked(path):
    """The raw bytes of a segment file; a damaged block is left as zeros."""
    data = path.read_bytes()
    if data[:8] != b"PRMLTRZ\n":
        return data
    zstandard = zstd(path)
    version, _, size, block, count, table_crc, crc = struct.unpack_from("<IIQIIII", data, 8)
    if version != 3 or crc != crc32c(data[:36]) or table_crc != crc32c(data[40:40 + 16 * count]):
        sys.exit(f"{path}: its header is damaged")
    raw = bytearray(size)
    for i in range(count):
        at, packed, crc = struct.unpack_from("<QII", data, 40 + 16 * i)
        if crc == crc32c(data[at:at + packed]):
            part = zstandard.ZstdDecompressor().decompress(data[at:at + packed], block)
            raw[i * block:i * block + len(part)] = part
    return bytes(raw)

def frames(data, counts):
    """(kind, flags, count, group, frame) of every good frame; counts holes and damage."""
    if data[:8] != b"PRMLTRC\n" or struct.unpack_from("<I", data, 8)[0] != 3:
        sys.exit("not a trace segment of format version 3")
    if crc32c(data[:60]) != struct.unpack_from("<I", data, 60)[0]:
        sys.exit("the header of a segment is damaged")
    seed, at, bad = struct.unpack_from("<Q", data, 40)[0], 64, None
    while at + 16 <= len(data):
        length, crc, kind, flags, count, group = struct.unpack_from("<IIBBHI", data, at)
        start = (seed ^ at * 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93 % 2**64 >> 32
        good = max(16, KINDS.get(kind, 2**32)) <= length <= min(1114112, len(data) - at)
        if not good or crc32c(data[at + 8:at + length], start) != crc:
            bad = at if bad is None else bad
            if not data[at:at + 65536].strip(b"\0"):  # a long stretch of zeros
                at += 65528
            at += 8
            continue
        if bad is not None:
            counts["damage" if data[bad:bad + 4].strip(b"\0") else "hole"] += 1
        bad = None
        yield kind, flags, count, group, data[at:at + length]
        at += (length + 7) // 8 * 8
    if bad is not None and data[bad:].strip(b"\0"):
        counts["torn tail"] += 1

def msgpack(data, at=0):
    tag = data[at]  # returns (value, end position)
    number = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
              0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}.get(tag)
    if number:
        return struct.unpack_from(number, data, at + 1)[0], at + 1 + struct.calcsize(number)
    if tag < 0x80 or tag >= 0xE0:
        return tag - 256 * (tag >= 0xE0), at + 1
    if tag in (0xC2, 0xC3):
        return tag == 0xC3, at + 1
    size = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I",
            0xDC: ">H", 0xDD: ">I"}.get(tag)
    count = struct.unpack_from(size, data, at + 1)[0] if size else tag & (31 if tag >= 0xA0 else 15)
    at += 1 + (struct.calcsize(size) if size else 0)
    if 0xC4 <= tag <= 0xC6:
        return data[at:at + count], at + count
    if 0xA0 <= tag < 0xC0 or 0xD9 <= tag <= 0xDB:
        return data[at:at + count].decode(errors="replace"), at + count
    items = []
    for _ in range(count):
        item, at = msgpack(data, at)
        items.append(item)
    return items, at

def parse_type(text, at):
    if text.startswith("list<", at):
        item, at = parse_type(text, at + 5)
        return ("list", item), at + 1
    if text[at] == "{":
        fields, at = parse_fields(text, at + 1)
        return fields, at + 1
    end = min(i for i in (text.find(c, at) for c in ";>}") if i >= 0)
    return text[at:end], end

def parse_fields(text, at=0):
    fields = []
    while at < len(text) and text[at] != "}":
        colon = text.index(":", at)
        kind, end = parse_type(text, colon + 1)
        fields.append((text[at:colon], kind))
        at = end + 1
    return fields, at

def beside(frame, at, count, folder):  # Blobs, long arrays and long texts
    for _ in range(count):
        word = struct.unpack_from("<Q", frame, at)[0]
        size = word & ~(1 << 63)
        in_store = size > 65536 or word >> 63
        part = frame[at + 8:at + 8 + (32 if in_store else size)]
        yield (folder / "blobs" / part.hex()).read_bytes() if in_store else part
        at += 8 + (len(part) + 7) // 8 * 8

def by_schema(value, kind, blobs):
    if isinstance(kind, list):
        pairs = zip(kind, value, strict=True)
        return {name: by_schema(item, inner, blobs) for (name, inner), item in pairs}
    if isinstance(value, int) and (kind in ("blob", "text") or isinstance(kind, tuple)):
        bytes_beside = next(blobs)  # the value is its size
        if kind == "text":
            return bytes_beside.decode(errors="replace")
        value = value if kind == "blob" else bytes_beside
    if isinstance(kind, tuple) and isinstance(value, bytes):
        code = {"i32": "i", "f32": "f", "u8": "B"}[kind[1]]
        return list(struct.unpack(f"<{len(value) // struct.calcsize(code)}{code}", value))
    return [by_schema(item, kind[1], blobs) for item in value] if isinstance(kind, tuple) else value

def show(kind, flags, count, group, frame, catalog, folder):
    name = lambda table, i: catalog[table][i]["name"] if i != NONE else "-"
    if kind == 2:
        step, began, instance, us, how, subject, seq = struct.unpack_from("<QqIIB3xIQ", frame, 16)
        what = f"{catalog['links'][subject]['edge']} #{seq}" if how == 0 else STEP_KINDS[how]
        print(f"{began} {name('groups', group)}:{step} {name('instances', instance)} {what} "
              f"emits {count}, {us} us" + " FAILED" * (flags & 1))
    elif kind == 3:
        link, _, seq, _, _, which = struct.unpack_from("<IIQqII", frame, 24)
        size, kinds = struct.unpack_from("<I", frame, 80)[0], catalog["types"][which]
        blob = folder / "blobs" / frame[88:120].hex()
        body = blob.read_bytes() if flags & 1 else frame[88:88 + size]
        blobs = beside(frame, 88 + (32 if flags & 1 else (size + 7) // 8 * 8), count, folder)
        fields = by_schema(msgpack(body)[0], parse_fields(kinds["schema"])[0], blobs)
        print(f"  {kinds['name']} #{seq} {catalog['links'][link]['edge']}: {json.dumps(fields)}")

def main(folder):
    folder = folder / "trace" if (folder / "trace").is_dir() else folder
    files = {}
    for path in sorted(folder.glob("*.ptr*"), reverse=True):  # .ptr after .ptrz: it is kept
        if path.suffix in (".ptr", ".ptrz"):
            process, incarnation, number = path.stem.rsplit(".", 2)
            files[process, int(incarnation), int(number)] = path
    counts, catalog = collections.Counter(), None
    names = "catalog delivery payload note lifecycle gap sync end"
    for key in sorted(files):
        for frame in frames(unpacked(files[key]), counts):
            counts[names.split()[frame[0] - 1]] += 1
            if frame[0] == 1:
                text = frame[4][16:]
                packed = frame[1] & 1
                catalog = json.loads(zstd(folder).decompress(text) if packed else text)
            show(*frame, catalog, folder)
    print("total:", ", ".join(f"{counts[key]} {key}" for key in sorted(counts)) or "nothing")

if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1])) if len(sys.argv) == 2 else sys.exit(__doc__)
