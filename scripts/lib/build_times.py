"""Runs a build, and reports the CPU time that each package and target took.

    scripts/lib/build_times.py [--json FILE] [--count 20] -- COMMAND …

The time of a compiler's process is read from /proc five times a second, so the last fifth of each is missing. What
is missing is reported as a row of its own: the kernel counts the whole.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import threading
import time

INTERVAL_SECONDS = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
TOOLS = {"swift-frontend", "swiftc", "swift-build", "clang", "clang++", "ld.lld", "ld.gold", "swift-autolink-extract"}
SOURCE = re.compile(r"\.(?:swift|c|cc|cpp|S)$")


class Sampler(threading.Thread):
    """Reads the times of the processes that work on this folder."""

    def __init__(self, folder: str):
        super().__init__(daemon=True)
        self.folder = folder
        self.seconds: dict[tuple[str, str], float] = {}
        # When each was first and last seen, in seconds since the start.
        self.seen: dict[tuple[str, str], list[float]] = {}
        self.began = time.monotonic()
        self.names: dict[tuple[str, str], tuple[str, str] | None] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(INTERVAL_SECONDS):
            for pid in os.listdir("/proc"):
                if pid.isdigit():
                    try:
                        self.read(pid)
                    except (OSError, IndexError):
                        continue  # It has ended.

    def read(self, pid: str) -> None:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        key = (pid, fields[19])
        if key not in self.names:
            self.names[key] = self.name(pid)
        if self.names[key]:
            self.seconds[key] = (int(fields[11]) + int(fields[12])) / TICKS
            now = round(time.monotonic() - self.began, 1)
            self.seen.setdefault(key, [now, now])[1] = now

    def name(self, pid: str) -> tuple[str, str] | None:
        """The package and the target that a process works on."""
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        program = os.path.basename(words[0])
        if program not in TOOLS or not any(self.folder in word for word in words):
            return None
        source = next((word for word in words if SOURCE.search(word) and self.folder in word), "")
        package = re.search(r"/checkouts/([^/]+)(?:/|$)", source)
        owner = package.group(1) if package else "apus"
        if "-module-name" in words[:-1] and "-frontend" in words:
            return owner, words[words.index("-module-name") + 1]
        if match := re.search(r"/([A-Za-z0-9_-]+)\.build/", " ".join(words)):
            return owner, match.group(1)
        return "(build)", program


def table(sampler: Sampler, cpu_seconds: float, wall_seconds: float) -> dict:
    targets: dict[tuple[str, str], list] = collections.defaultdict(lambda: [0, 0.0])
    for key, seconds in sampler.seconds.items():
        row = targets[sampler.names[key]]
        row[0] += 1
        row[1] += seconds
    targets[("(build)", "not seen")] = [0, max(0.0, cpu_seconds - sum(row[1] for row in targets.values()))]
    packages: dict[str, list] = collections.defaultdict(lambda: [0, 0.0])
    for (package, _), (count, seconds) in targets.items():
        packages[package][0] += count
        packages[package][1] += seconds
    return {
        "wall_seconds": round(wall_seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "packages": rows({(name,): row for name, row in packages.items()}, ["package"]),
        "targets": rows(targets, ["package", "target"]),
        "timeline": timeline(sampler),
    }


def timeline(sampler: Sampler) -> list[dict]:
    """When each process that took a second or more was first and last seen, in seconds since the start."""
    listed = [
        {"first": sampler.seen[key][0], "last": sampler.seen[key][1], "target": sampler.names[key][1], "seconds": seconds}
        for key, seconds in sampler.seconds.items() if seconds >= 1
    ]
    return sorted(listed, key=lambda row: row["first"])


def rows(found: dict, keys: list[str]) -> list[dict]:
    listed = [
        dict(zip(keys, name), processes=count, seconds=round(seconds, 1)) for name, (count, seconds) in found.items()
    ]
    return sorted(listed, key=lambda row: -row["seconds"])


def show(times: dict, count: int) -> None:
    print(f"The build took {times['wall_seconds']:.0f} s, and {times['cpu_seconds']:.0f} s of CPU time:")
    for title, listed in (("package", times["packages"]), ("target", times["targets"])):
        print(f"{'seconds':>9} {'processes':>9}  {title}")
        for row in listed[:count]:
            name = row["package"] if title == "package" else f"{row['target']} ({row['package']})"
            print(f"{row['seconds']:9.1f} {row['processes']:9}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    sampler = Sampler(os.getcwd())
    sampler.start()
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    status = subprocess.run(command).returncode
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    sampler.ended.set()
    sampler.join()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times = table(sampler, cpu, wall)
    show(times, options.count)
    if options.json:
        options.json.write_text(json.dumps(times, indent=1) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
