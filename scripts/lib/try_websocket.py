"""Saves clips over WebSockets of a local cluster: see scripts/try-websocket."""

import argparse
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from local_cluster import Cluster, say

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "Examples" / "websocket-client.py"
RATE = 25


def save(server, token, file, seconds, *arguments):
    """Starts the example."""
    return subprocess.Popen(
        [sys.executable, EXAMPLE, "--server", server, "--token", token, "--seconds", str(seconds), *arguments, "camera",
         file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check(process, file):
    """The number of pictures, which ffprobe has decoded too, and without an error."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    count = int(re.search(r"(\d+) pictures", output)[1])
    probed = subprocess.run(
        ["ffprobe", "-v", "error", "-count_frames", "-select_streams", "v:0", "-show_entries",
         "stream=codec_name,nb_read_frames", "-of", "json", file], capture_output=True, text=True, check=True)
    stream = json.loads(probed.stdout)["streams"][0]
    assert not probed.stderr and int(stream["nb_read_frames"]) == count > 0, (count, stream, probed.stderr)
    return count, errors


def serve_tls(cluster, node):
    """Starts a node with TLS on its HTTP listener."""
    cluster.run("cluster", "drain", node)
    path = pathlib.Path(cluster.directory) / f"{node}.yaml"
    path.write_text(path.read_text().replace("threads: 2", "http:\n  tls: on\nthreads: 2"))
    log = open(path.with_suffix(".tls.log"), "w")
    cluster.clients.append(subprocess.Popen([cluster.apus, "node", "--config", path], stdout=log, stderr=log))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=27_600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="apus-websocket-") as directory, contextlib.ExitStack() as stack:
        cluster = Cluster(options.apus, f"{directory}/cluster", options.base_port)
        stack.callback(cluster.stop)
        cluster.start()
        cluster.client("device", "--id", "camera", "--test-pattern", f"320x180@{RATE}")
        token = cluster.token("app")
        deadline = time.time() + 30
        while '"camera/0"' not in cluster.run("cluster", "status", "--json"):
            assert time.time() < deadline, "the camera publishes nothing"
            time.sleep(0.2)
        status = json.loads(cluster.run("cluster", "status", "--json"))
        primary = next(
            node for node in status["nodes"]
            for one in node["channels"] if (one["channel"], one["role"]) == ("camera/0", "primary"))

        file = f"{directory}/killed.mp4"
        process = save(f"ws://{primary['addresses']['http']}/v1/ws", token, file, 8)
        time.sleep(4)
        cluster.run("cluster", "kill", primary["name"])
        count, errors = check(process, file)
        assert "ws://" in errors, "the node was not the one that served the clip"
        # The first picture may be a group of pictures old, and the process takes a moment to start.
        assert 6 * RATE < count < 12 * RATE, count
        say(f"{count} pictures, while {primary['name']} was killed.")

        cluster.run("cluster", "up")
        serve_tls(cluster, "n2")
        raw = f"{directory}/tls.h264"
        server = next(node["addresses"]["http"] for node in status["nodes"] if node["name"] == "n2")
        for _ in range(20):
            process = save(f"wss://{server}/v1/ws", token, raw, 4, "--ca", f"{cluster.directory}/pki/ca.pem")
            with contextlib.suppress(AssertionError):
                count, _ = check(process, raw)
                break
        say(f"{count} pictures over TLS.")
    print("The example has saved both clips.")


main()
