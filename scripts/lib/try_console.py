"""Uses the console of a local cluster in headless Chromium or Firefox. Called by scripts/try-console."""

import argparse
import contextlib
import http.server
import json
import pathlib
import re
import tempfile
import threading
import time
import urllib.error
import urllib.request

import axe_selenium_python
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import firefox
from local_cluster import Cluster, say

AXE = pathlib.Path(axe_selenium_python.__file__).parent / "node_modules/axe-core/axe.min.js"
WIDTHS = {320: 720, 768: 1024, 1440: 900}
NASTY = "<img src=x onerror=alert(1)>"

# Of the player that is seen: its numbers, and a sum over the pixels of its picture.
PLAYER = """
const player = document.querySelector('apus-player');
if (!player) return null;
const element = player.renderer && player.renderer.element;
let sum = 0;
if (element) {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [64, 36];
    const pen = canvas.getContext('2d');
    pen.drawImage(element, 0, 0, 64, 36);
    pen.getImageData(0, 0, 64, 36).data.forEach((value, index) => { sum = (sum * 31 + value * (index % 7 + 1)) % 1000000007; });
}
return {...player.stats, sum, text: player.message.textContent, line: player.line.textContent};
"""

# Notes the longest time between two drawn pictures.
WATCH_GAPS = """
const player = document.querySelector('apus-player');
const drawn = player.renderer.handlers.onDrawn;
window.longest = 0;
let last = performance.now();
player.renderer.handlers.onDrawn = () => {
    const now = performance.now();
    window.longest = Math.max(window.longest, now - last);
    last = now;
    drawn();
};
"""


class Failure(Exception):
    pass


def expect(is_true, text):
    if not is_true:
        raise Failure(text)


