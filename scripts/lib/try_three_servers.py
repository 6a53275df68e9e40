"""Sets up and operates the cluster of cluster-configs/three-servers: see scripts/try-three-servers."""

import argparse
import json
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from machines import Network, run, say, wait

EXAMPLE = pathlib.Path("cluster-configs/three-servers")
ADDRESSES = {"a": "192.0.2.11", "b": "192.0.2.12", "c": "192.0.2.13"}
DATABASE, OPERATOR, PHONE = "192.0.2.20", "192.0.2.66", "192.0.2.200"
SHARDS = 4096
POSTGRES = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
AS_POSTGRES = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]


class Trial:
    def __init__(self, apus, folder):
        self.apus, self.folder = pathlib.Path(apus).resolve(), pathlib.Path(folder)
        self.pki, self.failures = self.folder / "pki", []
        self.passwords = {name: secrets.token_urlsafe(24) for name in ["root", "database", *ADDRESSES]}
        self.network = Network(self.folder)
        self.nodes = {name: self.network.machine(name, address) for name, address in ADDRESSES.items()}
        self.database = self.network.machine("db", DATABASE)
        self.operator = self.network.machine("operator", OPERATOR)
        self.phone = self.network.machine("phone", PHONE)
        self.clients, self.logs, self.restarts = [], {}, {}

    # Helpers

    def step(self, text):
        say(f"==> {text}")

    def check(self, what, is_true):
        say(f"    {'ok  ' if is_true else 'FAIL'} {what}")
        if not is_true:
            self.failures.append(what)

    def admin(self, *arguments):
        return run(self.apus, "admin", *arguments, "--dir", self.pki)

    def token(self, role, *arguments, ttl="2h"):
        return self.admin("token", "--cluster", "villa", "--role", role, "--ttl", ttl, *arguments).strip()

    def verb(self, node, *arguments):
        """A verb of `apus` at the operator's machine, as JSON."""
        text = self.operator.run(
            self.apus, *arguments, "--server", f"https://{ADDRESSES[node]}:8443", "--ca", self.pki / "ca.pem",
            "--token-file", self.folder / "operator.token", "--json")
        return json.loads(text)

    def fetch(self, node, path):
        return self.operator.run(
            "curl", "-sS", "--max-time", "3", "--cacert", self.pki / "ca.pem",
            f"https://{ADDRESSES[node]}:8443{path}")

    def conditions(self, node):
        return [c["type"] for c in json.loads(self.fetch(node, "/v1/status")).get("conditions", [])]

    def owned(self, *nodes):
        """The shards of the nodes, from their own status."""
        return sum(json.loads(self.fetch(node, "/v1/status"))["shards"]["owned"] for node in nodes)

    def metric(self, node, name):
        lines = [line for line in self.fetch(node, "/metrics").splitlines() if re.match(re.escape(name) + "[{ ]", line)]
        return sum(float(line.split()[-1]) for line in lines)

    # Setting up

    def certificates(self):
        self.step("certificates and keys, on the operator's machine")
        hosts = [part for address in ADDRESSES.values() for part in ("--host", address)]
        self.admin("pki", "--cluster", "villa", *hosts)
        for name, address in ADDRESSES.items():
            self.admin("pki", "--cluster", "villa", "--node", name, "--host", address)
        self.admin("pki", "--cluster", "villa", "--server", "db", "--host", DATABASE)
        (self.pki / "revoked.txt").touch()
        (self.folder / "operator.token").write_text(self.token("admin"))

    def copy_keys(self, *names):
        """What docs/three-servers.md copies to /etc/apus/pki and /etc/etcd/pki."""
        for name in names or ADDRESSES:
            machine = self.nodes[name]
            files = [("ca.pem", "ca.pem", 0o644), (f"{name}.pem", "node.pem", 0o644), (f"{name}.key", "node.key", 0o600)]
            for source, target, mode in files:
                machine.install(self.pki / source, f"/etc/etcd/pki/{target}", mode)
            files += [("clients.pem",) * 2 + (0o644,), ("clients.key",) * 2 + (0o600,),
                      ("cluster.key",) * 2 + (0o600,), ("token.pub",) * 2 + (0o644,),
                      ("revoked.txt",) * 2 + (0o644,)]
            for source, target, mode in files:
                machine.install(self.pki / source, f"/etc/apus/pki/{target}", mode)

    def install(self, name):
        machine = self.nodes[name]
        machine.install(EXAMPLE / f"{name}.yaml", "/etc/apus/node.yaml")
        machine.install(EXAMPLE / f"etcd-{name}.env", "/etc/etcd/etcd.env")
        machine.install(self.passwords[name] + "\n", "/etc/apus/etcd.password", 0o600)
        machine.install(f"{DATABASE}:5432:apus:apus:{self.passwords['database']}\n", "/etc/apus/pgpass", 0o600)
        self.copy_keys(name)
        machine.install(EXAMPLE / "firewall.nft", "/etc/apus/firewall.nft")
        machine.run("nft", "-f", "/etc/apus/firewall.nft")

    def start_etcd(self, name, state="new"):
        machine = self.nodes[name]
        lines = machine.file("/etc/etcd/etcd.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        environment["ETCD_INITIAL_CLUSTER_STATE"] = state
        machine.start("etcd", "nice", "-n", "-10", "etcd", environment=environment)

    def etcdctl(self, name, *arguments, user=True):
        address = f"https://{ADDRESSES[name]}:2379"
        login = ["--user", f"root:{self.passwords['root']}"] if user else []
        return self.nodes[name].run(
            "env", "ETCDCTL_API=3", "etcdctl", "--endpoints", address, "--cacert", "/etc/etcd/pki/ca.pem",
            "--cert", "/etc/etcd/pki/node.pem", "--key", "/etc/etcd/pki/node.key", *login, *arguments)

    def is_healthy(self, name, user=True):
        # It says so on standard error, and fails otherwise.
        self.etcdctl(name, "endpoint", "health", user=user)
        return True

    def etcd(self):
        self.step("etcd: three members with TLS, a user for each node, and authentication")
        for name in ADDRESSES:
            self.start_etcd(name)
        for name in ADDRESSES:
            wait(f"etcd of {name} has a leader", lambda: self.is_healthy(name, user=False), 60)
        def ctl(*arguments):
            for attempt in range(5):
                try:
                    return self.etcdctl("a", *arguments, user=False)
                except RuntimeError as error:
                    # On a busy machine a change may time out, and be made all the same.
                    if attempt and "already exists" in str(error):
                        return None
                    if attempt == 4 or "timed out" not in str(error):
                        raise
            return None
        ctl("user", "add", f"root:{self.passwords['root']}")
        ctl("user", "grant-role", "root", "root")
        ctl("role", "add", "apus")
        ctl("role", "grant-permission", "apus", "readwrite", "apus/villa/", "--prefix=true")
        for name in ADDRESSES:
            ctl("user", "add", f"apus-{name}:{self.passwords[name]}")
            ctl("user", "grant-role", f"apus-{name}", "apus")
        ctl("auth", "enable")

    def postgres(self):
        self.step("PostgreSQL, with TLS")
        machine, data = self.database, "/var/lib/postgresql/data"
        shutil.chown(machine.file("/var/lib/postgresql"), "postgres", "postgres")
        self.folder.chmod(0o755)
        machine.root.chmod(0o755)
        machine.run(*AS_POSTGRES, POSTGRES / "initdb", "-D", data, "--auth=peer", "-E", "UTF8")
        self.copy_database_keys()
        machine.install(EXAMPLE / "postgresql.conf", "/etc/postgresql/apus.conf")
        with open(machine.file(data) / "postgresql.conf", "a") as file:
            file.write("include '/etc/postgresql/apus.conf'\nunix_socket_directories = '/var/lib/postgresql'\n")
        access = machine.file(data) / "pg_hba.conf"
        access.write_text("local all postgres peer\n" + (EXAMPLE / "pg_hba.conf").read_text())
        machine.install(EXAMPLE / "firewall-database.nft", "/etc/postgresql/firewall.nft")
        machine.run("nft", "-f", "/etc/postgresql/firewall.nft")
        machine.start("postgres", "nice", "-n", "-10", *AS_POSTGRES, POSTGRES / "postgres", "-D", data)
        wait("PostgreSQL answers", lambda: self.sql("select 1"))
        self.sql(f"create role apus login password '{self.passwords['database']}'")
        self.sql("create database apus owner apus")

    def copy_database_keys(self):
        for name, mode in [("db.pem", 0o644), ("db.key", 0o600)]:
            self.database.install(self.pki / name, f"/etc/postgresql/apus/{name}", mode, "postgres")

    def sql(self, text):
        return self.database.run(
            *AS_POSTGRES, "psql", "-h", "/var/lib/postgresql", "-v", "ON_ERROR_STOP=1", "-Atc", text)

    def start_node(self, name):
        unit = (EXAMPLE / "apus.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).split()
        self.nodes[name].start("apus", self.apus, *command[1:])

    def start_nodes(self):
        self.step("the nodes")
        for name in ADDRESSES:
            self.start_node(name)
        self.await_nodes()
        for name in ADDRESSES:
            self.check(f"{name} has no conditions", self.conditions(name) == [])

    def restart_ended(self):
        """What the unit's `Restart=always` does, for example where etcd did not answer in time; twice at most, and not
        after a crash."""
        for name in ADDRESSES:
            process = self.nodes[name].processes.get("apus")
            if process and process.poll() is not None:
                last = (self.nodes[name].log("apus").splitlines() or ["nothing"])[-1]
                self.restarts[name] = self.restarts.get(name, 0) + 1
                if process.returncode < 0 or self.restarts[name] > 2:
                    del self.nodes[name].processes["apus"]
                    self.check(f"{name} does not end with {process.returncode}: {last}", False)
                    continue
                say(f"    {name} has ended with {process.returncode}, and starts again: {last}")
                time.sleep(1)
                self.start_node(name)

    def await_nodes(self):
        def is_up():
            self.restart_ended()
            nodes = self.verb("a", "status")["nodes"]
            owned = self.owned(*ADDRESSES)
            return sorted(n["name"] for n in nodes if n["state"] == "up") == sorted(ADDRESSES) and owned == SHARDS
        seconds = wait("all nodes are up and own the shards", is_up, 60)
        self.check(f"`apus status` shows three nodes that are up, and every shard has an owner ({seconds:.1f} s)", True)

    # Clients

    def client(self, name, verb, *arguments, node="a", role="app"):
        extra = ["--device", "cam"] if role == "device" else []
        token = self.folder / f"{name}.token"
        token.write_text(self.token(role, "--access", "cam" if role == "device" else name, *extra))
        self.logs[name] = self.folder / f"{name}.frames"
        others = [address for other, address in ADDRESSES.items() if other != node]
        connect = [part for a in [ADDRESSES[node], *others] for part in ("--connect", f"{a}:7443")]
        process = self.phone.start(
            name, self.apus, verb, *arguments, *connect, "--ca", self.pki / "ca.pem", "--token-file", token,
            "--log", self.logs[name])
        self.clients.append((name, process))

    def frames(self, name):
        lines = self.logs[name].read_text().splitlines() if self.logs[name].exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def start_clients(self):
        self.step("a camera at a, and a viewer at each node")
        self.client("cam", "device", "--id", "cam", "--test-pattern", "320x180@25", node="a", role="device")
        # Its account may watch it once it has signed in for the first time.
        wait("the camera's channel", lambda: any(
            channel["channel"].startswith("cam/") for channel in self.verb("a", "channels")["channels"]))
        for name in ADDRESSES:
            self.client(f"viewer-{name}", "watch", "cam", node=name)
        for name in ADDRESSES:
            wait(f"the viewer at {name} sees frames", lambda: len(self.frames(f"viewer-{name}")) > 10)
        self.check("every viewer sees the camera", True)

    def restart_clients(self):
        # They read the authority's certificate and their tokens when they start.
        for name, _ in self.clients:
            self.phone.stop(name, signal.SIGINT)
            self.logs[name].unlink()
        self.clients = []
        self.start_clients()

    def sessions(self):
        return sorted(s["session"] for s in self.verb("a", "sessions")["sessions"])

    def check_frames(self, moment):
        time.sleep(1)
        newest = max(self.frames(name)[-1]["seq"] for name, _ in self.clients if name != "cam")
        for name, process in self.clients:
            self.check(f"{name} runs", process.poll() is None)
            if name == "cam":
                continue
            numbers = [frame["seq"] for frame in self.frames(name)]
            lost = numbers[-1] - numbers[0] + 1 - len(set(numbers))
            doubled = len(numbers) - len(set(numbers))
            self.check(f"{name}: {len(numbers)} frames, {lost} lost, {doubled} doubled {moment}", lost == doubled == 0)
            # At 25 frames a second; the others go on while this is read.
            self.check(f"{name} has the newest frames", numbers[-1] >= newest - 25)

    def check_firewall(self):
        self.step("the firewall")
        def connects(machine, address, port):
            command = machine.command("timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}")
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        phone, operator, node = self.phone, self.operator, ADDRESSES["a"]
        self.check("a client reaches 7443, the clients' listener", connects(phone, node, 7443))
        self.check("a client reaches 3478, the relay", connects(phone, node, 3478))
        for port in [7400, 2379, 2380, 8443]:
            self.check(f"a client does not reach {port}", not connects(phone, node, port))
        self.check("a client does not reach 5432, the database", not connects(phone, DATABASE, 5432))
        self.check("the operator reaches 8443, the API", connects(operator, node, 8443))
        self.check("the operator does not reach 7400, the node links", not connects(operator, node, 7400))

    # Operating

    def reload(self, *names):
        names = names or tuple(ADDRESSES)
        before = {name: self.metric(name, "apus_node_reloads_total") for name in names}
        for name in names:
            self.nodes[name].processes["apus"].send_signal(signal.SIGHUP)
        for name in names:
            wait(f"{name} has reloaded", lambda: self.metric(name, "apus_node_reloads_total") == before[name] + 1)
            if "reload_failed" in self.conditions(name):
                self.check(f"{name} has applied the reload", False)

    def rotate(self):
        self.step("every key and certificate is changed: authority, certificates, token key, cluster's key")
        sessions, old = self.sessions(), self.token("app", "--access", "early")
        links = {name: self.metric(name, "apus_transport_links_lost_total") for name in ADDRESSES}
        for step in ["add", "use", "remove"]:
            for secret in ["authority", "tokens", "cluster"]:
                self.admin("pki", "change", secret, step, "--cluster", "villa")
            if step == "use":
                self.admin("pki", "renew")
                (self.folder / "operator.token").write_text(self.token("admin"))
            self.copy_keys()
            self.copy_database_keys()
            self.sql("select pg_reload_conf()")
            if step != "use":
                # etcd reads its authority when it starts, and its certificates for each connection.
                for name in ADDRESSES:
                    self.nodes[name].stop("etcd")
                    self.start_etcd(name)
                    wait(f"etcd of {name} is back", lambda: self.is_healthy(name), 60)
            self.reload()
            for name in ADDRESSES:
                wait(f"{name} has no conditions", lambda: self.conditions(name) == [], 20)
            self.check(f"'{step}' is applied at every node, and none has a condition", True)
        self.check("no session ended", self.sessions() == sessions)
        for name in ADDRESSES:
            lost = self.metric(name, "apus_transport_links_lost_total") - links[name]
            self.check(f"{name} lost no link", lost == 0)
        refused = subprocess.run(
            self.phone.command(
                self.apus, "watch", "cam", "--seconds", "1", "--connect", f"{ADDRESSES['a']}:7443",
                "--ca", self.pki / "ca.pem", "--token", old), capture_output=True, text=True, timeout=30, check=False)
        self.check("a token of the old key is refused with 12001", "12001" in refused.stderr)
        self.check_frames("while everything was changed")

    def refuse(self):
        self.step("a broken certificate is copied to b")
        path = "/etc/apus/pki/node.pem"
        whole = self.nodes["b"].file(path).read_text()
        self.nodes["b"].install(whole[:300], path)
        self.nodes["b"].processes["apus"].send_signal(signal.SIGHUP)
        wait("b reports it", lambda: "reload_failed" in self.conditions("b"))
        self.check("b refuses the reload with a condition, and goes on", "10022" in self.fetch("b", "/healthz"))
        self.nodes["b"].install(whole, path)
        self.reload("b")
        self.check("the condition ends with the next reload", self.conditions("b") == [])

    def withdraw(self):
        self.step("the certificate of c is withdrawn")
        self.admin("pki", "revoke", "c")
        for name in ["a", "b"]:
            self.nodes[name].install(self.pki / "revoked.txt", "/etc/apus/pki/revoked.txt")
        start = time.monotonic()
        for name in ["a", "b"]:
            self.nodes[name].processes["apus"].send_signal(signal.SIGHUP)
        seconds = wait("a and b own every shard", lambda: self.owned("a", "b") == SHARDS, 20)
        self.check(f"a and b own every shard within {time.monotonic() - start:.1f} s", seconds < 10)
        wait("c waits", lambda: "This node waits to join" in self.nodes["c"].log("apus"), 20)
        self.check("c has started again, and waits outside the cluster", True)
        self.check("a counts the refused links", self.metric("a", 'apus_transport_rejected_total') > 0)
        # What a certificate does not cover: access to etcd and PostgreSQL, and the cluster's key.
        self.etcdctl("a", "user", "delete", "apus-c")
        members = json.loads(self.etcdctl("a", "member", "list", "-w", "json"))["members"]
        number = next(m["ID"] for m in members if m["name"] == "c")
        # etcd refuses it until all its members have been connected for five seconds.
        wait("etcd removes c", lambda: self.etcdctl("a", "member", "remove", f"{number:x}"), 20)
        self.passwords["database"] = secrets.token_urlsafe(24)
        self.sql(f"alter role apus password '{self.passwords['database']}'")
        for name in ["a", "b"]:
            self.nodes[name].install(
                f"{DATABASE}:5432:apus:apus:{self.passwords['database']}\n", "/etc/apus/pgpass", 0o600)
        for step in ["add", "use", "remove"]:
            self.admin("pki", "change", "cluster", step, "--cluster", "villa")
            for name in ["a", "b"]:
                self.nodes[name].install(self.pki / "cluster.key", "/etc/apus/pki/cluster.key", 0o600)
            self.reload("a", "b")
        self.check("etcd, PostgreSQL and the cluster's key are closed to c", self.conditions("a") == [])
        self.check_frames("while c was withdrawn")

    def replace(self):
        self.step("the machine of c is replaced")
        old = self.nodes["c"]
        old.remove()
        shutil.rmtree(old.root)
        self.network.machines.remove(old)
        self.admin("pki", "--cluster", "villa", "--node", "c", "--host", ADDRESSES["c"])
        self.nodes["c"] = self.network.machine("c", ADDRESSES["c"])
        self.passwords["c"] = secrets.token_urlsafe(24)
        self.etcdctl("a", "user", "add", f"apus-c:{self.passwords['c']}")
        self.etcdctl("a", "user", "grant-role", "apus-c", "apus")
        self.install("c")
        wait(
            "etcd adds c",
            lambda: self.etcdctl("a", "member", "add", "c", f"--peer-urls=https://{ADDRESSES['c']}:2380"), 20)
        self.start_etcd("c", state="existing")
        wait("the member has joined", lambda: self.is_healthy("c"), 60)
        self.start_node("c")
        self.await_nodes()
        wait("c has its share", lambda: self.owned("c") > SHARDS // 6, 60)
        self.check("c has joined with a new certificate, and has its share of the shards", True)
        self.check_frames("while the machine was replaced")

    def kill(self):
        self.step("b is killed, and starts again")
        self.nodes["b"].stop("apus", signal.SIGKILL)
        seconds = wait("a and c own every shard", lambda: self.owned("a", "c") == SHARDS, 20)
        self.check(f"a and c own every shard within {seconds:.1f} s", seconds < 10)
        self.start_node("b")
        self.await_nodes()
        self.check_frames("while b was killed")

    def go(self):
        self.certificates()
        for name in ADDRESSES:
            self.install(name)
        self.etcd()
        self.postgres()
        self.start_nodes()
        self.check_firewall()
        self.start_clients()
        self.rotate()
        self.restart_clients()
        self.refuse()
        self.withdraw()
        self.replace()
        self.kill()

    def end(self):
        self.network.remove()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder, start = tempfile.mkdtemp(prefix="apus-three-"), time.monotonic()
    trial = Trial(options.apus, folder)
    try:
        trial.go()
    except RuntimeError as error:
        trial.failures.append(str(error))
        for machine in trial.network.machines:
            for name in machine.processes:
                tail = "\n    ".join(machine.log(name).splitlines()[-8:])
                say(f"--- {machine.name} {name}\n    {tail}")
    finally:
        trial.end()
        if options.keep:
            say(f"Files and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - start
    if trial.failures:
        say(f"Failed after {seconds:.0f} s:")
        for failure in trial.failures:
            say(f"    {failure}")
        sys.exit(1)
    say(f"Everything was as it should be, in {seconds:.0f} s.")


main()
