"""Two peer connections in one page of a headless browser (browser_pair.html), with relay candidates only.

    browser_pair.py BROWSER URL_A URL_B USER PASSWORD

The browser is driven by its remote debugging protocol over two pipes, and by nothing else. Prints one line of JSON:
what the page saw. Any certificate is taken: the tests' own is no authority's.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SWITCHES = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--ignore-certificate-errors",
    "--remote-debugging-pipe", "about:blank",
]


class Browser:
    def __init__(self, program, folder):
        theirs_in, self.out = os.pipe()
        self.incoming, theirs_out = os.pipe()
        # The browser reads commands at 3 and writes answers at 4.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "browser", program, f"--user-data-dir={folder}", *SWITCHES],
            pass_fds=[theirs_in, theirs_out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(f"{folder}/errors", "wb"))
        os.close(theirs_in)
        os.close(theirs_out)
        self.pending, self.number = b"", 0

    def message(self):
        while b"\0" not in self.pending:
            part = os.read(self.incoming, 65536)
            if not part:
                raise SystemExit("the browser ended")
            self.pending += part
        text, self.pending = self.pending.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, session=None, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self.out, json.dumps(command).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def wait(self, event):
        while self.message().get("method") != event:
            pass


def run(program, *arguments):
    page = pathlib.Path(__file__).with_name("browser_pair.html").resolve().as_uri()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
            session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            browser.ask("Page.enable", session)
            browser.ask("Page.navigate", session, url=page)
            browser.wait("Page.loadEventFired")
            call = f"exchange({', '.join(json.dumps(each) for each in arguments)})"
            answer = browser.ask(
                "Runtime.evaluate", session, expression=call, awaitPromise=True, returnByValue=True)
            if "exceptionDetails" in answer:
                raise SystemExit(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
            print(json.dumps(answer["result"]["value"]), flush=True)
            browser.ask("Browser.close")
            browser.process.wait(5)
        finally:
            if browser.process.poll() is None:
                browser.process.kill()
                browser.process.wait()


run(*sys.argv[1:6])
