"""One ICE agent (aioice) in a process of its own.

Writes its description as a line of JSON, reads the other's from its input, connects, exchanges messages over
the pair that was chosen, and writes what it saw as a second line. The controlling agent sends numbered messages
and expects each back; the other sends back what comes. Ends by itself after --seconds.
"""

import argparse
import asyncio
import hashlib
import json
import sys

import aioice


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--controlling", action="store_true")
    parser.add_argument("--relay", required=True, help="ADDRESS:PORT")
    parser.add_argument("--transport", default="udp", choices=["udp", "tcp", "tls"])
    parser.add_argument("--relay-only", action="store_true")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=25)
    return parser.parse_args()


def say(value):
    print(json.dumps(value), flush=True)


def payload(number):
    """A message whose length, odd ones among them, and bytes follow from its number."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return number.to_bytes(4, "big") + (seed * 40)[: 1 + number * 11 % 1150]


async def described(connection):
    """The other agent's description, from the input."""
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    other = json.loads(line)
    connection.remote_username, connection.remote_password = other["user"], other["password"]
    for candidate in other["candidates"]:
        await connection.add_remote_candidate(aioice.Candidate.from_sdp(candidate))
    await connection.add_remote_candidate(None)


async def exchange(connection, messages):
    """Sends ten at a time and gives the numbers that came back as they were sent."""
    back = set()
    for first in range(0, messages, 10):
        numbers = range(first, min(first + 10, messages))
        for number in numbers:
            await connection.send(payload(number))
        try:
            while not back.issuperset(numbers):
                data = await asyncio.wait_for(connection.recv(), 3)
                if data == payload(int.from_bytes(data[:4], "big")):
                    back.add(int.from_bytes(data[:4], "big"))
        except asyncio.TimeoutError:
            pass
    await connection.send(b"end")
    return len(back)


async def echo(connection):
    count = 0
    while True:
        data = await connection.recv()
        if data == b"end":
            return count
        count += 1
        await connection.send(data)


async def run(arguments):
    host, port = arguments.relay.rsplit(":", 1)
    server = (host, int(port))
    policy = aioice.TransportPolicy.RELAY if arguments.relay_only else aioice.TransportPolicy.ALL
    connection = aioice.Connection(
        ice_controlling=arguments.controlling,
        stun_server=server if arguments.transport == "udp" else None, turn_server=server,
        turn_username=arguments.user, turn_password=arguments.password,
        turn_transport="udp" if arguments.transport == "udp" else "tcp", turn_ssl=arguments.transport == "tls",
        use_ipv6=False, transport_policy=policy)
    await connection.gather_candidates()
    say({
        "user": connection.local_username, "password": connection.local_password,
        "candidates": [candidate.to_sdp() for candidate in connection.local_candidates]})
    await described(connection)
    await connection.connect()
    if arguments.controlling:
        count = await exchange(connection, arguments.messages)
    else:
        count = await echo(connection)
    # No public name of aioice tells the pair.
    pair = connection._nominated[1]
    say({
        "local": pair.local_candidate.type, "remote": pair.remote_candidate.type,
        "local_address": f"{pair.local_candidate.host}:{pair.local_candidate.port}",
        "remote_address": f"{pair.remote_candidate.host}:{pair.remote_candidate.port}", "messages": count})
    await connection.close()


arguments = parse()
try:
    asyncio.run(asyncio.wait_for(run(arguments), arguments.seconds))
except Exception as error:
    say({"error": f"{type(error).__name__}: {error}"})
    sys.exit(1)
