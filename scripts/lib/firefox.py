"""Firefox without a driver of its own: speaks Marionette (firefox-source-docs, remote/marionette), as far as scripts need it.

The names are those of Selenium, so that a script uses either browser.
"""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

# How WebDriver names an element (W3C WebDriver, Elements).
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

PREFERENCES = {
    # Nothing of other hosts.
    "app.update.disabledForTesting": True, "browser.safebrowsing.malware.enabled": False, "browser.safebrowsing.phishing.enabled": False,
    "browser.newtabpage.enabled": False, "browser.startup.page": 0, "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False, "toolkit.telemetry.enabled": False, "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "extensions.update.enabled": False, "services.settings.server": "data:,#remote-settings-dummy/v1",
    "media.gmp-manager.updateEnabled": False, "browser.region.network.url": "", "network.dns.disablePrefetch": True,
    "intl.accept_languages": "en-US, en", "media.navigator.permission.disabled": True, "media.navigator.streams.fake": True,
    "media.autoplay.default": 0, "devtools.console.stdout.content": True, "browser.dom.window.dump.enabled": True,
    "remote.log.level": "Error",
}


class MarionetteError(Exception):
    pass


class Element:
    def __init__(self, driver, reference):
        self.driver, self.id = driver, reference

    def ask(self, name, **parameters):
        return self.driver.ask(f"WebDriver:{name}", id=self.id, **parameters)

    def find_elements(self, by, value):
        return self.driver.find_elements(by, value, within=self)

    def click(self):
        self.ask("ElementClick")

    def clear(self):
        self.ask("ElementClear")

    def send_keys(self, *keys):
        self.ask("ElementSendKeys", text="".join(keys))

    def is_displayed(self):
        return self.ask("IsElementDisplayed")

    def get_attribute(self, name):
        return self.driver.execute_script("return arguments[0][arguments[1]] ?? arguments[0].getAttribute(arguments[1])", self, name)

    @property
    def aria_role(self):
        return self.ask("GetComputedRole")

    @property
    def accessible_name(self):
        return self.ask("GetComputedLabel")


