"""Machines of one network on this machine: a network namespace with files and processes of its own for each."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

# Where a machine has its own files. They are mounted in place of this machine's, for its processes only.
OWN = ["/etc/apus", "/etc/etcd", "/etc/postgresql", "/var/lib/apus", "/var/lib/etcd", "/var/lib/postgresql"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*command, **options):
    """Runs a command to its end, and returns what it printed; raises with what it said if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **options)
    if done.returncode:
        # Without the mounts of a machine.
        shown = command[command.index("sh", 5) + 1:] if command[:3] == ("ip", "netns", "exec") else command
        raise RuntimeError(f"{' '.join(str(c) for c in shown)}: {done.stderr or done.stdout}")
    return done.stdout


def wait(what, condition, seconds=30):
    """Asks until the answer is true, and returns the time that took; raises after a deadline."""
    start = time.monotonic()
    last = None
    while time.monotonic() - start < seconds:
        try:
            if condition():
                return time.monotonic() - start
        except Exception as error:  # The condition's programs may fail until it is reached.
            last = error
        time.sleep(0.05)
    raise RuntimeError(f"not reached within {seconds} s: {what}" + (f" ({last})" if last else ""))


class Network:
    """A bridge in a namespace of its own, so that this machine's network does not change."""

    def __init__(self, folder):
        self.folder, self.prefix = pathlib.Path(folder), f"try{os.getpid()}"
        self.bridge, self.machines, self.made = f"{self.prefix}-net", [], []
        for path in OWN:
            missing = [p for p in [pathlib.Path(path), *pathlib.Path(path).parents] if not p.exists()]
            pathlib.Path(path).mkdir(parents=True, exist_ok=True)
            self.made += missing
        run("ip", "netns", "add", self.bridge)
        run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "br0", "up")

    def machine(self, name, address):
        machine = Machine(self, name, address)
        self.machines.append(machine)
        return machine

    def remove(self):
        for machine in self.machines:
            machine.remove()
        run("ip", "netns", "del", self.bridge)
        for path in self.made:
            if path.exists() and path.is_dir() and not any(path.iterdir()):
                path.rmdir()


class Machine:
    def __init__(self, network, name, address):
        self.network, self.name, self.address = network, name, address
        self.namespace, self.root = f"{network.prefix}-{name}", network.folder / name
        self.processes = {}
        for path in OWN:
            self.file(path).mkdir(parents=True)
        port = f"m{len(network.machines)}"
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", port, "netns", network.bridge, "type", "veth", "peer", "name", "eth0",
            "netns", self.namespace)
        run("ip", "-n", network.bridge, "link", "set", port, "master", "br0", "up")
        run("ip", "-n", self.namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for link in ["lo", "eth0"]:
            run("ip", "-n", self.namespace, "link", "set", link, "up")

    def file(self, path):
        """Where this machine has the file of that path."""
        return self.root / path.lstrip("/")

    def install(self, source, path, mode=0o644, owner=None):
        target = self.file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # As `install` does it: a reader sees the old file or the new one.
        part = target.with_name(target.name + ".part")
        if isinstance(source, pathlib.Path):
            shutil.copyfile(source, part)
        else:
            part.write_text(source)
        part.chmod(mode)
        if owner:
            shutil.chown(part, owner, owner)
        part.rename(target)

    def command(self, *command):
        mounts = " && ".join(f"mount --bind {self.file(path)} {path}" for path in OWN)
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", f"{mounts} && exec \"$@\"", "sh",
                *[str(c) for c in command]]

    def run(self, *command, **options):
        return run(*self.command(*command), **options)

    def start(self, name, *command, environment=None):
        log = open(self.root / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(
            self.command(*command), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})})
        return self.processes[name]

    def stop(self, name, number=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log(self, name):
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def remove(self):
        for name in list(self.processes):
            self.stop(name, signal.SIGKILL)
        if self.namespace:
            run("ip", "netns", "del", self.namespace)
            self.namespace = None
