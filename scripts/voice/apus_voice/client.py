"""A client of a Wyoming provider, for judging and trying it."""

import asyncio
import urllib.parse

from . import limits, wire

BOUNDS = limits.Limits()


class Client:
    """One connection, which asks one thing after the other."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, address):
        """Connects to unix:///PATH or tcp://HOST:PORT."""
        parts = urllib.parse.urlsplit(address)
        if parts.scheme == "unix":
            return cls(*await asyncio.open_unix_connection(parts.path, limit=BOUNDS.line_bytes_max))
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=BOUNDS.line_bytes_max))

    async def send(self, kind, data=None, payload=b""):
        """Sends an event."""
        await wire.write(self._writer, wire.Event(kind, data, payload), BOUNDS)

    async def receive(self, *kinds):
        """The next event of these kinds, or an error; others are passed over. None if the server has left."""
        while True:
            event = await wire.read(self._reader, BOUNDS)
            if event is None or event.kind == "error" or event.kind in kinds:
                return event

    async def transcribe(self, grammar=None, sentences=None):
        """Begins an utterance; with the sentences if there is a grammar that the server may not know."""
        data = {"language": "en"}
        if grammar is not None:
            data["context"] = {"apus": {"grammar": grammar}}
            if sentences is not None:
                data["context"]["apus"]["sentences"] = sentences
        await self.send("transcribe", data)
        await self.send("audio-start", {"rate": 16000, "width": 2, "channels": 1})

    async def audio(self, audio):
        """Sends a part of an utterance."""
        await self.send("audio-chunk", {"rate": 16000, "width": 2, "channels": 1}, audio)

    async def close(self):
        """Leaves."""
        self._writer.close()
