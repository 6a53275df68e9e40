"""Pictures in headless Chromium, for scripts/bench browser."""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import beside_browser
from local_cluster import Cluster, say

# The bars, in milliseconds. Of a start and of the delay it is the p95, of gaps the p99.
BARS = {"webcodecs": {"start": 100, "delay": 50}, "mse": {"start": 300, "delay": 150}, "kill": 120, "stop": 300}
TILES = 16

# What the benchmark does in the page. A player is made as a page of anybody would make it; what it has drawn and received
# is noted at its renderer and its stream.
PAGE = """
const [node, token] = arguments;
window.sockets = 0;
const Socket = window.WebSocket;
window.WebSocket = class extends Socket { constructor(...all) { super(...all); window.sockets += 1; } };
document.body.replaceChildren();
const later = (test, ms) => new Promise((done, fail) => {
    const end = performance.now() + ms;
    const look = () => {
        const value = test();
        if (value) done(value);
        else if (performance.now() > end) fail(new Error('too late'));
        else setTimeout(look, 5);
    };
    look();
});
const painted = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
window.bench = {
    make(device, mode, width = 640) {
        const player = document.createElement('apus-player');
        Object.entries({ device, mode, node, token, controls: '' }).forEach(([name, value]) => player.setAttribute(name, value));
        player.style.width = width + 'px';
        document.body.append(player);
        return player;
    },
    // From the element to the first picture on the screen, in milliseconds.
    async start(device, mode) {
        await painted();
        const start = performance.now();
        const player = this.make(device, mode);
        await new Promise((done, fail) => { player.addEventListener('apus-first-picture', done); setTimeout(() => fail(new Error('no picture')), 15000); });
        await new Promise(requestAnimationFrame);
        const took = performance.now() - start;
        const { way } = player;
        player.remove();
        await painted();
        return { took, way };
    },
    async watch(device, mode) {
        this.player?.remove();
        const player = this.player = this.make(device, mode);
        await later(() => player.renderer && player.state === 'live', 15000);
        const note = this.note = { longest: 0, last: 0, delays: [], drawn: 0, doubled: 0, lost: 0, at: null, gaps: [] };
        const { handlers } = player.renderer;
        const { onDrawn, onDelay } = handlers;
        handlers.onDrawn = () => {
            const now = performance.now();
            if (note.last) note.longest = Math.max(note.longest, now - note.last);
            note.last = now;
            note.drawn += 1;
            onDrawn();
        };
        handlers.onDelay = delay => { if (delay !== null && note.delays.length < 5000) note.delays.push(delay); onDelay(delay); };
        const received = player.stream.handlers.onFrame;
        player.stream.handlers.onFrame = frame => {
            const { epoch, sequence } = frame;
            if (note.at && note.at.epoch === epoch) {
                if (sequence <= note.at.sequence) note.doubled += 1;
                else note.lost += Number(sequence - note.at.sequence) - 1;
            }
            note.at = { epoch, sequence };
            received(frame);
        };
    },
    clear() { Object.assign(this.note, { longest: 0, delays: [], drawn: 0, doubled: 0, lost: 0 }); },
    // At a moment, of the player that is watched.
    state() {
        const { player, note } = this;
        const silent = note.last ? performance.now() - note.last : 0;
        return { ...player.stats, ...note, at: null, longest: Math.max(note.longest, silent), silenceMs: player.session.link.silenceMs };
    },
    async tiles(count) {
        this.player?.remove();
        await painted();
        window.sockets = 0;
        const start = performance.now();
        const players = Array.from({ length: count }, (_, index) => this.make('tile-' + index, 'auto', 320));
        document.body.style.cssText = 'display: grid; grid-template-columns: repeat(4, 320px); margin: 0';
        const firsts = await Promise.all(players.map(player => new Promise(done =>
            player.addEventListener('apus-first-picture', () => done(performance.now() - start)))));
        this.players = players;
        return firsts;
    },
    tileStates() { return this.players.map(player => player.stats); },
};
"""


def percentile(samples, share):
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(samples):
    return {"n": len(samples), **{f"p{int(share * 100)}": rounded(percentile(samples, share)) for share in (0.5, 0.95, 0.99)}}


def rounded(value):
    return None if value is None else round(value, 1)


