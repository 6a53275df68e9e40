#!/usr/bin/env python3
"""Replicated entities of a real cluster: a node hands its shards over, and a node is killed, under load.

    cluster.py APUS-DOORS [--entities N] [--clients N] [--think-ms N] [--base-port P]

Clients think between two calls, so that the calls' times are the cluster's and not those of a full machine; with
--think-ms 0 they use up what the machine has.

Prints one JSON object: handover_pause_ms, the longest call while a node is drained, which hands over a third of all
shards, at most 64 at a time; handover_of_64_pause_ms, the longest call of as long a part of that as 64 shards take, the
median of all parts; handover_failed; promotion_ms, from the kill
until the first answer of an entity of the dead node, promotion_max_ms until the last one that waited, and
promotion_lost, the acknowledged changes that are gone. quiet_pause_ms is the longest call while nothing happens.
"""
import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SHARDS = 4096


class Client:
    """One request at a time over one connection, by REST."""

    def __init__(self, port, token):
        self.port, self.token = port, token

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, door, what):
        head = f"Host: localhost\r\nAuthorization: Bearer {self.token}\r\n"
        if what == "pass":
            body = '{"quiet":true}'
            head += f"Idempotency-Key: {os.urandom(16).hex()}\r\nContent-Type: application/json\r\n"
            request = f"POST /v1/doors/door-{door}/pass HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
        else:
            request = f"GET /v1/doors/door-{door} HTTP/1.1\r\n{head}\r\n"
        self.writer.write(request.encode())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        fields = json.loads(await self.reader.readexactly(length))
        return {"error": fields.get("code")} if b" 200 " not in answer.split(b"\r\n")[0] else fields


class Load:
    """Clients that pass random doors, and what they were acknowledged."""

    def __init__(self, ports, options, tokens):
        self.tokens = tokens
        self.ports, self.count, self.entities = ports, options.clients, options.entities
        self.think = options.think_ms / 1000
        self.passes = {}
        # (when it was sent, when it was answered)
        self.calls = []
        self.failed = 0
        self.stopped = False

    async def run(self):
        await asyncio.gather(*(self.client(n) for n in range(self.count)))

    async def client(self, number):
        client = Client(self.ports[number % len(self.ports)], self.tokens[number])
        await client.open()
        while not self.stopped:
            await asyncio.sleep(self.think)
            door = random.randrange(self.entities)
            sent = time.monotonic()
            answer = await client.ask(door, "pass")
            self.calls.append((sent, time.monotonic()))
            if answer.get("error"):
                self.failed += 1
            else:
                self.passes[door] = self.passes.get(door, 0) + 1

    def longest(self, begin, end):
        """The longest call, in milliseconds, of those that were under way between two moments."""
        return max((b - a for a, b in self.calls if b >= begin and a <= end), default=0) * 1000

    def median_longest(self, begin, end, count):
        """The median of the longest calls of so many equal parts of the time between two moments."""
        part = (end - begin) / count
        return statistics.median(self.longest(begin + part * n, begin + part * (n + 1)) for n in range(count))


async def fill(ports, entities, load):
    """Makes every door known: somebody passes each."""

    async def part(number, count):
        client = Client(ports[number % len(ports)], load.tokens[number])
        await client.open()
        for door in range(number, entities, count):
            while (await client.ask(door, "pass")).get("error"):
                await asyncio.sleep(0.05)
            load.passes[door] = load.passes.get(door, 0) + 1

    await asyncio.gather(*(part(number, 48) for number in range(48)))


async def lost(port, load):
    """Acknowledged passes that their doors do not know."""

    async def part(number, doors):
        client = Client(port, load.tokens[number])
        await client.open()
        missing = 0
        for door in doors:
            state = await client.ask(door, "look")
            while state.get("error"):
                await asyncio.sleep(0.05)
                state = await client.ask(door, "look")
            missing += max(0, load.passes[door] - int(state.get("passes", 0)))
        return missing

    doors = list(load.passes)
    return sum(await asyncio.gather(*(part(number, doors[number::32]) for number in range(32))))


async def command(*arguments):
    process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise SystemExit(f"{' '.join(arguments)} failed")


async def measure(options, directory):
    def apus(*arguments):
        return command(options.doors, "cluster", *arguments, "--dir", directory)

    def say(line):
        print(line, file=sys.stderr)

    ports = [options.base_port + 10 * node + 2 for node in range(3)]
    await apus("up", "--nodes", "3", "--base-port", str(options.base_port))
    try:
        # Accounts of their own, so that no quota is in the way.
        tokens = [
            subprocess.check_output(
                [options.doors, "admin", "token", "--dir", directory, "--role", "app", "--account", f"bench-{n}"]
                + ["--ttl", "12h"],
                text=True,
            ).strip()
            for n in range(max(48, options.clients))
        ]
        everything = Load(ports, options, tokens)
        say(f"{options.entities} entities")
        await fill(ports, options.entities, everything)

        say("a node hands its shards over")
        load = Load(ports[1:], options, tokens)
        load.passes = everything.passes
        running = asyncio.create_task(load.run())
        await asyncio.sleep(3)
        began = time.monotonic()
        quiet = load.longest(began - 2, began)
        await apus("drain", "n1", "--stay")
        ended = time.monotonic()
        await asyncio.sleep(1)
        values = {
            "quiet_pause_ms": quiet,
            "handover_pause_ms": load.longest(began, ended),
            "handover_of_64_pause_ms": load.median_longest(began, ended, SHARDS // 3 // 64),
            "handover_s": ended - began,
            "handover_failed": load.failed,
        }
        load.stopped = True
        await running
        await apus("restart", "1")
        await apus("up")

        say("a node is killed")
        again = Load(ports[:1] + ports[2:], options, tokens)
        again.passes = everything.passes
        running = asyncio.create_task(again.run())
        await asyncio.sleep(3)
        killed = time.monotonic()
        os.kill(int(open(f"{directory}/n2/pid").read()), signal.SIGKILL)
        await asyncio.sleep(4)
        again.stopped = True
        await running
        # Calls to doors of the dead node are those that waited for another owner.
        waited = sorted((b - killed) * 1000 for a, b in again.calls if b > killed and a < killed + 1 and b - a > 0.03)
        values["promotion_ms"] = waited[0] if waited else -1
        values["promotion_max_ms"] = waited[-1] if waited else -1
        values["promotion_failed"] = again.failed
        say("what the doors know")
        values["promotion_lost"] = await lost(ports[0], again)
        return values
    finally:
        await command(options.doors, "cluster", "down", "--purge", "--dir", directory)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("doors")
    parser.add_argument("--entities", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--think-ms", type=float, default=10)
    parser.add_argument("--base-port", type=int, default=26_500)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="apus-entities-")
    try:
        values = asyncio.run(measure(options, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({key: round(value, 3) for key, value in values.items()}))


main()
