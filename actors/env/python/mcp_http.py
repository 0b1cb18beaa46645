"""MCP over HTTP ("streamable HTTP"), for mcp_environment.py, with the standard library alone.

Each message that we send is one POST on a connection of its own. The answer is a JSON object, or a
stream of events that has one. A stream that ends before is continued by GET with Last-Event-ID, if
the server numbers its events. Redirects and proxies are not followed.
"""

import asyncio
import contextlib
import json
import ssl
from urllib.parse import urlsplit

HEADER_BYTES_MAX = 64 << 10
READ_BYTES = 64 << 10
EVENT_STREAM = "text/event-stream"
CONTINUED_MAX = 16  # times that one answer's stream is continued
RETRY_SECONDS_MAX = 5.0
SHOWN_BYTES = 400  # of the body of a refusal
INTERIM_MAX = 8  # answers with a status below 200, before the answer
SCHEMES = {"http": 80, "https": 443}


class HttpFault(Exception):
    """Its text follows the server's name: "answered with status 500"."""


def fault_of_url(url):
    """Why it is no address of a server; empty if it is one."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
    except ValueError as why:
        return str(why)
    if not known:
        return "it begins with http:// or https:// and a host"
    if "@" in parts.netloc:
        return "it has a user's name; write 'headers'"
    if any(character <= " " or character > "~" for character in url):
        return "it has a space or a character that is not ASCII"
    return ""


def fault_of_headers(headers):
    if not isinstance(headers, dict):
        return "is no object of texts"
    for name, value in headers.items():
        if not isinstance(value, str) or not is_text(value) or not is_text(name):
            return f"has {name!r}, which is no text of one line"
    return ""


def is_text(text):
    return text != "" and all(" " <= character <= "~" for character in text)


class Endpoint:
    """One session with the server at `url`."""

    def __init__(self, url, headers, bytes_max):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or SCHEMES[parts.scheme]
        self.target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.headers = {"Host": parts.netloc, **headers}
        self.bytes_max = bytes_max
        self.session = None

    def use_version(self, version):
        """The version of the protocol that the server has chosen."""
        if isinstance(version, str) and is_text(version):
            self.headers["MCP-Protocol-Version"] = version

    async def post(self, message):
        """The texts of the JSON-RPC messages that answer it."""
        position = Position()
        async with self.exchange("POST", json.dumps(message).encode()) as (status, headers, body):
            await self.refuse_faults(status, headers, body)
            session = headers.get("mcp-session-id", "")
            if self.session is None and is_text(session):
                self.session = session
            if status not in (202, 204):
                async for text in self.texts_of(headers, body, position):
                    yield text
        for _ in range(CONTINUED_MAX):
            if position.last_id is None or "id" not in message:
                return
            await asyncio.sleep(position.retry_seconds)
            seen, position.last_id = position.last_id, None
            async with self.exchange("GET", last_id=seen) as (status, headers, body):
                await self.refuse_faults(status, headers, body)
                async for text in self.texts_of(headers, body, position):
                    yield text
        raise HttpFault(f"closed the stream of one answer {CONTINUED_MAX + 1} times")

    async def close(self):
        """Ends the session at the server, which may refuse it."""
        if self.session is not None:
            async with self.exchange("DELETE") as (status, _, _):
                return status
        return None

    @contextlib.asynccontextmanager
    async def exchange(self, method, body=b"", last_id=None):
        """Status, headers and parts of the body of the answer to one request."""
        headers = {"Accept": f"application/json, {EVENT_STREAM}", "Accept-Encoding": "identity",
                   "Connection": "close", **self.headers}
        if method == "POST":
            headers.update({"Content-Type": "application/json", "Content-Length": len(body)})
        if self.session is not None:
            headers["Mcp-Session-Id"] = self.session
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        lines = [f"{method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=self.tls, limit=HEADER_BYTES_MAX)
        try:
            writer.write("\r\n".join(lines + ["", ""]).encode("ascii") + body)
            await writer.drain()
            status, headers = await read_head(reader)
            yield status, headers, parts_of(reader, headers)
        finally:
            writer.close()

    async def refuse_faults(self, status, headers, body):
        if 200 <= status < 300:
            return
        if status == 404 and self.session is not None:
            raise HttpFault("has ended its session")
        shown = b""
        async for part in body:
            shown += part
            if len(shown) > SHOWN_BYTES:
                break
        text = shown[:SHOWN_BYTES].decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError, TypeError, KeyError):
            text = str(json.loads(shown)["error"]["message"])
        if 300 <= status < 400:
            text = f"it is elsewhere, at {headers.get('location', 'no address')}"
        raise HttpFault(f"answered with status {status}" + (f": {text}" if text else ""))

    async def texts_of(self, headers, body, position):
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind == EVENT_STREAM:
            async for text in events_of(body, position, self.bytes_max):
                yield text
            return
        if kind != "application/json":
            raise HttpFault(f"answered with content of the type {kind[:80]!r}")
        texts, size = [], 0
        async for part in body:
            texts.append(part)
            size += len(part)
            if size > self.bytes_max:
                raise HttpFault(f"answered with more than {self.bytes_max} bytes")
        yield b"".join(texts)


class Position:
    """The event after which the stream of an answer continues."""

    def __init__(self):
        self.last_id = None  # of the last event; None: it cannot be
        self.retry_seconds = 0.0


async def read_head(reader):
    for _ in range(INTERIM_MAX):
        try:
            text = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise HttpFault(f"wrote headers of more than {HEADER_BYTES_MAX} bytes") from None
        except asyncio.IncompleteReadError:
            raise HttpFault("closed the connection without an answer") from None
        first, *lines = text.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise HttpFault(f"answered {first[:80]!r}, which is no HTTP/1.1")
        if int(words[1]) >= 200:
            fields = (line.partition(":") for line in lines)
            return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in fields}
    raise HttpFault(f"answered {INTERIM_MAX} times with a status below 200")


async def parts_of(reader, headers):
    """The bytes of a body, as they come."""
    try:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while size := int((await reader.readline()).split(b";")[0], 16):
                async for part in exactly(reader, size):
                    yield part
                await reader.readexactly(2)
        elif "content-length" in headers:
            async for part in exactly(reader, int(headers["content-length"])):
                yield part
        else:
            while part := await reader.read(READ_BYTES):
                yield part
    except ValueError:
        raise HttpFault("sent a body with a length that cannot be read") from None
    except asyncio.IncompleteReadError:
        raise HttpFault("closed the connection within an answer") from None


async def exactly(reader, size):
    if size < 0:
        raise ValueError(size)
    while size > 0:
        part = await reader.read(min(size, READ_BYTES))
        if not part:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(part)
        yield part


async def lines_of(parts, bytes_max):
    size, begun = 0, []
    async for part in parts:
        size += len(part)
        if size > bytes_max:
            raise HttpFault(f"answered with more than {bytes_max} bytes")
        *lines, rest = part.split(b"\n")
        for line in lines:
            yield (b"".join(begun) + line).rstrip(b"\r")
            begun.clear()
        begun.append(rest)


async def events_of(parts, position, bytes_max):
    """The data of each event; `position` follows the events' numbers."""
    data = []
    async for line in lines_of(parts, bytes_max):
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if not line:
            if any(data):
                yield b"\n".join(data)
            data = []
        elif name == b"data":
            data.append(value)
        elif name == b"id":
            number = value.decode("latin-1")
            position.last_id = number if is_text(number) else None
        elif name == b"retry" and value.isdigit():
            position.retry_seconds = min(int(value) / 1000, RETRY_SECONDS_MAX)
