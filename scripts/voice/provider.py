#!/usr/bin/env python3
"""The accurate speech provider: recognition, speech and wake phrases for a cluster, by the Wyoming protocol.

    ~/.cache/apus/voice/bin/python scripts/voice/provider.py --listen unix:///run/apus/voice.sock
    ~/.cache/apus/voice/bin/python scripts/voice/provider.py --listen tcp://127.0.0.1:10300

scripts/voice/install makes the virtual environment. The protocol has no encryption and no authentication, so the
provider listens only on a unix socket or on a loopback address. docs/voice-engines.md describes what it does.

The process that is started binds the socket and runs the engines in a child. A child that has done its share of work,
or has grown too large, is replaced: its successor accepts connections while it finishes what it has begun.
"""

import argparse
import asyncio
import dataclasses
import ipaddress
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse

from apus_voice import limits, server

# The shortest time between two starts of a child that fails, and the longest, in seconds.
RESTART_MIN, RESTART_MAX = 1.0, 30.0
# Memory over the bound at which a child ends without finishing its work.
MEMORY_FACTOR = 1.5


def say(text):
    """Prints a line for the operator."""
    print(f"provider: {text}", file=sys.stderr, flush=True)


def bind(address):
    """A listening socket for unix:///PATH or tcp://HOST:PORT. Ends the process if that is not possible."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "unix" and parts.path:
        path = pathlib.Path(parts.path)
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) == 0:
                    sys.exit(f"{path}: another process listens there")
            path.unlink()
        listening = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(mask)
    elif parts.scheme == "tcp" and parts.hostname and parts.port is not None:
        try:
            is_loopback = ipaddress.ip_address(parts.hostname).is_loopback
        except ValueError:
            is_loopback = parts.hostname == "localhost"
        if not is_loopback:
            sys.exit(f"{address}: the protocol has no authentication, so only a loopback address or unix:///PATH")
        family = socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((parts.hostname, parts.port))
    else:
        sys.exit(f"{address}: neither unix:///PATH nor tcp://HOST:PORT")
    listening.listen(64)
    return listening


def make_engine(name, bounds, options):
    """The engine: that of the virtual environment, or another one as MODULE:CLASS, for tests."""
    if name:
        import importlib

        module, _, kind = name.partition(":")
        return getattr(importlib.import_module(module), kind)(bounds)
    from apus_voice import engine

    return engine.Engine(bounds, threads=options.threads, threshold=options.threshold)


def watch_memory(bounds):
    """Ends the process at once where its memory passes the bound by half."""
    while True:
        time.sleep(0.5)
        if server.resident_megabytes() > bounds.memory_megabytes_max * MEMORY_FACTOR:
            say(f"ends at once with {server.resident_megabytes()} MB of memory")
            os._exit(70)


def serve(listening, bounds, options):
    """Serves in this process. Prints "ready" when it accepts connections, and "draining" when it does no more."""
    engine = make_engine(options.engine, bounds, options)
    threading.Thread(target=watch_memory, args=(bounds,), daemon=True).start()

    def report(word):
        print(word, flush=True)

    async def run():
        serving = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        one = server.Server(engine, bounds, on_drain=lambda: report("draining"))
        report("ready")
        try:
            await one.run(listening)
        except asyncio.CancelledError:
            pass

    asyncio.run(run())


class Supervisor:
    """Starts the children and replaces those that drain or fail."""

    def __init__(self, listening, arguments):
        self._listening, self._arguments = listening, arguments
        self._changed = threading.Condition()
        self._children, self._wants_child, self._is_ending, self._failures = [], True, False, 0

    def run(self):
        """Runs until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        started = 0.0
        while not self._is_ending:
            with self._changed:
                self._changed.wait_for(lambda: self._wants_child or self._is_ending, 1.0)
                if not self._wants_child or self._is_ending:
                    continue
                self._wants_child = False
            if time.monotonic() - started > RESTART_MAX:
                self._failures = min(self._failures, 1)
            if self._failures:
                time.sleep(min(RESTART_MAX, RESTART_MIN * 2 ** (self._failures - 1)))
            started = time.monotonic()
            self._start()
        for child in list(self._children):
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()

    def _end(self):
        self._is_ending = True

    def _start(self):
        descriptor = self._listening.fileno()
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *self._arguments, "--serve-descriptor", str(descriptor)],
            pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        threading.Thread(target=self._watch, args=(child,), daemon=True).start()

    def _watch(self, child):
        is_current = True
        for line in child.stdout:
            if line.strip() == "ready":
                say(f"process {child.pid} accepts connections")
            elif line.strip() == "draining" and is_current:
                is_current = False
                self._failures = 0
                self._want()
        code = child.wait()
        self._children.remove(child)
        if not self._is_ending and (code or is_current):
            say(f"process {child.pid} has ended with {code}")
        if is_current:
            self._failures = min(10, self._failures + 1)
            self._want()

    def _want(self):
        with self._changed:
            self._wants_child = True
            self._changed.notify()


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Recognises and speaks for a cluster, by the Wyoming protocol.")
    parser.add_argument("--listen", default="tcp://127.0.0.1:10300", help="unix:///PATH or tcp://LOOPBACK:PORT")
    parser.add_argument("--threads", type=int, default=1, help="threads of one recognition and of one spoken text")
    parser.add_argument("--threshold", type=float, help="lowest score of a sentence that is accepted")
    for field in dataclasses.fields(limits.Limits):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default,
                            help=f"{field.metadata['help']}, at most; {field.default}")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--serve-descriptor", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    bounds = limits.Limits(**{field.name: getattr(options, field.name) for field in dataclasses.fields(limits.Limits)})
    if options.serve_descriptor is not None:
        serve(socket.socket(fileno=options.serve_descriptor), bounds, options)
        return
    # One thread for each call of the numeric libraries: several utterances run side by side.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Newer releases of onnxruntime report their use over the network unless this is set; the pinned one does not.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    listening = bind(options.listen)
    say(f"listens on {options.listen}")
    Supervisor(listening, sys.argv[1:]).run()
    if options.listen.startswith("unix:"):
        pathlib.Path(urllib.parse.urlsplit(options.listen).path).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