class Firefox:
    """A headless Firefox with an empty profile."""

    def __init__(self, program="firefox-esr"):
        self.profile = pathlib.Path(tempfile.mkdtemp(prefix="apus-firefox-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        preferences = {**PREFERENCES, "marionette.port": self.port}
        (self.profile / "user.js").write_text(
            "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items()))
        self.log = open(self.profile / "log", "w+")
        self.process = subprocess.Popen(
            [program, "--headless", "--marionette", "--remote-allow-system-access", "--profile", str(self.profile), "--no-remote", "about:blank"],
            stdout=self.log, stderr=self.log, env={**_environment(), "HOME": str(self.profile)})
        self.last = 0
        self.buffer = b""
        self.switch_to = self
        self.seen = 0
        self.connection = self._connect()
        self._receive()
        capabilities = self.ask("WebDriver:NewSession", capabilities={"alwaysMatch": {"acceptInsecureCerts": True}})
        self.version = capabilities["capabilities"]["browserVersion"]

    def _connect(self):
        for _ in range(300):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", self.port), timeout=120)
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise MarionetteError(f"Firefox does not start: {self.output()[-2000:]}")

    # ---- the protocol: the length in digits, a colon, and JSON

    def _receive(self):
        while b":" not in self.buffer:
            self._read()
        head, _, self.buffer = self.buffer.partition(b":")
        while len(self.buffer) < int(head):
            self._read()
        message, self.buffer = self.buffer[:int(head)], self.buffer[int(head):]
        return json.loads(message)

    def _read(self):
        part = self.connection.recv(1 << 16)
        if not part:
            raise MarionetteError("Firefox has closed the connection")
        self.buffer += part

    def ask(self, name, **parameters):
        self.last += 1
        text = json.dumps([0, self.last, name, parameters]).encode()
        self.connection.sendall(str(len(text)).encode() + b":" + text)
        while True:
            kind, number, error, result = self._receive()
            if kind == 1 and number == self.last:
                break
        if error:
            raise MarionetteError(f"{name}: {error['error']}: {error['message']}")
        return self._value(result["value"] if isinstance(result, dict) and set(result) == {"value"} else result)

    def _value(self, value):
        if isinstance(value, list):
            return [self._value(part) for part in value]
        if isinstance(value, dict):
            if ELEMENT in value:
                return Element(self, value[ELEMENT])
            return {name: self._value(part) for name, part in value.items()}
        return value

    # ---- as Selenium has it

    def get(self, url):
        self.ask("WebDriver:Navigate", url=url)

    def refresh(self):
        self.ask("WebDriver:Refresh")

    @property
    def current_url(self):
        return self.ask("WebDriver:GetCurrentURL")

    def set_script_timeout(self, seconds):
        self.ask("WebDriver:SetTimeouts", script=seconds * 1000)

    def execute_script(self, script, *arguments):
        return self._run("WebDriver:ExecuteScript", script, arguments)

    def execute_async_script(self, script, *arguments):
        return self._run("WebDriver:ExecuteAsyncScript", script, arguments)

    def _run(self, name, script, arguments):
        values = [{ELEMENT: value.id} if isinstance(value, Element) else value for value in arguments]
        return self.ask(name, script=script, args=values, sandbox=None, newSandbox=False)

    def find_elements(self, by, value, within=None):
        using, value = ("css selector", f"#{value}") if by == "id" else ("css selector", value)
        parameters = {"element": within.id} if within else {}
        return self.ask("WebDriver:FindElements", using=using, value=value, **parameters)

    def find_element(self, by, value):
        found = self.find_elements(by, value)
        if not found:
            raise MarionetteError(f"no element {value}")
        return found[0]

    @property
    def active_element(self):
        return self.ask("WebDriver:GetActiveElement")

    def save_screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.ask("WebDriver:TakeScreenshot", full=False)))

    def delete_all_cookies(self):
        self.ask("WebDriver:DeleteAllCookies")

    def quit(self):
        with contextlib.suppress(Exception):
            self.ask("Marionette:Quit", flags=["eForceQuit"])
        with contextlib.suppress(Exception):
            self.process.wait(timeout=10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.connection.close()
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    # ---- the browser itself

    def browser(self, script, *arguments):
        """Runs a script with the browser's own rights."""
        self.ask("Marionette:SetContext", value="chrome")
        try:
            return self.ask("WebDriver:ExecuteScript", script=script, args=list(arguments), sandbox="system", newSandbox=True)
        finally:
            self.ask("Marionette:SetContext", value="content")

    def size(self, width, height):
        """The size of the page. A window is never as narrow as a phone, but what it shows may be."""
        self.browser(
            "const view = window.gBrowser.selectedBrowser; window.resizeTo(1500, Math.max(1100, arguments[1] + 200));"
            "for (const [name, value] of [['width', arguments[0]], ['height', arguments[1]]])"
            " for (const bound of ['min-', 'max-']) view.style.setProperty(bound + name, value + 'px');", width, height)

    def scheme(self, value):
        self.browser("Services.prefs.setIntPref('layout.css.prefers-color-scheme.content-override', arguments[0])", 0 if value == "dark" else 1)

    def take_errors(self):
        """The errors of pages since the last call, and what they have written to their console as one."""
        found = self.browser(
            "const all = Services.console.getMessageArray() ?? []; Services.console.reset();"
            "return all.filter(one => one instanceof Ci.nsIScriptError && !(one.flags & 1)"
            " && /^(https?|wss?):/.test(one.sourceName)).map(one => `${one.sourceName}:${one.lineNumber} ${one.errorMessage}`)")
        lines = self.output().splitlines()
        self.seen, lines = len(lines), lines[self.seen:]
        # Firefox's own modules write a prefix; values of a page are in quotes or brackets.
        return found + [line for line in lines if re.match(r'console\.error: ["({\[]', line)]

    def output(self):
        return (self.profile / "log").read_text(errors="replace")


def _environment():
    return {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
