"""Runs every query of docs/grafana/apus.json against a live cluster: see scripts/try-dashboard."""

import argparse
import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

from local_cluster import Cluster, fetch, say

DASHBOARD = pathlib.Path("docs/grafana/apus.json")
REFERENCE = pathlib.Path("docs/reference/metrics.md")
SECONDS_BETWEEN_SCRAPES = 1
RATE_INTERVAL = "10s"


class Prometheus:
    """A server of its own, which scrapes the nodes."""

    def __init__(self, directory, targets):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        folder = pathlib.Path(directory) / "prometheus"
        folder.mkdir()
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SECONDS_BETWEEN_SCRAPES}s"},
            "scrape_configs": [{"job_name": "apus", "static_configs": [{"targets": targets}]}]}))
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=self.log)
        for _ in range(100):
            with contextlib.suppress(OSError):
                if fetch(f"http://{self.address}/-/ready")[0] == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError("prometheus does not become ready")

    def range(self, expression, start, end):
        """The series of a query over a time; raises where the query is wrong."""
        query = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": 2})
        status, body = fetch(f"http://{self.address}/api/v1/query_range?{query}")
        answer = json.loads(body)
        if answer["status"] != "success":
            raise ValueError(f"{status} {answer.get('error')}")
        return [s for s in answer["data"]["result"] if any(v not in ("NaN", "+Inf", "-Inf") for _, v in s["values"])]

    def warnings(self):
        """What the scrapes complained of."""
        targets = json.loads(fetch(f"http://{self.address}/api/v1/targets")[1])["data"]["activeTargets"]
        return [f"{t['scrapeUrl']}: {t['lastError']}" for t in targets if t["lastError"]]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def reference():
    """Name, kind and labels of every metric that the reference has."""
    metrics = {}
    for line in REFERENCE.read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \| (\w+) \| ([^|]*) \|([^|]*)\|", line):
            metrics[match[1]] = (match[2], set(re.findall(r"`(\w+)`:", match[4])))
    return metrics


def check_text(text, known):
    """Faults of one node's /metrics: of promtool, and what differs from the reference."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    faults = [f"promtool: {line}" for line in (done.stdout + done.stderr).splitlines() if line]
    if done.returncode and not faults:
        faults.append(f"promtool ends with {done.returncode}")
    helped = set(re.findall(r"^# HELP (\w+) ", text, re.M))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        if name not in known:
            faults.append(f"{name} is not in the reference")
        elif known[name][0] != kind:
            faults.append(f"{name} is a {kind}, and a {known[name][0]} in the reference")
        if name not in helped:
            faults.append(f"{name} has no help")
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        family = name if name in known else re.sub(r"_(bucket|sum|count)$", "", name)
        if family in known:
            for label in set(re.findall(r"(\w+)=\"", labels)) - known[family][1] - {"le", "overflow"}:
                faults.append(f"{name} has the label {label}, which is not in the reference")
    return sorted(set(faults))


def expand(expression):
    """A query with the dashboard's variables filled in."""
    for name, value in [("$__rate_interval", RATE_INTERVAL), ("$job", "apus"), ("$instance", ".*")]:
        expression = expression.replace(name, value)
    return expression


def exercise(cluster):
    """Makes all parts of the cluster do something, mistakes of clients included."""
    say("Cameras, viewers and relayed data.")
    for number, node in [(1, "1"), (2, "2"), (3, "3")]:
        cluster.client("device", "--id", f"camera-{number}", "--test-pattern", "320x180@25", "--node", node)
    time.sleep(4)
    for number, node in [(1, "2"), (2, "3"), (3, "1"), (1, "3")]:
        cluster.client("watch", f"camera-{number}", "--node", node)
    for transport in ["udp", "tls", "dtls"]:
        cluster.run("relay", "check", "--transport", transport, "--count", "500", "--interval", "5", may_fail=True)
    say("Clients that are refused.")
    cluster.run("watch", "no-such-device", "--seconds", "2", may_fail=True)
    cluster.run("watch", "camera-1", "--token", "wrong", "--seconds", "5", may_fail=True)
    for target in cluster.targets:
        for path in ["/healthz", "/v1/status", "/no/such/path", "/v1/relay/credentials"]:
            fetch(f"http://{target}{path}", token="wrong")
    say("The ownership store is away for some seconds.")
    store = pathlib.Path(cluster.directory) / "shared" / "ownership"
    away = store.rename(store.with_name("ownership.away"))
    time.sleep(5)
    away.rename(store)
    time.sleep(5)
    say("A node dies, starts again, and is drained.")
    cluster.run("cluster", "kill", "1")
    time.sleep(15)
    cluster.run("cluster", "restart", "1")
    time.sleep(15)
    cluster.run("cluster", "drain", "2", "--stay", may_fail=True)
    time.sleep(10)


def run_queries(server, known, start, end):
    """Faults of the dashboard's queries, queries without data, and how many there are."""
    faults, silent, count = [], [], 0
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            count += 1
            expression = expand(target["expr"])
            try:
                series = server.range(expression, start, end)
            except ValueError as error:
                faults.append(f"{panel['title']}: {expression}: {error}")
                continue
            if series:
                continue
            names = re.findall(r"\b(?:apus|process)_\w+", expression)
            if all(server.range(name, start, end) for name in names):
                faults.append(f"{panel['title']}: {expression}: no data, although its metrics have series")
            else:
                silent.append(f"{panel['title']}: {', '.join(names)}")
    return faults, silent, count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=27_400)
    parser.add_argument("--json")
    options = parser.parse_args()
    known = reference()
    with tempfile.TemporaryDirectory(prefix="apus-dashboard-") as directory, contextlib.ExitStack() as stack:
        cluster = Cluster(options.apus, f"{directory}/cluster", options.base_port)
        say("Starting three nodes and prometheus.")
        stack.callback(cluster.stop)
        cluster.start()
        start = time.time()
        server = Prometheus(directory, cluster.targets)
        stack.callback(server.stop)
        exercise(cluster)
        texts = [fetch(f"http://{target}/metrics")[1] for target in cluster.targets]
        faults = [fault for text in texts for fault in check_text(text, known)]
        faults += server.warnings()
        found, silent, count = run_queries(server, known, start, time.time())
        exported = set(re.findall(r"^# TYPE (\w+) ", "\n".join(texts), re.M))
    faults = sorted(set(faults + found))
    report = {
        "queries": count, "without_data": silent, "faults": faults, "metrics": len(known),
        "metrics_without_series": sorted(set(known) - exported)}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    print(f"{len(exported)} of {len(known)} metrics have series; {count} queries, {len(silent)} without data.")
    for line in silent:
        print(f"no event yet   {line}")
    for name in report["metrics_without_series"]:
        print(f"no series yet  {name}")
    for line in faults:
        print(f"FAULT          {line}")
    sys.exit(1 if faults else 0)


main()
