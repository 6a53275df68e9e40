"""Runs the tests of a build as jobs, of which several run side by side, and reports what each cost.

A job is a process of the test program that runs one suite, or all suites of one target. Tests/plan.toml says which jobs
run alone, which use idle time, and which are long. A suite that fails runs once more by itself at the end. If it passes
then, it is UNSTEADY: the run passes with at most three of them, and with none that Tests/plan.toml already names.
A process that traps, or is ended by its limit, fails the run; suites that it did not come to run by themselves.

Used by scripts/test.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

UNSTEADY_COUNT_MAX = 3
# A test has a time limit of its own, so this ends a job whose process hangs. One at idle priority may wait for long.
JOB_SECONDS_MAX = {"alone": 1200, "shared": 1800, "idle": 3600, "long": 7200}
# How often jobs may overtake one that needs more room than there is.
PASSED_OVER_MAX = 3
# How often an unfinished run says what it is doing.
REPORT_SECONDS = 60


@dataclasses.dataclass
class Job:
    """One process of the test program, and what it said."""

    name: str
    filters: list[str]
    skips: list[str]
    kind: str
    weight: float
    # The tests that it is to run; empty for a long part.
    members: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    # Of all its processes, daemons included; of those that were waited for where the system has no control groups.
    cpu_seconds: float = 0.0
    status: int | None = None
    output: pathlib.Path | None = None
    tests: dict[str, "Outcome"] = dataclasses.field(default_factory=dict)
    load: str = ""
    started: float = 0.0
    long: "LongPart | None" = None


@dataclasses.dataclass
class Outcome:
    """How one test ended."""

    seconds: float = 0.0
    state: str = "running"  # running, passed, failed, skipped
    messages: list[str] = dataclasses.field(default_factory=list)


def suite_of(test: str) -> str:
    """The suite of a test's identifier, `Target.Suite/function()/File.swift:1:2`; the file of one without a suite."""
    head = test.split("/")[0]
    return head if "." in head and "(" not in head else test.split("(")[0]


def target_of(test: str) -> str:
    return test.split(".")[0]


def load() -> str:
    """The machine's load: the average of a minute, and the share of the last 10 s in which something waited for a CPU."""
    average = os.getloadavg()[0]
    try:
        pressure = pathlib.Path("/proc/pressure/cpu").read_text().split()[1].removeprefix("avg10=")
    except (OSError, IndexError):
        return f"load {average:.1f}"
    return f"load {average:.1f}, CPU pressure {pressure} %"


@dataclasses.dataclass
class LongPart:
    """A part of the long tests: tests of the build with variables of their own, or a script."""

    name: str
    filters: list[str]
    environment: dict[str, str]
    command: list[str]
    is_in_turn: bool


class Plan:
    """Tests/plan.toml."""

    def __init__(self, path: pathlib.Path):
        values = tomllib.loads(path.read_text())
        self.workers = values["workers"]
        self.by_suite = set(values["by_suite"])
        self.first = values["first"]
        self.long = [
            LongPart(row["name"], row.get("filters", []), row.get("environment", {}), row.get("command", []),
                     row.get("in_turn", True))
            for row in values["long"]
        ]
        self.alone = values["alone"]
        self.idle = values["idle"]
        self.heavy, self.light = values["heavy"], values["light"]
        self.slow = values["quick_skips"]
        self.unsteady = set(values.get("unsteady", []))

    def jobs(self, tests: list[str]) -> list[Job]:
        """The jobs of a full run. Each test is in exactly one of them."""
        groups: dict[tuple[str, str], list[str]] = collections.OrderedDict()
        for test in tests:
            suite, target = suite_of(test), target_of(test)
            if rule := next((rule for rule in self.idle if re.match(rule, test)), None):
                key = ("idle", suite)
            elif rule := next((rule for rule in self.alone if re.match(rule, test)), None):
                key = ("alone", suite)
            elif target in self.by_suite:
                key = ("shared", suite)
            else:
                key = ("shared", target)
            groups.setdefault(key, []).append(test)
        jobs = []
        for (kind, name), members in groups.items():
            own = set(members)
            suites = sorted({suite_of(test) for test in members})
            weight = self.weight(name)
            whole = [s for s in suites if all(t in own for t in tests if suite_of(t) == s)]
            filters = [f"^{re.escape(s)}(/|\\()" for s in whole]
            parts = [t for t in members if suite_of(t) not in whole]
            filters += [f"^{re.escape(t.split('(')[0])}\\(" for t in parts]
            jobs.append(Job(name, filters, [], kind, weight, members))
        place = {name: number for number, name in enumerate(self.first)}
        return sorted(jobs, key=lambda job: place.get(job.name, len(place)))

    def weight(self, name: str) -> float:
        """The share of the places that a job takes."""
        if any(re.match(rule, name + "/") for rule in self.heavy):
            return 1.5
        return 0.5 if any(re.match(rule, name + "/") for rule in self.light) else 1.0

    def long_jobs(self) -> list[Job]:
        return [Job(f"long: {row.name}", row.filters, [], "long", 1.0, long=row) for row in self.long]

    def long_job(self, turn: int) -> Job:
        """The long part whose turn it is. It uses idle time beside the other jobs."""
        rows = [row for row in self.long if row.is_in_turn]
        row = rows[turn % len(rows)]
        return Job(f"long: {row.name}", row.filters, [], "idle", 1.0, long=row)


