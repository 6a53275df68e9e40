"""Uses the API of a local cluster with the programs of others: see scripts/try-api."""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import websockets

from local_cluster import Cluster, fetch, say

LIBRARY = pathlib.Path(__file__).resolve().parent
TOOLS = pathlib.Path(sys.executable).parent


def configure(cluster, node, old, new):
    """Changes a node's configuration, which it reads when it starts."""
    path = pathlib.Path(cluster.directory) / f"{node}.yaml"
    text = path.read_text()
    if old not in text:
        raise RuntimeError(f"{path.name} has no {old!r}")
    path.write_text(text.replace(old, new))
    return path


def start_camera(cluster):
    cluster.client(
        "device", "--id", "camera", "--test-pattern", "160x120@5", "--node", "1", "--setting", "volume=3", "--action",
        'unlock={"open":true}', "--echo")


def serve_tls(cluster, node, tokens):
    """Starts a node with TLS on its HTTP listener. `apus cluster` starts none, since it asks over plain HTTP."""
    cluster.run("cluster", "drain", node)
    path = configure(cluster, node, "threads: 2", "http:\n  tls: on\nthreads: 2")
    log = open(path.with_suffix(".tls.log"), "w")
    cluster.clients.append(
        subprocess.Popen([cluster.apus, "node", "--config", path], stdout=log, stderr=log))
    deadline = time.time() + 30
    while True:
        try:
            return curl(cluster, f"https://{cluster.targets[1]}/v1/devices", tokens["app"])
        except RuntimeError:
            if time.time() > deadline:
                raise
            time.sleep(0.3)


def curl(cluster, url, token, *arguments):
    """Status and body by curl, which trusts the cluster's authority alone."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "10", "--cacert", f"{cluster.directory}/pki/ca.pem",
         "--header", f"Authorization: Bearer {token}", "--write-out", "\n%{http_code}", *arguments, url],
        capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise RuntimeError(f"curl {url}: {done.stderr.strip()}")
    body, status = done.stdout.rsplit("\n", 1)
    return int(status), json.loads(body)


def check_curl(cluster, tokens):
    """The second node serves TLS itself, with the clients' certificate."""
    url = "https://" + cluster.targets[1]
    status, body = curl(cluster, f"{url}/v1/devices", tokens["app"])
    assert status == 200 and any(one["device"] == "camera" for one in body["devices"]), (status, body)
    status, body = curl(cluster, f"{url}/v1/devices", "wrong")
    assert status == 401 and body["code"] == 12001, (status, body)
    status, body = curl(
        cluster, f"{url}/v1/tokens/revoke", tokens["admin"], "--json", '{"tokenId": "none", "keepSeconds": null}')
    assert status == 400 and body["code"] == 10001, (status, body)
    status, body = curl(cluster, f"{url}/v1/doors/front/pass", tokens["app"], "--request", "POST")
    assert status == 200 and body["passes"] == "1", (status, body)


def generated_client(directory, document):
    """The package that openapi-python-client makes of the document."""
    path = pathlib.Path(directory) / "openapi.json"
    path.write_text(document)
    done = subprocess.run(
        [TOOLS / "openapi-python-client", "generate", "--path", path, "--output-path", f"{directory}/generated",
         "--meta", "none", "--overwrite"], capture_output=True, text=True, timeout=120, cwd=directory)
    faults = [line for line in done.stdout.splitlines() if "WARNING" in line or "ERROR" in line]
    assert done.returncode == 0 and not faults, done.stdout
    sys.path.insert(0, directory)


def check_generated_client(cluster, tokens):
    client = importlib.import_module("generated.client").AuthenticatedClient(
        base_url="http://" + cluster.targets[2], token=tokens["app"])
    devices = importlib.import_module("generated.api.devices.devices_list").sync(client=client)
    assert [one.device for one in devices.devices] == ["camera"], devices
    presence = importlib.import_module("generated.api.presence.presence_get").sync(client=client, device="camera")
    assert presence.online == 1, presence
    problem = importlib.import_module("generated.api.presence.presence_get").sync(client=client, device="no such")
    assert problem.code == 21031, problem
    check_generated_models(client)
    check_generated_commands(client)


def request(operation, client, **arguments):
    """A request of the generated client, such as properties.read."""
    tag, verb = operation.split(".")
    return importlib.import_module(f"generated.api.{tag}.{tag}_{verb}").sync(client=client, **arguments)


def body(name, **fields):
    """The body of a request: the generated client has a type for each."""
    kind = "".join(word.capitalize() for word in name.split("_")) + "Body"
    return getattr(importlib.import_module(f"generated.models.{name}_body"), kind)(**fields)


def check_generated_models(client):
    """The setting that the camera has: read, written, applied, and asked of the camera itself."""
    path = "ProWritable.volume.setVal"
    found = request("properties.read", client, device="camera", path=path)
    assert found.json == "3", found
    written = request(
        "properties.write", client, device="camera",
        body=body("properties_write", path=path, json="5", if_version=found.version))
    assert int(written.version) > int(found.version), written
    deadline = time.time() + 10
    while (own := request("properties.read", client, device="camera", path=path, max_age_ms=1)).json != "5":
        assert time.time() < deadline, own
        time.sleep(0.1)
    assert int(own.confirmed_ms) > 0 and not own.pending, own
    # The version is one of before.
    problem = request(
        "properties.write", client, device="camera",
        body=body("properties_write", path=path, json="6", if_version=found.version))
    assert problem.code == 10030, problem
    request("properties.add", client, device="camera", name="room", body=body("properties_add", json='"hall"'))
    assert request("properties.read", client, device="camera", path="ProUser.room.val").json == '"hall"'
    request("properties.delete", client, device="camera", name="room")
    assert request("properties.read", client, device="camera", path="ProUser.room").code == 21003


