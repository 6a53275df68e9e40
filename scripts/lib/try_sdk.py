"""Runs the app of Examples/App on a local cluster: see scripts/try-sdk."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import tempfile
import time

from local_cluster import Cluster, fetch, say

SECONDS_MAX = 60
WANTED = ["device camera", "camera is online", "camera is offline"]


def wait(what, condition):
    """Returns once the condition holds; raises with its name where it does not in time."""
    deadline = time.time() + SECONDS_MAX
    while not condition():
        assert time.time() < deadline, f"{what} in {SECONDS_MAX} s"
        time.sleep(0.2)


def check_resolution(app):
    """The app's packages are of versions that Apus's manifest and the newer package both allow."""
    lock = json.loads(pathlib.Path("Examples/App/Package.resolved").read_text())
    versions = {pin["identity"]: pin["state"]["version"] for pin in lock["pins"]}
    for identity in ["swift-log", "swift-nio"]:
        say(f"The app is built with {identity} {versions[identity]}.")
    assert pathlib.Path(app).exists(), f"{app} was not built"


def check_app(options, cluster, directory):
    """The app lists the camera, and prints that it is online, then that it is not."""
    camera = cluster.client("device", "--id", "camera", "--test-pattern", "160x120@5", "--node", "1")
    token = cluster.token("app")
    url = f"http://{cluster.targets[0]}/v1/devices"
    wait("the camera is not listed", lambda: "camera" in fetch(url, token)[1])
    (directory / "token").write_text(cluster.token("app"))
    output, errors = directory / "output", directory / "errors"
    with output.open("w") as out, errors.open("w") as err:
        app = subprocess.Popen(
            [options.app, f"127.0.0.1:{options.base_port + 1}", f"{cluster.directory}/pki/ca.pem", directory / "token",
             "camera", "2"], stdout=out, stderr=err)
    cluster.clients.append(app)
    wait(f"the app does not print {WANTED[1]!r}",
         lambda: WANTED[1] in output.read_text() or app.poll() is not None)
    camera.terminate()
    status = app.wait(timeout=SECONDS_MAX)
    lines = output.read_text().splitlines()
    assert status == 0 and lines == WANTED, f"exit code {status}, {lines}\n{errors.read_text()[-4000:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--app", required=True)
    parser.add_argument("--base-port", type=int, default=27_600)
    options = parser.parse_args()
    check_resolution(options.app)
    with tempfile.TemporaryDirectory(prefix="apus-sdk-") as directory, contextlib.ExitStack() as stack:
        cluster = Cluster(options.apus, f"{directory}/cluster", options.base_port)
        say("Starting three nodes.")
        stack.callback(cluster.stop)
        cluster.start()
        check_app(options, cluster, pathlib.Path(directory))
    print("The app was built outside of the package, listed the camera and followed its presence.")


main()