class Browser:
    """A headless Chromium."""

    def __init__(self, shots):
        options = webdriver.ChromeOptions()
        for argument in [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,900", "--disable-background-networking",
            "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", "--lang=en-US",
        ]:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.driver.set_script_timeout(60)
        self.shots, self.findings, self.errors, self.hosts = shots, [], [], set()

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, what, body, seconds=10):
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Exception):
                value = body()
                if value:
                    return value
            if time.monotonic() > end:
                raise Failure(f"{what} did not happen within {seconds} s; the page says: {self.text()[:400]!r}")
            time.sleep(0.05)

    def text(self):
        return self.js("return document.body.innerText")

    def by_role(self, role, name, within="body"):
        """The element that a person finds by its role and its name."""
        tags = {
            "link": "a", "button": "button,summary", "heading": "h1,h2", "textbox": "input,textarea", "searchbox": "input",
            "checkbox": "input", "combobox": "select", "spinbutton": "input", "region": "section",
        }[role]

        def find():
            for element in self.driver.find_element(By.CSS_SELECTOR, within).find_elements(By.CSS_SELECTOR, tags):
                if element.is_displayed() and element.aria_role == role and re.fullmatch(name, element.accessible_name):
                    return element
            return None

        return self.wait(f"{role} {name!r}", find)

    def press(self, role, name, within="body"):
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.by_role(role, name, within))
        self.by_role(role, name, within).click()

    def size(self, width, height):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def scheme(self, value):
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]})

    def look(self, name, schemes=("light",)):
        """Keeps screenshots of a page, checks that it does not scroll sideways, and checks it with axe."""
        for scheme in schemes:
            self.scheme(scheme)
            for width, height in WIDTHS.items():
                self.size(width, height)
                time.sleep(0.4)
                wide = self.js("return document.documentElement.scrollWidth")
                widest = self.js(
                    "return [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth)"
                    ".map(e => e.outerHTML.slice(0, 120)).slice(-3)") if wide > width else []
                expect(wide <= width, f"{name} is {wide} wide at {width}: {widest}")
                full = self.js("return document.documentElement.scrollHeight")
                self.size(width, max(height, min(full, 3000)))
                time.sleep(0.3)
                self.driver.save_screenshot(str(self.shots / f"{name}-{width}-{scheme}.png"))
            self.axe(f"{name} ({scheme})")
        self.scheme("light")
        self.size(1440, 900)

    def axe(self, name):
        self.js(AXE.read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(result => done(result.violations.map("
            "rule => ({id: rule.id, help: rule.help, nodes: rule.nodes.map(node => node.html.slice(0, 200))}))))")
        for rule in found:
            self.findings.append(f"{name}: {rule['id']} ({rule['help']}): {rule['nodes']}")

    def player(self):
        return self.js(PLAYER)

    def collect(self):
        """Reads the console, and the hosts of all requests."""
        for entry in self.driver.get_log("browser"):
            if entry["level"] == "SEVERE" and not self.is_expected(entry["message"]):
                self.errors.append(entry["message"])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            params = message["params"]
            url = params.get("request", {}).get("url") or params.get("url") or ""
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                host = re.match(r"(?:https?|wss?)://([^/:]+)", url)
                if host:
                    self.hosts.add(host.group(1))

    @staticmethod
    def is_expected(message):
        # What Chromium itself writes when a node is killed, and where nobody is signed in.
        return any(text in message for text in ["WebSocket connection to", "ERR_CONNECTION", "/v1/sign-in - Failed", "401"])

    def close(self):
        self.driver.quit()


class FirefoxBrowser(Browser):
    """A headless Firefox."""

    def __init__(self, shots):
        self.driver = firefox.Firefox()
        self.driver.set_script_timeout(60)
        self.shots, self.findings, self.errors, self.hosts = shots, [], [], set()

    def size(self, width, height):
        self.driver.size(width, height)

    def scheme(self, value):
        self.driver.scheme(value)

    def collect(self):
        self.errors += [error for error in self.driver.take_errors() if not self.is_expected(error)]
        for name in self.js("return performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)"):
            self.hosts.add(name)

    @staticmethod
    def is_expected(message):
        # What Firefox itself writes when a node is killed.
        return any(text in message for text in ["can’t establish a connection", "connection to ws", "was interrupted while the page was loading"])


class Trial:
    def __init__(self, options):
        self.options = options
        self.shots = pathlib.Path(options.shots)
        self.shots.mkdir(parents=True, exist_ok=True)
        for old in self.shots.glob("*.png"):
            old.unlink()
        self.directory = tempfile.mkdtemp(prefix="apus-console-")
        self.cluster = Cluster(options.apus, self.directory, options.base_port)
        self.numbers = {}

    def browser(self):
        return (FirefoxBrowser if self.options.browser == "firefox" else Browser)(self.shots)

    def link(self, role):
        printed = self.cluster.run("admin", "sign-in", "--role", role)
        found = re.search(r"http\S+#code=\S+", printed)
        expect(found, f"`apus admin sign-in` prints no link: {printed!r}")
        return found.group(0)

    def run(self):
        self.cluster.start()
        recordings = pathlib.Path(self.directory) / "recordings"
        self.cluster.client(
            "device", "--id", "front-door", "--test-pattern", "640x360@25", "--setting", "volume=3", "--setting",
            f"label={json.dumps(NASTY)}", "--action", 'unlock={"open":true}', "--action", f"{NASTY.replace('=', '')}={{}}", "--recordings",
            str(recordings))
        self.cluster.client("device", "--id", "garden", "--test-pattern", "320x180@10", "--node", "3")
        browser = self.browser()
        try:
            self.sign_in_page(browser)
            self.home(browser)
            self.camera(browser)
            self.pages(browser)
            self.names(browser)
            self.other_page(browser)
            self.kill(browser)
            self.sign_out(browser)
            self.operator(browser)
            if self.options.devices:
                self.many(browser)
            browser.collect()
            expect(not browser.errors, f"errors in the console: {browser.errors}")
            expect(browser.hosts <= {"127.0.0.1", "localhost"}, f"requests to other hosts: {browser.hosts}")
            expect(not browser.findings, "axe: " + "\n".join(browser.findings))
        except Exception:
            with contextlib.suppress(Exception):
                browser.driver.save_screenshot(str(self.shots / "failed.png"))
                browser.collect()
                say(f"console: {browser.errors}\naxe: {browser.findings}")
            raise
        finally:
            browser.close()

    # ---- scenes

    def sign_in_page(self, browser):
        base = self.link("app").split("#")[0]
        browser.driver.get(base)
        browser.wait("the sign-in page", lambda: "Sign in" in browser.text())
        browser.look("sign-in", ("light", "dark"))
        # A field for a secret has no role (HTML AAM).
        browser.driver.find_element(By.ID, "token").send_keys("x.y.z", Keys.ENTER)
        browser.wait("the refusal of a wrong token", lambda: "not valid" in browser.text())
        say("sign-in: a wrong token is refused")

    def home(self, browser):
        link = self.link("app")
        start = time.monotonic()
        browser.driver.get("about:blank")
        browser.driver.get(link)
        browser.wait("the picture", lambda: (browser.player() or {}).get("drawn", 0) > 0)
        self.numbers["link to picture, s"] = round(time.monotonic() - start, 2)
        expect("code=" not in browser.driver.current_url, "the code stays in the address")
        first = browser.player()["sum"]
        browser.wait("a moving picture", lambda: browser.player()["sum"] != first, 3)
        browser.wait("two cameras", lambda: len(browser.driver.find_elements(By.CSS_SELECTOR, ".tile apus-player")) == 2)
        self.numbers["first picture, ms"] = browser.player()["firstPictureMs"]
        browser.look("cameras", ("light", "dark"))
        browser.driver.get(link)
        say("home: the link opens moving pictures, and its code is used up")

    def camera(self, browser):
        browser.press("link", "front-door")
        browser.by_role("heading", "front-door")
        browser.wait("the picture of a camera", lambda: browser.player()["state"] == "live")
        browser.wait("a line", lambda: re.match(r"(WebCodecs|MSE[^·]*) · 640 × 360 · \d+ fps · delay \d+ ms · ", browser.player()["line"]), 6)
        self.numbers["line"] = browser.player()["line"]
        field = browser.by_role("spinbutton", "volume")
        field.clear()
        field.send_keys("7", Keys.ENTER)
        browser.wait("a change of the setting", lambda: "7" in self.cluster.run("property", "get", "front-door", "ProWritable.volume.setVal"))
        browser.by_role("textbox", "Name of an action").send_keys("unlock", Keys.ENTER)
        browser.press("button", "Run: unlock")
        browser.wait("the answer of the action", lambda: '"open":true' in browser.text())
        self.cluster.run("property", "add", "front-door", "room", '{"name":"hall"}', may_fail=True)
        self.cluster.run("property", "set", "front-door", "ProUser._buildIn.val.nickName", json.dumps(NASTY))
        browser.press("button", "Show the last 24 hours")
        play = browser.wait("recordings", lambda: [
            button for button in browser.driver.find_elements(By.CSS_SELECTOR, ".list button")
            if button.accessible_name.startswith("Play from")])
        browser.look("camera", ("light", "dark"))
        play[-1].click()
        browser.wait("a recording", lambda: "Recording:" in browser.text(), 15)
        drawn = browser.player()["drawn"]
        browser.wait("the pictures of a recording", lambda: browser.player()["state"] == "live" and browser.player()["drawn"] > drawn + 10, 15)
        browser.look("recording")
        browser.press("button", "Back to live")
        browser.wait("the live picture", lambda: browser.player()["state"] == "live", 10)
        say("camera: picture, setting, action and recording work")

    def pages(self, browser):
        for name in ["Events", "Calls", "Messages", "Account"]:
            browser.press("link", f"{name}.*", "nav")
            browser.by_role("heading", name)
            time.sleep(0.5)
            browser.look(name.lower(), ("light", "dark"))
        browser.driver.find_element(By.ID, "language").send_keys("简")
        browser.wait("Chinese", lambda: "账户" in browser.text())
        browser.look("account-zh")
        browser.js("location.hash = '#/cameras'")
        browser.wait("the cameras in Chinese", lambda: "摄像机" in browser.text())
        time.sleep(2)
        expect(NASTY in browser.text(), "a name with markup is not shown as text")
        expect(not browser.driver.find_elements(By.CSS_SELECTOR, "img[src='x']"), "a name became an element")
        browser.look("cameras-zh")
        browser.js("location.hash = '#/account'")
        browser.wait("the account", lambda: browser.driver.find_elements(By.ID, "language"))
        browser.driver.find_element(By.ID, "language").send_keys("E")
        browser.wait("English", lambda: "Account" in browser.text())
        self.keyboard(browser)
        say("pages: all are reached by role and name, in both languages, and by the keyboard")

    def names(self, browser):
        """What a tenant may choose is shown as text on every page: also names and contents of events."""
        self.cluster.run("events", "report", "bell", NASTY.replace("=", ""), json.dumps({"text": NASTY}), may_fail=True)
        self.cluster.run("events", "report", "bell", "motion", json.dumps({NASTY: NASTY}))
        browser.js("window.alert = () => { window.wasRun = true; }")
        for place in ["events", "cameras", "camera/front-door"]:
            browser.js("location.hash = arguments[0]", f"#/{place}")
            browser.wait(f"markup as text on {place}", lambda: NASTY in browser.js(
                "return document.body.innerText + [...document.querySelectorAll('input, textarea')].map(field => field.value).join()"), 15)
            time.sleep(0.5)
            expect(not browser.js("return window.wasRun || document.querySelector(\"img[src='x']\") !== null"),
                   f"markup of a tenant became an element on {place}")
        say("names: what a tenant chooses is shown as text")

    def other_page(self, browser):
        """A page of another origin embeds the player's module, and nothing else of the console."""
        target = self.cluster.targets[0]
        players = "".join(
            f'<apus-player device="front-door" node="ws://{target}/v1/ws" token="{self.cluster.token("app", "--access", f"other-{mode}")}" '
            f'mode="{mode}" style="width: 320px" controls></apus-player>' for mode in ["auto", "stills"])
        page = f'<!doctype html><html lang="en"><title>other</title><script type="module" src="http://{target}/apus.js"></script>{players}'

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/" else 404)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode() if self.path == "/" else b"")

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        back = browser.driver.current_url
        browser.collect()
        try:
            browser.driver.get(f"http://127.0.0.1:{server.server_port}/")
            browser.wait("pictures in a page of another origin", lambda: browser.js(
                "const all = [...document.querySelectorAll('apus-player')]; return all.length === 2 && all.every(one => one.stats.drawn > 0)"), 15)
            ways = browser.js("return [...document.querySelectorAll('apus-player')].map(one => [one.way, one.line.textContent])")
            expect(ways[0][0] in ("webcodecs", "mse") and ways[1][0] == "stills", f"the players use {ways}")
            browser.wait("the line of stills", lambda: browser.js(
                "return document.querySelectorAll('apus-player')[1].line.textContent").startswith("Stills"), 5)
            drawn = browser.js("return document.querySelectorAll('apus-player')[1].stats.drawn")
            browser.wait("the next still", lambda: browser.js("return document.querySelectorAll('apus-player')[1].stats.drawn") > drawn, 10)
            refused = browser.driver.execute_async_script(
                "const done = arguments[1]; fetch(arguments[0]).then(() => done(false), () => done(true));", f"http://{target}/console/app.js")
            expect(refused, "a page of another origin reads the console's own files")
        finally:
            server.shutdown()
        with contextlib.suppress(Exception):
            browser.driver.get_log("browser")  # The refusal, as Chromium writes it.
        browser.driver.get(back)
        browser.wait("the console again", lambda: "Cameras" in browser.text())
        say(f"another origin: the module plays there, as {ways[0][0]} and as stills; nothing else of the console is readable")

    def keyboard(self, browser):
        """Opens a camera with Tab and Enter alone."""
        browser.js("location.hash = '#/cameras'")
        browser.wait("tiles", lambda: browser.driver.find_elements(By.CSS_SELECTOR, ".tile a"))
        body = browser.driver.find_element(By.TAG_NAME, "body")
        for _ in range(40):
            body = browser.driver.switch_to.active_element
            if "/camera/garden" in (body.get_attribute("href") or ""):
                break
            body.send_keys(Keys.TAB)
        outline = browser.js("return getComputedStyle(document.activeElement, '::after').outlineStyle")
        expect(outline == "solid", "the focus is not visible")
        browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        browser.wait("the camera by keyboard", lambda: browser.by_role("heading", "garden"))

    def kill(self, browser):
        browser.js("location.hash = '#/camera/front-door'")
        browser.wait("the picture", lambda: browser.player()["state"] == "live" and browser.player()["fps"] > 20, 10)
        before = browser.player()
        browser.js(WATCH_GAPS)
        time.sleep(1)
        node = before["node"]
        number = re.sub(r"\D", "", node)
        self.cluster.run("cluster", "kill", number)
        time.sleep(3)
        after = browser.player()
        gap = browser.js("return window.longest")
        self.numbers["kill of the serving node: longest gap, ms"] = round(gap)
        self.numbers["kill: frames missing, sent again"] = (after["missing"], after["repeated"])
        expect(after["node"] != node, f"the stream is still at {node}")
        expect(after["missing"] == 0, f"{after['missing']} frames are missing")
        expect(after["drawn"] > before["drawn"] + 50, "the picture stands still")
        expect(gap < 1000, f"the picture stood still for {gap:.0f} ms")
        first = after["sum"]
        browser.wait("a moving picture after the kill", lambda: browser.player()["sum"] != first, 3)
        self.cluster.run("cluster", "restart", number)
        say(f"kill -9 of {node}: the picture continued at {after['node']}, longest gap {gap:.0f} ms, no frame missing")

    def sign_out(self, browser):
        browser.collect()
        node = next(target for target in self.cluster.targets if self.answers(target))
        other = self.browser()
        try:
            other.driver.get(self.link("app"))
            other.wait("cameras", lambda: "Cameras" in other.text())
            other.js("location.hash = '#/account'")
            other.press("button", "Sign out")
            other.press("button", "Sign out", "dialog")
            other.wait("the sign-in page", lambda: "paste a token" in other.text())
            other.driver.refresh()
            other.wait("the sign-in page after a reload", lambda: "paste a token" in other.text())
        finally:
            other.close()
        say(f"sign-out: the cookie is of no use any more ({node})")

    @staticmethod
    def answers(target):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{target}/healthz", timeout=2).status == 200
        return False

    def operator(self, browser):
        browser.driver.delete_all_cookies()
        browser.driver.get("about:blank")
        browser.driver.get(self.link("admin"))
        browser.wait("an operator's page", lambda: "Cluster" in browser.text())
        for name, words in {"Nodes": "Conditions", "Shards": "Owners of the shards", "Channels": "front-door/0", "Sessions": "garden"}.items():
            browser.press("link", f"{name}.*", "nav")
            browser.by_role("heading", name)
            browser.wait(f"the content of {name}", lambda: words in browser.text(), 15)
            time.sleep(0.5)
            browser.look(name.lower(), ("light", "dark"))
        browser.press("link", "Nodes", "nav")
        browser.press("button", "Cordon: .*3")
        browser.wait("the question", lambda: "It keeps what it has" in browser.text())
        browser.axe("dialog")
        browser.press("button", "Cordon", "dialog")
        browser.wait("the cordon", lambda: "Cordoned" in browser.text(), 10)
        browser.press("link", "Shards.*", "nav")
        field = browser.by_role("textbox", "Number of a shard, or a device")
        field.send_keys("front-door", Keys.ENTER)
        browser.wait("why a device is where it is", lambda: "Term" in browser.text() and "Standby" in browser.text())
        say("operator: nodes, shards, channels and sessions are shown; a cordon is carried out")

    def many(self, browser):
        token = self.cluster.token("admin")
        target = next(target for target in self.cluster.targets if self.answers(target))
        for number in range(self.options.devices):
            request = urllib.request.Request(
                f"http://{target}/v1/devices/cam-{number:04d}/binding", method="POST", data=b'{"account":"local"}',
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
            for _ in range(50):
                try:
                    urllib.request.urlopen(request, timeout=10).read()
                    break
                except urllib.error.HTTPError as error:
                    if error.code != 429:
                        raise
                    time.sleep(0.2)
        browser.js("location.hash = '#/account'")
        time.sleep(1)
        took = browser.driver.execute_async_script(
            """
            const [count, done] = arguments;
            const start = performance.now();
            let first = 0;
            const look = () => {
                const tiles = document.querySelectorAll('.tile').length;
                if (tiles >= Math.min(count, 100)) first ||= performance.now() - start;
                requestAnimationFrame(tiles >= count ? () => done([first, performance.now() - start]) : look);
            };
            location.hash = '#/cameras';
            look();
            """, self.options.devices)
        self.numbers[f"{self.options.devices} devices: the first 100, and all, ms"] = [round(value) for value in took]
        say(f"{self.options.devices} devices: the first 100 after {took[0]:.0f} ms, all after {took[1]:.0f} ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=7600)
    parser.add_argument("--browser", choices=["chromium", "firefox"], default="chromium")
    parser.add_argument("--shots", default="state/console")
    parser.add_argument("--devices", type=int, default=1000)
    trial = Trial(parser.parse_args())
    try:
        trial.run()
    except Failure as failure:
        say(f"FAILED: {failure}")
        raise SystemExit(1) from None
    finally:
        trial.cluster.stop()
        for name, value in trial.numbers.items():
            say(f"{name}: {value}")
    say(f"The console works. Screenshots are in {trial.shots}.")


if __name__ == "__main__":
    main()