def check_generated_commands(client):
    """Actions and raw data: one that is answered, one that is repeated, and those that the camera refuses."""
    number = "0123456789abcdef" * 2
    for _ in range(2):
        sent = request(
            "commands.send", client, device="camera",
            body=body("commands_send", id=number, path="Action.unlock.ctlVal", json="1"))
        assert sent.status == "COMMAND_STATUS_ANSWERED" and sent.json == '{"open":true}', sent
    assert request("commands.get", client, device="camera", id=number).id == number
    listed = request("commands.list", client, device="camera").commands
    assert [one.id for one in listed].count(number) == 1, listed
    echoed = request("commands.send", client, device="camera", body=body("commands_send", data="aGVsbG8="))
    assert echoed.data == "aGVsbG8=", echoed
    problem = request(
        "commands.send", client, device="camera", body=body("commands_send", path="Action.none.ctlVal", json="1"))
    assert problem.code == 20104, problem
    long = request("commands.send", client, device="camera", body=body("commands_send", data="AAAA" * 10_001))
    assert long.code == 21008, long


async def check_websockets(cluster, tokens):
    """A WebSocket hears a device come and go, while the generated client sees the same over REST."""
    async with websockets.connect(f"ws://{cluster.targets[0]}/v1/ws") as socket:

        async def receive(wanted):
            seen = []
            try:
                async with asyncio.timeout(30):
                    while True:
                        seen.append(json.loads(await socket.recv()))
                        if found := wanted(seen[-1]):
                            return found
            except TimeoutError:
                raise AssertionError(f"the node sent only {seen}") from None

        await socket.send(json.dumps({"hello": {"role": "ROLE_APP", "token": tokens["second app"]}}))
        await receive(lambda message: "welcome" in message)
        await socket.send(json.dumps({"id": 1, "request": "devices.list", "body": {}}))
        answer = await receive(lambda message: message.get("id") == 1 and message["response"])
        assert [one["device"] for one in answer["devices"]] == ["camera"], answer
        # Nobody may subscribe to a device that was never there.
        await socket.send(json.dumps({"id": 2, "request": "topics.subscribe", "body": {"topic": "presence/bell"}}))
        await receive(lambda message: message.get("id") == 2 and message["error"]["code"] == 8002)

        def heard(online):
            return lambda message: "event" in message and message["event"]["message"].get("online", 0) == online

        await socket.send(json.dumps({"id": 4, "request": "topics.subscribe", "body": {"topic": "presence/camera"}}))
        await receive(heard(1))
        cluster.clients[-1].terminate()
        await receive(heard(0))
        start_camera(cluster)
        await receive(heard(1))
        await socket.send(json.dumps({"id": 3, "request": "no.such", "body": {}}))
        await receive(lambda message: message.get("id") == 3 and message["error"]["code"] == 10004)


def run_schemathesis(cluster, token, options):
    """What schemathesis finds, as lines; it sends requests to the first node."""
    done = subprocess.run(
        [TOOLS / "schemathesis", "--config-file", LIBRARY / "schemathesis.toml", "run",
         f"http://{cluster.targets[0]}/v1/openapi.json",
         "--header", f"Authorization: Bearer {token}", "--seed", str(options.seed), "-n", str(options.examples)],
        capture_output=True, text=True, timeout=900, cwd=cluster.directory,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(LIBRARY)})
    summary = re.search(r"^\s*(\d+ generated.*)$", done.stdout, re.M)
    say(f"schemathesis: {summary[1] if summary else 'no summary'}")
    if done.returncode:
        raise AssertionError(done.stdout[-6000:] + done.stderr[-1000:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=27_500)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--examples", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="apus-api-") as directory, contextlib.ExitStack() as stack:
        cluster = Cluster(options.apus, f"{directory}/cluster", options.base_port)
        say("Starting three nodes.")
        stack.callback(cluster.stop)
        cluster.start()
        tokens = {
            "app": cluster.token("app"), "second app": cluster.token("app"), "admin": cluster.token("admin")}
        serve_tls(cluster, "n2", tokens)
        start_camera(cluster)
        deadline = time.time() + 30
        while "camera" not in fetch(f"http://{cluster.targets[0]}/v1/devices", tokens["app"])[1]:
            assert time.time() < deadline, "the camera is not listed"
            time.sleep(0.2)
        say("curl over TLS.")
        check_curl(cluster, tokens)
        say("A client made of the OpenAPI document.")
        generated_client(directory, fetch(f"http://{cluster.targets[0]}/v1/openapi.json")[1])
        check_generated_client(cluster, tokens)
        say("websockets.")
        asyncio.run(check_websockets(cluster, tokens))
        # As an operator last: it drains nodes.
        for role in ["app", "admin"]:
            say(f"schemathesis as {role}.")
            run_schemathesis(cluster, tokens[role], options)
    print("curl, a generated client, websockets and schemathesis found nothing wrong.")


main()
