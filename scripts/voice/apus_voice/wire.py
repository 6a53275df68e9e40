"""Wyoming events on a stream: one line of JSON, then data, then a payload (Wyoming 1.10).

The reference implementation has no bounds on lengths; here each part has one.
"""

import asyncio
import json

VERSION = "1.10.2"


class WireError(Exception):
    """Bytes that are no event, or one that passes a bound. The connection ends."""


class Event:
    """One event."""

    def __init__(self, kind, data=None, payload=b""):
        self.kind, self.data, self.payload = kind, data or {}, payload

    def __repr__(self):
        return f"{self.kind} {self.data} {len(self.payload)} bytes"


def encode(event):
    """The bytes of an event."""
    head = {"type": event.kind, "version": VERSION}
    data = json.dumps(event.data, ensure_ascii=False).encode() if event.data else b""
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return json.dumps(head).encode() + b"\n" + data + event.payload


def _object(text, what):
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise WireError(f"{what} is not an object")
    return value


def _length(head, key, most):
    value = head.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"{key} is not a number of bytes")
    if value > most:
        raise WireError(f"{key} is {value}, at most {most}")
    return value


async def read(reader, limits, idle_seconds=None):
    """The next event; none at the end of the stream.

    The reader's limit is limits.line_bytes_max. idle_seconds bounds the wait for the first byte; TimeoutError then.
    """
    async with asyncio.timeout(idle_seconds):
        first = await reader.read(1)
    if not first:
        return None
    try:
        async with asyncio.timeout(limits.event_seconds_max):
            return await _rest(reader, first, limits)
    except TimeoutError as error:
        raise WireError(f"an event took longer than {limits.event_seconds_max} s") from error
    except asyncio.IncompleteReadError:
        return None


async def _rest(reader, first, limits):
    try:
        line = first + (await reader.readuntil(b"\n") if first != b"\n" else b"")
    except asyncio.LimitOverrunError as error:
        raise WireError(f"a line has more than {limits.line_bytes_max} bytes") from error
    head = _object(line, "an event")
    kind = head.get("type")
    if not isinstance(kind, str):
        raise WireError("an event has no type")
    data = head.get("data") or {}
    if not isinstance(data, dict):
        raise WireError("data is not an object")
    length = _length(head, "data_length", limits.data_bytes_max)
    payload_length = _length(head, "payload_length", limits.payload_bytes_max)
    if length:
        data.update(_object(await reader.readexactly(length), "data"))
    payload = await reader.readexactly(payload_length) if payload_length else b""
    return Event(kind, data, payload)


async def write(writer, event, limits):
    """Sends an event. Fails if the client does not take it in time."""
    writer.write(encode(event))
    async with asyncio.timeout(limits.event_seconds_max):
        await writer.drain()