class Runner:
    def __init__(self, program: pathlib.Path, folder: pathlib.Path, workers: int):
        self.program, self.folder = program, folder
        self.network = network_prefix()
        self.groups = group_folder()
        self.open_groups: set[ProcessorGroup] = set()
        # Clusters of two jobs may use the same ports, so without networks of their own they run one after the other.
        self.workers = workers if self.network else 1
        self.lock = threading.Lock()
        self.running: dict[str, Job] = {}
        self.processes: dict[str, subprocess.Popen] = {}
        # Set once only idle jobs are left. The names are those of jobs that were ended to begin again.
        self.only_idle = threading.Event()
        self.cut: set[str] = set()
        self.networks: set[str] = set()
        self.finished: list[Job] = []
        self.start = time.monotonic()

    def say(self, text: str) -> None:
        with self.lock:
            print(f"[{time.monotonic() - self.start:6.0f} s] {text}", flush=True)

    def list_tests(self) -> list[str]:
        done = subprocess.run(
            [self.program, "--testing-library", "swift-testing", "--list-tests"], capture_output=True, text=True
        )
        tests = [line.strip() for line in done.stdout.splitlines() if re.match(r"^\w+\.", line.strip())]
        if not tests:
            sys.exit(f"The test program lists no tests: {done.stdout[-400:]}{done.stderr[-400:]}")
        return tests

    def run(self, job: Job, attempt: str = "") -> Job:
        """Runs a job to its end."""
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", job.name) + ("-alone" if job.kind == "alone" else "") + attempt
        events, job.output = self.folder / f"{stem}.events", self.folder / f"{stem}.log"
        command: list = [self.program, "--testing-library", "swift-testing"]
        if job.kind != "idle":
            command += ["--no-parallel"]
        for text in job.filters:
            command += ["--filter", text]
        for text in job.skips:
            command += ["--skip", text]
        command += ["--event-stream-version", "0", "--event-stream-output-path", events]
        is_idle = job.kind == "idle" and not self.only_idle.is_set()
        command = self.network + (idle_prefix() if is_idle else []) + command
        environment = dict(os.environ)
        if job.long:
            environment |= job.long.environment
            command = job.long.command or command
        group = ProcessorGroup(self.groups)
        self.open_groups.add(group)
        command = group.prefix + command
        events.write_bytes(b"")
        job.started = time.monotonic()
        with job.output.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=environment,
            )
            if is_idle:
                lower_group(process.pid)
            with self.lock:
                self.running[job.name], self.processes[job.name] = job, process
            if is_idle and self.only_idle.is_set():
                self.hurry(job.name)
            network = network_of(process.pid) if self.network else ""
            self.networks.add(network)
            job.status, job.cpu_seconds = wait(process, JOB_SECONDS_MAX[job.kind])
        end_all_in(network)
        job.cpu_seconds = group.end(job.cpu_seconds)
        self.open_groups.discard(group)
        # The kernel gives its number to another one.
        self.networks.discard(network)
        job.seconds = time.monotonic() - job.started
        job.load = load()
        with self.lock:
            del self.running[job.name], self.processes[job.name]
        read_events(events, job)
        if job.long and job.long.command:
            name = job.name.removeprefix("long: ")
            job.tests[f"{name}/()"] = Outcome(job.seconds, "failed" if job.status else "passed")
        return job

    def report(self, job: Job) -> None:
        states = collections.Counter(outcome.state for outcome in job.tests.values())
        word = "passed" if is_good(job) else "FAILED"
        self.say(f"{word}: {job.name}, {states['passed']} tests in {job.seconds:.1f} s, "
                 f"{job.cpu_seconds:.1f} s of processor time")
        if is_good(job):
            return
        for test, outcome in job.tests.items():
            if outcome.state in ("failed", "running"):
                self.say(f"    {'ended in' if outcome.state == 'running' else ''} {test}: " + " | ".join(outcome.messages)[:2000])
        if job.status not in (0, 1):
            tail = job.output.read_text(errors="replace").splitlines()[-30:]
            self.say(f"    the process ended with {job.status}:\n" + "\n".join(tail))

    def run_all(self, jobs: list[Job]) -> None:
        """Runs all jobs: those that run alone first, then the others side by side, with idle ones beside them."""
        watch = threading.Thread(target=self.tell, daemon=True)
        watch.start()
        for job in (job for job in jobs if job.kind == "alone"):
            self.report(self.run(job))
            self.finished.append(job)
        idle = threading.Thread(target=self.run_idle, args=([job for job in jobs if job.kind == "idle"],))
        idle.start()
        waiting = [job for job in jobs if job.kind == "shared"]
        for job in waiting:
            job.weight = min(job.weight, self.workers)
        free = threading.Condition()
        room = [float(self.workers)]

        def work(job: Job) -> None:
            self.run(job)
            self.report(job)
            with free:
                self.finished.append(job)
                room[0] += job.weight
                free.notify_all()

        threads = []
        passed_over = 0
        while waiting:
            with free:
                # In order, except that smaller jobs use the room that is too small for the next one. They may do so a
                # few times: that job would otherwise wait for all others.
                fitting = next((job for job in waiting if job.weight <= room[0]), None)
                if fitting is not waiting[0] and passed_over == PASSED_OVER_MAX:
                    fitting = None
                if not fitting:
                    free.wait()
                    continue
                passed_over = 0 if fitting is waiting[0] else passed_over + 1
                room[0] -= fitting.weight
            waiting.remove(fitting)
            threads.append(threading.Thread(target=work, args=(fitting,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        # Only these jobs are left. At idle priority they would not run beside another build.
        self.only_idle.set()
        with self.lock:
            left = [name for name, job in self.running.items() if job.kind == "idle"]
        for name in left:
            self.hurry(name)
        idle.join()

    def hurry(self, name: str) -> None:
        """Gives an idle job a normal priority. If this user may not do that, the job begins again with one."""
        with self.lock:
            process = self.processes.get(name)
        if process and not raise_session(process.pid):
            self.cut.add(name)
            end(process)

    def run_idle(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.run(job)
            if job.name in self.cut:
                self.run(job)
            self.report(job)
            self.finished.append(job)

    def run_long(self, job: Job) -> Job:
        self.report(self.run(job))
        return job

    def tell(self) -> None:
        while True:
            time.sleep(REPORT_SECONDS)
            with self.lock:
                names = [f"{name} ({time.monotonic() - job.started:.0f} s)" for name, job in self.running.items()]
            if names:
                self.say(f"running, {load()}: " + ", ".join(names))

    def stop(self) -> None:
        with self.lock:
            processes = list(self.processes.values())
        for process in processes:
            end(process)
        for network in list(self.networks):
            end_all_in(network)
        for group in list(self.open_groups):
            group.end(0)


def group_folder() -> pathlib.Path | None:
    """Where control groups (version 2) are, if this user may make one there."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(folder, os.W_OK):
            return pathlib.Path(folder)
    return None


class ProcessorGroup:
    """A control group that counts the processor time of a job's processes, of nodes that run on as daemons too."""

    def __init__(self, parent: pathlib.Path | None):
        self.folder: pathlib.Path | None = None
        # What a command begins with to be in the group.
        self.prefix: list[str] = []
        try:
            if parent:
                self.folder = pathlib.Path(tempfile.mkdtemp(prefix="apus-tests-", dir=parent))
                self.prefix = ["sh", "-c", 'echo $$ >"$0"/cgroup.procs; exec "$@"', str(self.folder)]
        except OSError:
            pass

    def end(self, otherwise: float) -> float:
        """Removes the group. Returns its processor time in seconds, or `otherwise` where there is none."""
        if not self.folder:
            return otherwise
        try:
            counts = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        except OSError:
            return otherwise
        for _ in range(50):
            try:
                self.folder.rmdir()
                break
            except OSError:
                time.sleep(0.02)  # What was ended is not gone yet.
        return int(counts["usage_usec"]) / 1e6


def network_prefix() -> list[str]:
    """What gives a process a network namespace of its own, with loopback and one other address; empty without rights."""
    script = (
        "ip link set lo up && ip link add apus0 type veth peer name apus1 && ip address add 192.168.77.2/24 dev apus0"
        " && ip link set apus0 up && ip link set apus1 up && exec \"$@\""
    )
    prefix = ["unshare", "--net", "sh", "-c", script, "sh"]
    usable = shutil.which("unshare") and subprocess.run(prefix + ["true"], capture_output=True).returncode == 0
    return prefix if usable else []


def network_of(pid: int | str) -> str:
    """The network namespace of a process that has one of its own, once it has; empty otherwise."""
    own = os.readlink("/proc/self/ns/net")
    for _ in range(100):
        try:
            found = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            return ""
        if found != own:
            return found
        time.sleep(0.02)
    return ""


def end_all_in(network: str) -> None:
    """Ends what a job has left running in its network, such as the nodes of a test that crashed."""
    if not network:
        return
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") == network:
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue  # It has ended.


def idle_prefix() -> list[str]:
    if shutil.which("chrt") and subprocess.run(["chrt", "--idle", "0", "true"], capture_output=True).returncode == 0:
        return ["chrt", "--idle", "0", "nice", "-n", "19"]
    return ["nice", "-n", "19"]


def lower_group(pid: int) -> None:
    """Gives a session the least share of the processors. Where the kernel groups processes by session (autogroup), the
    priority of a process counts within its session only."""
    try:
        pathlib.Path(f"/proc/{pid}/autogroup").write_text("19")
    except OSError:
        pass  # The kernel does not group, or the process has ended.


def raise_session(session: int) -> bool:
    """Takes back what idle_prefix and lower_group have done. False if this user may not."""
    try:
        pathlib.Path(f"/proc/{session}/autogroup").write_text("0")
    except OSError:
        pass  # The kernel does not group, or the process has ended.
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            # proc(5): the session is the fourth field after the name in parentheses.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            for thread in (folder / "task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        except PermissionError:
            return False
        except (OSError, ValueError):
            continue  # It has ended.
    return True


def end(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wait(process: subprocess.Popen, seconds_max: float) -> tuple[int, float]:
    """Waits for a process, and ends it after a time. Returns its status and the processor time of all that it ran."""
    last = time.monotonic() + seconds_max
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime
        if time.monotonic() > last:
            end(process)
        time.sleep(0.05)


def without_outcome(job: Job) -> list[str]:
    """The tests that the job was to run and did not come to."""
    suites = {test for test, outcome in job.tests.items() if outcome.state == "skipped"}
    # A list has the file of a test only where two have one name.
    known = {name for test in job.tests for name in (test, test.rsplit("/", 1)[0])}
    return [test for test in job.members if test not in known and suite_of(test) not in suites]


def is_good(job: Job) -> bool:
    """A job without tests is a mistake of the plan."""
    states = [outcome.state for outcome in job.tests.values()]
    all_good = bool(states) and all(state in ("passed", "skipped") for state in states)
    return job.status == 0 and all_good and not without_outcome(job)


def read_events(path: pathlib.Path, job: Job) -> None:
    """Reads the test library's event stream (version 0: a JSON object in each line)."""
    kinds: dict[str, str] = {}
    started: dict[str, float] = {}
    # Arguments of tests may have what Python takes for the end of a line.
    for line in path.read_text(errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        payload = record.get("payload", {})
        if record.get("kind") == "test":
            kinds[payload["id"]] = payload["kind"]
            continue
        test = payload.get("testID")
        if test and kinds.get(test) != "function" and payload["kind"] == "testSkipped":
            job.tests[test] = Outcome(state="skipped")  # The whole suite: something that it needs is not installed.
        if not test or kinds.get(test) != "function":
            continue
        outcome = job.tests.setdefault(test, Outcome())
        at = payload.get("instant", {}).get("absolute", 0.0)
        kind = payload["kind"]
        if kind == "testStarted":
            started[test] = at
        elif kind == "testSkipped":
            outcome.state = "skipped"
        elif kind == "issueRecorded" and not payload.get("issue", {}).get("isKnown", False):
            if payload.get("issue", {}).get("severity", "error") == "error":
                outcome.state = "failed"
                outcome.messages.append(" ".join(m.get("text", "") for m in payload.get("messages", [])))
        elif kind == "testEnded":
            outcome.seconds = at - started.get(test, at)
            if outcome.state == "running":
                outcome.state = "passed"


def suites(jobs: list[Job]) -> list[dict]:
    """The cost and the outcome of each suite."""
    rows: dict[str, dict] = {}
    for job in jobs:
        for test, outcome in job.tests.items():
            name = suite_of(test)
            row = rows.setdefault(name, {"suite": name, "kind": job.kind, "tests": 0, "seconds": 0.0, "failed": 0})
            row["tests"] += outcome.state != "skipped"
            row["seconds"] = round(row["seconds"] + outcome.seconds, 2)
            row["failed"] += outcome.state in ("failed", "running")
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def result(runner: Runner, jobs: list[Job], unsteady: list[dict], commit: str) -> dict:
    tests = [
        {"test": test, "seconds": round(outcome.seconds, 2), "state": outcome.state}
        for job in jobs
        for test, outcome in job.tests.items()
    ]
    tests.sort(key=lambda row: -row["seconds"])
    parts = [
        {"part": kind, "jobs": len(of), "seconds": round(sum(job.seconds for job in of), 1)}
        for kind in ("alone", "shared", "idle", "long")
        if (of := [job for job in jobs if job.kind == kind])
    ]
    return {
        "commit": commit,
        "cores": os.cpu_count(),
        "seconds": round(time.monotonic() - runner.start, 1),
        "parts": parts,
        "jobs": sorted(({"job": j.name, "kind": j.kind, "seconds": round(j.seconds, 1),
                         "cpu_seconds": round(j.cpu_seconds, 1)} for j in jobs),
                       key=lambda row: -row["seconds"]),
        "suites": suites(jobs),
        "tests": tests,
        "unsteady": unsteady,
    }


def show(times: dict) -> None:
    print(f"\nThe tests took {times['seconds']:.0f} s:")
    for part in times["parts"]:
        print(f"  {part['seconds']:8.1f} s in {part['jobs']} jobs: {part['part']}")
    for title, rows, key in (("suites", times["suites"], "suite"), ("tests", times["tests"], "test")):
        print(f"The longest {title}:")
        for row in rows[:20]:
            print(f"  {row['seconds']:8.1f} s  {row[key]}")


def compare(before: dict, after: dict) -> None:
    """Prints what differs between two files of times, suite by suite."""
    print(f"{'before':>9} {'after':>9}  {before['commit']} and {after['commit']}")
    print(f"{before['seconds']:9.1f} {after['seconds']:9.1f}  all tests")
    old = {row["suite"]: row for row in before["suites"]}
    new = {row["suite"]: row for row in after["suites"]}
    rows = sorted(old.keys() | new.keys(), key=lambda n: -abs(
        new.get(n, {"seconds": 0})["seconds"] - old.get(n, {"seconds": 0})["seconds"]))
    for name in rows:
        a, b = old.get(name), new.get(name)
        print(f"{a['seconds'] if a else '-':>9} {b['seconds'] if b else '-':>9}  {name}"
              f" ({a['tests'] if a else 0} and {b['tests'] if b else 0} tests)")


def again(runner: Runner, jobs: list[Job], plan: Plan) -> tuple[list[dict], list[str]]:
    """Runs each suite that failed once more by itself, and those that a process did not come to. Returns the unsteady
    ones, and what failed for good."""
    failing: dict[str, Job] = {}
    unreached: set[str] = set()
    broken: list[str] = []
    for job in jobs:
        if is_good(job):
            continue
        names = {suite_of(t) for t, o in job.tests.items() if o.state in ("failed", "running")}
        left = {suite_of(t) for t in without_outcome(job)} - names
        unreached |= left
        for name in names | left:
            failing[name] = job
        if not names | left or job.status not in (0, 1):
            broken.append(f"{job.name}: the process ended with {job.status} and {len(job.tests)} tests")
    unsteady = []
    for name, job in failing.items():
        filters = job.filters if job.long else [f"^{re.escape(name)}(/|\\()"]
        second = Job(name, filters, [], "alone", 1.0, long=job.long)
        runner.run(second, "-again")
        runner.report(second)
        first = [m for t, o in job.tests.items() if suite_of(t) == name for m in o.messages]
        if is_good(second) and name in unreached:
            job.tests |= second.tests
        elif is_good(second):
            unsteady.append({"suite": name, "first": first[:5], "first_load": job.load, "second_load": second.load,
                             "second_seconds": round(second.seconds, 1)})
        else:
            broken.append(f"{name} failed twice")
    repeated = [row["suite"] for row in unsteady if row["suite"] in plan.unsteady]
    broken += [f"{name} was unsteady before, and is so again" for name in repeated]
    if len(unsteady) > UNSTEADY_COUNT_MAX:
        broken.append(f"{len(unsteady)} suites are unsteady; at most {UNSTEADY_COUNT_MAX} may be")
    return unsteady, broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--plan", type=pathlib.Path, default=pathlib.Path("Tests/plan.toml"))
    parser.add_argument("--times", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--turn", type=int, help="runs one part of the long tests: that of this number, counted round")
    parser.add_argument("--only", help="a regular expression: only jobs whose name it finds")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--commit", default="")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--compare", nargs=2, type=pathlib.Path)
    options = parser.parse_args()
    if options.compare:
        return compare(*(json.loads(path.read_text()) for path in options.compare))
    plan = Plan(options.plan)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="apus-tests-"))
    runner = Runner(options.program, folder, options.workers or plan.workers)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: (runner.stop(), os._exit(1)))
    # Simulations play a part of their seeds; see SeedShare.
    os.environ["APUS_TEST_TURN"] = str(options.turn if options.turn is not None else int(time.time() // 86_400))
    if options.long:
        os.environ["APUS_TEST_SEEDS"] = "all"
    print(f"The seeds are those of turn {os.environ['APUS_TEST_TURN']}.")
    tests = runner.list_tests()
    if options.quick:
        tests = [test for test in tests if not any(re.match(rule, test) for rule in plan.slow)]
    jobs = plan.jobs(tests)
    if options.only:
        jobs = [job for job in jobs if re.search(options.only, job.name)]
    if options.turn is not None:
        jobs.append(plan.long_job(options.turn))
    runner.run_all(jobs)
    if options.long:
        jobs += [runner.run_long(job) for job in plan.long_jobs()]
    unsteady, broken = again(runner, jobs, plan)
    times = result(runner, jobs, unsteady, options.commit)
    if options.times:
        options.times.parent.mkdir(parents=True, exist_ok=True)
        options.times.write_text(json.dumps(times, indent=1) + "\n")
    if options.show:
        show(times)
    for row in unsteady:
        print(f"UNSTEADY: {row['suite']} failed ({row['first_load']}), and passed alone ({row['second_load']}): "
              + " | ".join(row["first"])[:1000])
    for line in broken:
        print(f"FAILED: {line}")
    states = collections.Counter(row["state"] for row in times["tests"])
    recovered = sum(1 for row in times["tests"] if row["state"] in ("failed", "running")
                    and suite_of(row["test"]) in {u["suite"] for u in unsteady})
    failed = states["failed"] + states["running"] - recovered
    print(f"{states['passed'] + recovered} passed, {failed + (1 if broken and not failed else 0)} failed, "
          f"{states['skipped']} skipped")
    if broken or unsteady:
        print(f"The logs of all jobs are in {folder}.")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
