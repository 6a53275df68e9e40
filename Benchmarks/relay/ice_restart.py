"""What a standard client sees when the relay that it uses dies: aioice, two agents that use relays only.

    ice_restart.py --apus PATH [--json]

Three relays run. A uses the first, B the second, and messages go between them every 20 ms. The first is killed. Reported
are how long A takes to find out by itself (consent, RFC 7675), and how long an ICE restart takes that sends A to the
third relay: new candidates, new checks, until the first message is back. An application that notices silence sooner
restarts sooner.
"""

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import time

import aioice

SECRET = "a secret of the benchmark"
PORTS = (27990, 27992, 27994)


def credential():
    user = f"{int(time.time()) + 3600}:bench"
    code = hmac.new(SECRET.encode(), user.encode(), hashlib.sha1).digest()
    return user, base64.b64encode(code).decode()


def serve(apus, port):
    return subprocess.Popen(
        [apus, "relay", "serve", "--listen", f"127.0.0.1:{port}", "--secret", SECRET, "--open", "loopback",
         "--log-level", "error"])


async def pair(left, right):
    """Two connections, A through one relay and B through another, and how long they took."""
    begun = time.monotonic()
    user, password = credential()
    sides = []
    for port, controlling in ((left, True), (right, False)):
        side = aioice.Connection(
            ice_controlling=controlling, turn_server=("127.0.0.1", port), turn_username=user,
            turn_password=password, transport_policy=aioice.TransportPolicy.RELAY)
        sides.append(side)
    await asyncio.gather(*(side.gather_candidates() for side in sides))
    for side, other in (sides, sides[::-1]):
        side.remote_username, side.remote_password = other.local_username, other.local_password
        for candidate in other.local_candidates:
            await side.add_remote_candidate(candidate)
        await side.add_remote_candidate(None)
    await asyncio.gather(*(side.connect() for side in sides))
    await sides[0].send(b"first")
    await asyncio.wait_for(sides[1].recv(), 5)
    return sides, time.monotonic() - begun


async def talk(sides):
    """Sends until A's connection ends by itself; answers when the last message came and when it ended."""
    last = time.monotonic()

    async def listen():
        nonlocal last
        while True:
            await sides[1].recv()
            last = time.monotonic()

    listener = asyncio.ensure_future(listen())
    try:
        while True:
            await sides[0].send(b"message")
            await asyncio.sleep(0.02)
    except ConnectionError:
        return last, time.monotonic()
    finally:
        listener.cancel()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    relays = [serve(options.apus, port) for port in PORTS]
    try:
        await asyncio.sleep(0.7)
        sides, first = await pair(PORTS[0], PORTS[1])
        talking = asyncio.ensure_future(talk(sides))
        await asyncio.sleep(1)
        relays[0].kill()
        killed = time.monotonic()
        # An application that sees the silence restarts at once; what that costs is measured while A still believes.
        _, restart = await pair(PORTS[2], PORTS[1])
        last, ended = await asyncio.wait_for(talking, 90)
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
    seen = {
        "connect_ms": first * 1000,
        "consent_ends_ms": (ended - killed) * 1000,
        "restart_ms": restart * 1000,
        "silence_ms": (ended - last + restart) * 1000,
    }
    print(f"first connection         {seen['connect_ms']:8.0f} ms")
    print(f"A finds out by consent   {seen['consent_ends_ms']:8.0f} ms after the kill")
    print(f"ICE restart              {seen['restart_ms']:8.0f} ms")
    print(f"silence without an application that looks {seen['silence_ms']:8.0f} ms")
    if options.json:
        print(json.dumps(seen))


asyncio.run(main())
