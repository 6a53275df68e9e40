"""A local cluster that a script starts, uses and ends."""

import contextlib
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request


def say(text):
    print(text, file=sys.stderr, flush=True)


def fetch(url, token=None):
    """Status and body of a GET."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Cluster:
    """A local cluster of three nodes with clients, in a directory of its own."""

    def __init__(self, apus, directory, base_port):
        self.apus, self.directory, self.base_port = apus, directory, base_port
        self.clients = []

    def run(self, *arguments, may_fail=False):
        command = [self.apus, *arguments, "--dir", self.directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if done.returncode and not may_fail:
            raise RuntimeError(f"apus {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def start(self):
        self.run("cluster", "up", "--nodes", "3", "--base-port", str(self.base_port))
        nodes = json.loads(self.run("cluster", "status", "--json"))["nodes"]
        self.targets = [node["addresses"]["http"] for node in nodes]

    def client(self, *arguments):
        log = open(pathlib.Path(self.directory) / f"client-{len(self.clients)}.log", "w")
        process = subprocess.Popen([self.apus, *arguments, "--dir", self.directory], stdout=log, stderr=log)
        self.clients.append(process)
        return process

    def stop(self):
        for client in self.clients:
            client.terminate()
        for client in self.clients:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(timeout=10)
        self.run("cluster", "down", "--purge", may_fail=True)

    def token(self, role, *arguments):
        return self.run("admin", "token", "--role", role, "--ttl", "2h", *arguments).strip()