def chromium():
    options = webdriver.ChromeOptions()
    for argument in [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,900", "--disable-background-networking",
        "--autoplay-policy=no-user-gesture-required", "--allow-loopback-in-peer-connection",
        "--disable-features=WebRtcHideLocalIpsWithMdns",
    ]:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_script_timeout(60)
    return driver


class Bench:
    def __init__(self, options):
        self.options = options
        self.directory = tempfile.mkdtemp(prefix="apus-browser-")
        self.cluster = Cluster(options.apus, f"{self.directory}/cluster", options.base_port)
        self.result = {}
        self.missed = []

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait_js(self, call, *arguments):
        """The result of an asynchronous call of the page."""
        answer = self.driver.execute_async_script(
            f"const done = arguments[arguments.length - 1]; Promise.resolve({call}).then(value => done([value]), error => done(error.message));",
            *arguments)
        if isinstance(answer, str):
            raise RuntimeError(f"{call}: {answer}")
        return answer[0]

    def bar(self, what, value, limit):
        if value is None or value > limit:
            self.missed.append(f"{what}: {value} (at most {limit})")

    def run(self):
        self.clips()
        self.cluster.start()
        for seconds, clip in self.files.items():
            self.cluster.client("device", "--id", f"gop-{seconds}", "--file", str(clip), "--node", "2")
        self.cluster.client("device", "--id", "live", "--test-pattern", "640x360@25")
        self.driver = chromium()
        try:
            self.open()
            self.starts()
            self.delays()
            self.faults("kill", signal.SIGKILL)
            self.faults("stop", signal.SIGSTOP)
            self.tiles()
        finally:
            self.driver.quit()

    def clips(self):
        """A minute of pictures, with a key frame every 2 s and every 10 s."""
        self.files = {}
        for seconds in (2, 10):
            path = pathlib.Path(self.directory) / f"gop-{seconds}.mp4"
            subprocess.run(
                ["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25:duration=60", "-c:v", "libx264",
                 "-preset", "veryfast", "-tune", "zerolatency", "-profile:v", "baseline", "-pix_fmt", "yuv420p", "-b:v", "1M", "-g", str(25 * seconds),
                 "-keyint_min", str(25 * seconds), "-sc_threshold", "0", str(path)], check=True)
            self.files[seconds] = path

    def open(self):
        self.driver.get(f"http://{self.cluster.targets[0]}/")
        time.sleep(1)
        self.js(PAGE, f"ws://{self.cluster.targets[0]}/v1/ws", self.cluster.token("app"))
        # The session connects with the first player.
        self.wait_js("bench.start('live', 'webcodecs')")

    def starts(self):
        found = self.result["start_ms"] = {}
        for mode in ("webcodecs", "mse"):
            for seconds in self.files:
                samples = []
                for _ in range(self.options.starts):
                    answer = self.wait_js(f"bench.start('gop-{seconds}', '{mode}')")
                    if answer["way"] != mode:
                        raise RuntimeError(f"the player uses {answer['way']} in place of {mode}")
                    samples.append(answer["took"])
                    # Anywhere between two key frames.
                    time.sleep(0.13)
                name = f"{mode}, key frame every {seconds} s"
                found[name] = summary(samples)
                self.bar(f"play to the first picture, {name}, p95", found[name]["p95"], BARS[mode]["start"])
                say(f"play to the first picture, {name}: {found[name]}")

    def delays(self):
        found = self.result["delay_ms"] = {}
        for mode in ("webcodecs", "mse"):
            self.wait_js(f"bench.watch('live', '{mode}')")
            time.sleep(6)
            self.js("bench.clear()")
            time.sleep(self.options.seconds)
            found[mode] = summary(self.js("return bench.state()")["delays"])
            self.bar(f"capture to drawing, {mode}, p95", found[mode]["p95"], BARS[mode]["delay"])
            say(f"capture to drawing, {mode}: {found[mode]}")

    # ---- faults

    def settle(self, seconds=60):
        """Waits until the cluster is whole and the picture moves."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if len(self.members()) == 3:
                before = self.js("return bench.state()")
                time.sleep(1)
                after = self.js("return bench.state()")
                if after["drawn"] - before["drawn"] > 20:
                    return after
            time.sleep(0.3)
        raise RuntimeError(f"the cluster is not whole: {self.members()}; {self.js('return bench.state()')}")

    def members(self):
        """The nodes of which every node says that they are members."""
        common = {"n1", "n2", "n3"}
        for target in self.cluster.targets:
            try:
                with urllib.request.urlopen(f"http://{target}/v1/status", timeout=2) as answer:
                    status = json.load(answer)
            except OSError:
                return set()
            if status["state"] not in ("serving", "up", "running"):
                return set()
            common &= set(status["members"])
        return common

    def faults(self, name, number):
        self.wait_js("bench.watch('live', 'webcodecs')")
        gaps, lost, doubled, silences = [], 0, 0, []
        for turn in range(self.options.kills):
            state = self.settle()
            node = state["node"]
            pid = int((pathlib.Path(self.cluster.directory) / node / "pid").read_text())
            self.js("bench.clear()")
            time.sleep(0.2)
            before = self.js("return bench.state()")
            os.kill(pid, number)
            time.sleep(2.5)
            after = self.js("return bench.state()")
            gaps.append(after["longest"])
            silences.append(before["silenceMs"])
            lost += after["missing"] - before["missing"] + after["skipped"] - before["skipped"] + after["lost"]
            doubled += after["doubled"]
            if self.options.verbose:
                say(f"{name} {turn}: {node} → {after['node']}, gap {after['longest']:.0f} ms, allowed silence {before['silenceMs']:.0f} ms, "
                    f"missing {after['missing']}, lost {after['lost']}, dropped {after['dropped'] - before['dropped']}")
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
            else:
                self.cluster.run("cluster", "restart", node.removeprefix("n"))
        found = self.result[name] = {**summary(gaps), "max": rounded(max(gaps)), "lost": lost, "doubled": doubled,
                                     "silence_ms": summary(silences)}
        self.bar(f"{name}: longest gap, p99", found["p99"], BARS[name])
        self.bar(f"{name}: frames lost or doubled", lost + doubled, 0)
        say(f"{name} of the node that sends, {len(gaps)} times: longest gap {found}")

    def tiles(self):
        cameras = [
            self.cluster.client("device", "--id", f"tile-{number}", "--test-pattern", "320x180@10", "--node", str(number % 3 + 1))
            for number in range(TILES)]
        time.sleep(5)
        firsts = self.wait_js(f"bench.tiles({TILES})")
        before = self.js("return bench.tileStates()")
        time.sleep(self.options.seconds)
        after = self.js("return bench.tileStates()")
        rates = [(b["drawn"] - a["drawn"]) / self.options.seconds for a, b in zip(before, after)]
        found = self.result["tiles"] = {
            "n": TILES, "sockets": self.js("return window.sockets"), "first_picture_ms": summary(firsts), "fps_min": rounded(min(rates)),
            "missing": sum(tile["missing"] + tile["skipped"] for tile in after)}
        # The session of the page is there already.
        self.bar("tiles: further WebSockets", found["sockets"], 0)
        self.bar("tiles: frames missing", found["missing"], 0)
        if found["fps_min"] < 9:
            self.missed.append(f"tiles: {found['fps_min']} fps (at least 9 of 10)")
        say(f"{TILES} tiles over one WebSocket: {found}")
        for camera in cameras:
            camera.terminate()

    # ---- the others

    def beside(self):
        found = self.result["beside"] = {}
        for name, measure in beside_browser.SERVERS.items():
            try:
                with contextlib.ExitStack() as stack:
                    driver = chromium()
                    stack.callback(driver.quit)
                    starts, delays = measure(driver, pathlib.Path(self.directory), self.options, stack)
                found[name] = {"start_ms": summary(starts), "delay_ms": summary(delays)}
            except beside_browser.Unavailable as reason:
                found[name] = {"unavailable": str(reason)}
            say(f"{name}: {found[name]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=7660)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    bench = Bench(parser.parse_args())
    try:
        bench.run()
    finally:
        bench.cluster.stop()
    if not bench.options.alone:
        bench.beside()
    for text in bench.missed:
        say(f"MISSED {text}")
    if bench.options.json:
        print(json.dumps({**bench.result, "missed": bench.missed}))
    raise SystemExit(1 if bench.missed else 0)


if __name__ == "__main__":
    main()
