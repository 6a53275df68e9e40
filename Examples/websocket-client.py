#!/usr/bin/env python3
"""Saves a clip of a camera over the WebSocket of any node, as raw H.264 or H.265, or as MP4 through ffmpeg.

    pip install websockets
    websocket-client.py --server ws://127.0.0.1:7402/v1/ws --token "$TOKEN" cam clip.h264
    websocket-client.py --server ws://127.0.0.1:7402/v1/ws --token "$TOKEN" cam clip.mp4 --seconds 10

If the node dies, the clip continues at another one: no frame is missing, and none is there twice.
The protocol is described in docs/media-over-websocket.md."""
import argparse, asyncio, json, ssl, struct, subprocess, sys
import websockets

KEY, CONFIGURATION, REPEATED, CONTINUED, CONTINUATION = 1, 2, 8, 32, 64
VIDEO = {1: "h264", 2: "hevc"}
START = b"\x00\x00\x00\x01"


def frames(message):
    """The media frames of a binary message: a link header, a media header and the payload each."""
    at = 0
    while at < len(message):
        length, kind = struct.unpack_from(">IB", message, at)
        if kind == 0x20:
            epoch, sequence, pts = struct.unpack_from(">IQq", message, at + 16)
            flags, track = message[at + 48], message[at + 49]
            yield (epoch, sequence), flags, track, bytes(message[at + 52 : at + 4 + length])
        at += 4 + length


def units(payload, size=4):
    """NAL units, each after its length, as Annex B has them."""
    at, out = 0, b""
    while at + size <= len(payload):
        length = int.from_bytes(payload[at : at + size], "big")
        out += START + payload[at + size : at + size + length]
        at += size + length
    return out


def parameters(codec, extra):
    """The parameter sets of `avcC` (ISO/IEC 14496-15 §5.3.3.1) or `hvcC` (§8.3.3.1), as Annex B has them."""
    if codec == 1:
        out, at = b"", 6
        for count in (extra[5] & 31, None):
            if count is None:
                count, at = extra[at], at + 1
            for _ in range(count):
                length = struct.unpack_from(">H", extra, at)[0]
                out, at = out + START + extra[at + 2 : at + 2 + length], at + 2 + length
        return out
    out, at = b"", 23
    for _ in range(extra[22]):
        count, at = struct.unpack_from(">H", extra, at + 1)[0], at + 3
        for _ in range(count):
            length = struct.unpack_from(">H", extra, at)[0]
            out, at = out + START + extra[at + 2 : at + 2 + length], at + 2 + length
    return out


class Clip:
    """Writes the video of a stream, from its first key frame on."""

    def __init__(self, file):
        self.file, self.track, self.codec, self.started, self.last, self.count = file, None, None, False, None, 0
        self.part = b""

    def add(self, position, flags, track, payload):
        if not flags & REPEATED:
            self.last = position
        if flags & CONFIGURATION:
            codec, extra = payload[1], payload[18 : 18 + struct.unpack_from(">H", payload, 16)[0]]
            if codec in VIDEO:
                self.track, self.codec = track, codec
                self.file.write(parameters(codec, extra))
        elif track == self.track:
            self.started = self.started or bool(flags & KEY)
            self.part = (self.part if flags & CONTINUATION else b"") + payload
            if self.started and not flags & CONTINUED:
                self.file.write(units(self.part))
                self.count += 1


async def watch(clip, args):
    servers, hello, play = [args.server], {"role": "ROLE_APP", "token": args.token}, {"device": args.device}
    tls, failures = ssl.create_default_context(cafile=args.ca) if args.server.startswith("wss:") else None, 0
    while failures < 20:
        try:
            async with websockets.connect(servers[0], max_size=None, open_timeout=2, ssl=tls) as socket:
                await socket.send(json.dumps({"hello": hello}))
                silence = 5
                async for message in timed(socket, lambda: silence):
                    if isinstance(message, bytes):
                        failures = 0
                        for frame in frames(message):
                            clip.add(*frame)
                        if clip.last:
                            play["after"] = {"epoch": clip.last[0], "sequence": str(clip.last[1])}
                        continue
                    message = json.loads(message)
                    if "welcome" in message:
                        hello["ticket"] = message["welcome"]["ticket"]
                        await socket.send(json.dumps({"id": 1, "request": "streams.play", "body": play}))
                        silence = max(0.2, message["welcome"]["streamKeepaliveMs"] * 3 / 1000)
                    elif message.get("id") == 1 and "response" in message:
                        play["grant"] = message["response"]["grant"]
                        others = message["response"]["endpoints"]
                        servers = [one for one in others if one != servers[0]] + [servers[0]]
                        servers.insert(0, servers.pop())
                    elif "error" in message or "goodbye" in message:
                        raise OSError(json.dumps(message))
        except (OSError, asyncio.TimeoutError, websockets.WebSocketException) as error:
            print(f"{servers[0]}: {error!r}", file=sys.stderr)
            failures += 1
            servers.append(servers.pop(0))
            await asyncio.sleep(0.05 * failures)
    raise SystemExit("no node serves the camera")


async def timed(socket, silence):
    """The messages of a socket. A node says something in each `streamKeepaliveMs`: a longer silence is its death."""
    while True:
        yield await asyncio.wait_for(socket.recv(), silence())


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("file", help="clip.h264, clip.h265 or clip.mp4")
    parser.add_argument("--server", default="ws://127.0.0.1:7402/v1/ws")
    parser.add_argument("--token", required=True)
    parser.add_argument("--ca", help="the authority of wss:// in a PEM file; default: those of the system")
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    raw = args.file if not args.file.endswith(".mp4") else args.file + ".raw"
    with open(raw, "wb") as file:
        clip = Clip(file)
        try:
            await asyncio.wait_for(watch(clip, args), args.seconds)
        except asyncio.TimeoutError:
            pass
    if raw != args.file:
        subprocess.run(
            ["ffmpeg", "-v", "error", "-y", "-f", VIDEO[clip.codec], "-i", raw, "-c", "copy", args.file], check=True)
    print(f"{args.file}: {clip.count} pictures, last position {clip.last}")


asyncio.run(main())
