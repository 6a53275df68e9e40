"""S3 servers for tests: moto or nanio, and before it a proxy that fails.

    s3_servers.py moto|nanio PORT
    s3_servers.py proxy PORT UPSTREAM_PORT

It prints "ready" when it answers, and ends when its input ends. Lines of the proxy's input change its faults, as JSON:
a probability for each of "error" (500 or 503, before the request is carried out), "late" (the same after it), "cut"
(the connection is closed within the answer), "lost" (closed after the request was carried out, before the answer),
"stall" (no answer for `stall_seconds`), "tag" (a wrong ETag); "seed" starts the random numbers again; "away": all
connections are closed at once. The answer is a line with the number of faults so far.
"""

import http.client
import http.server
import json
import os
import random
import socketserver
import sys
import tempfile
import threading
import time

BUCKET = "apus-test"


def wait_for_end():
    sys.stdin.read()
    os._exit(0)


def answers(port):
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/")
            connection.getresponse().read()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def announce(port, make_bucket):
    if answers(port):
        make_bucket()
        print("ready", flush=True)
    wait_for_end()


def moto(port):
    import logging

    os.environ["MOTO_PORT"] = str(port)
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # One thread: with more, two writes with a condition may both find that the name is free.
    server = make_server("127.0.0.1", port, DomainDispatcherApplication(create_backend_app))

    def make_bucket():
        # moto does not check the signature, and finds the service in it.
        scope = "Credential=apus-test/20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("PUT", f"/{BUCKET}", headers=headers)
        if connection.getresponse().status != 200:
            os._exit(1)

    threading.Thread(target=announce, args=(port, make_bucket), daemon=True).start()
    server.serve_forever()


def nanio(port):
    from nanio.cli import main

    folder = tempfile.TemporaryDirectory()
    os.environ["NANIO_ACCESS_KEY"], os.environ["NANIO_SECRET_KEY"] = "apus-test", "apus-test-secret"
    bucket = os.path.join(folder.name, BUCKET)
    threading.Thread(target=announce, args=(port, lambda: os.makedirs(bucket, exist_ok=True)), daemon=True).start()
    sys.exit(
        main(
            ["serve", "--host", "127.0.0.1", "--port", str(port), "--data-dir", folder.name]
            + ["--no-access-log", "--log-level", "error"]
        )
    )


class Faults:
    def __init__(self):
        self.lock = threading.Lock()
        self.rates, self.random, self.count, self.is_away = {}, random.Random(0), 0, False
        self.stall_seconds = 2.0

    def change(self, settings):
        with self.lock:
            if "seed" in settings:
                self.random = random.Random(settings["seed"])
            self.stall_seconds = settings.get("stall_seconds", 2.0)
            self.is_away = settings.get("away", False)
            self.rates = settings

    def happens(self, name):
        with self.lock:
            does = self.random.random() < self.rates.get(name, 0)
            self.count += does
            return does

    def status(self):
        with self.lock:
            return self.random.choice([500, 503])


FAULTS = Faults()


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = 0

    def log_message(self, *arguments):
        pass

    def fail(self):
        body = b"<Error><Code>InternalError</Code></Error>"
        self.send_response(FAULTS.status())
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def forward(self):
        if FAULTS.is_away:
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if FAULTS.happens("error"):
            self.fail()
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        if FAULTS.happens("lost"):
            self.close_connection = True
            return
        if FAULTS.happens("late"):
            self.fail()
            return
        if FAULTS.happens("stall"):
            time.sleep(FAULTS.stall_seconds)
        is_wrong, is_cut = FAULTS.happens("tag"), FAULTS.happens("cut")
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in ("transfer-encoding", "content-length", "connection"):
                continue
            if is_wrong and name.lower() == "etag":
                value = '"' + "0123456789abcdef" * 2 + '"'
            self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_cut and content:
            content = content[: len(content) // 2]
            self.close_connection = True
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


def proxy(port, upstream):
    Proxy.upstream = upstream
    server = Server(("127.0.0.1", port), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        FAULTS.change(json.loads(line))
        print(FAULTS.count, flush=True)
    os._exit(0)


if __name__ == "__main__":
    kind, numbers = sys.argv[1], [int(text) for text in sys.argv[2:]]
    {"moto": moto, "nanio": nanio, "proxy": proxy}[kind](*numbers)
