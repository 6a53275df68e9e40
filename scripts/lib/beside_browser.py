"""Other servers of live pictures to a browser, for scripts/bench browser: nginx-rtmp with HLS, and Janus.

Their camera writes the time into the picture, from which the page reads the delay.
"""

import contextlib
import http.server
import pathlib
import socket
import subprocess
import threading
import time

WIDTH, HEIGHT, RATE = 640, 360, 25
# The time is 32 bits of milliseconds, in 8 by 4 blocks that are black or white.
COLUMNS, ROWS = 8, 4


class Unavailable(Exception):
    """A server that cannot be measured here, and why."""


PAGE = """
const [width, height, columns, rows] = arguments;
const canvas = document.createElement('canvas');
[canvas.width, canvas.height] = [columns * 8, rows * 8];
const pen = canvas.getContext('2d', { willReadFrequently: true });
const delayOf = video => {
    pen.drawImage(video, 0, 0, canvas.width, canvas.height);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    let stamp = 0;
    for (let bit = 0; bit < columns * rows; bit++) {
        const [x, y] = [bit % columns * 8 + 4, Math.floor(bit / columns) * 8 + 4];
        stamp = stamp * 2 + (data[(y * canvas.width + x) * 4] > 127 ? 1 : 0);
    }
    return (Date.now() % 2 ** 32 - stamp + 2 ** 32) % 2 ** 32;
};
window.measure = async (begin, seconds) => {
    const video = document.createElement('video');
    Object.assign(video, { muted: true, autoplay: true, playsInline: true });
    video.style.width = width + 'px';
    document.body.replaceChildren(video);
    const start = performance.now();
    const delays = [];
    let first = 0;
    const drawn = () => {
        first ||= performance.now() - start;
        const delay = delayOf(video);
        // A picture whose blocks cannot be read.
        if (delay < 60000) delays.push(delay);
        video.requestVideoFrameCallback(drawn);
    };
    video.requestVideoFrameCallback(drawn);
    const end = await begin(video);
    video.play().catch(() => {});
    while (!first) {
        if (performance.now() - start > 30000) throw new Error('no picture: ' + (video.error?.message ?? video.readyState));
        await new Promise(done => setTimeout(done, 5));
    }
    const settled = performance.now() + 3000;
    while (performance.now() < settled) await new Promise(done => setTimeout(done, 20));
    delays.length = 0;
    await new Promise(done => setTimeout(done, seconds * 1000));
    await end?.();
    return [first, delays];
};
"""

HLS = """
const [address, seconds, done] = arguments;
measure(async video => { video.src = address; }, seconds).then(value => done(value), error => done(error.message));
"""

JANUS = """
const [address, seconds, done] = arguments;
const ask = async (path, body) => {
    const answer = await (await fetch(address + path, { method: 'POST', body: JSON.stringify({ ...body, transaction: String(Math.random()) }) })).json();
    if (answer.janus === 'error') throw new Error(answer.error.reason);
    return answer;
};
measure(async video => {
    const session = (await ask('', { janus: 'create' })).data.id;
    const handle = (await ask('/' + session, { janus: 'attach', plugin: 'janus.plugin.streaming' })).data.id;
    const path = `/${session}/${handle}`;
    const events = async () => { for (;;) {
        const event = await (await fetch(`${address}/${session}?maxev=1`)).json();
        if (event.jsep) return event.jsep;
        if (event.plugindata?.data?.error) throw new Error(event.plugindata.data.error);
    } };
    const offered = events();
    await ask(path, { janus: 'message', body: { request: 'watch', id: 1 } });
    const connection = new RTCPeerConnection();
    connection.ontrack = ({ streams, track }) => { video.srcObject = streams[0] ?? new MediaStream([track]); };
    await connection.setRemoteDescription(await offered);
    await connection.setLocalDescription(await connection.createAnswer());
    connection.onicecandidate = ({ candidate }) => ask(path, { janus: 'trickle', candidate: candidate ?? { completed: true } }).catch(() => {});
    await ask(path, { janus: 'message', body: { request: 'start' }, jsep: { type: 'answer', sdp: connection.localDescription.sdp } });
    return async () => { connection.close(); await ask('/' + session, { janus: 'destroy' }); };
}, seconds).then(value => done(value), error => done(error.message));
"""


class Camera:
    """Pictures with the time in them, encoded by ffmpeg as a camera's without delay, with a key frame every 2 s."""

    def __init__(self, output, log, inputs=()):
        self.process = subprocess.Popen(
            ["ffmpeg", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(RATE), "-i", "-",
             *inputs, "-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-profile:v", "baseline", "-b:v", "1M", "-g", str(2 * RATE),
             "-sc_threshold", "0", *output], stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.is_over = False
        self.thread = threading.Thread(target=self.send, daemon=True)
        self.thread.start()

    def send(self):
        blank = bytes([128]) * (WIDTH * HEIGHT // 2)
        block, height = WIDTH // COLUMNS, HEIGHT // ROWS
        colours = bytes([16]) * block, bytes([235]) * block
        start, number = time.monotonic(), 0
        with contextlib.suppress(OSError, ValueError):
            while not self.is_over:
                time.sleep(max(0, start + number / RATE - time.monotonic()))
                number += 1
                bits = f"{int(time.time() * 1000) % 2**32:032b}"
                luma = b"".join(
                    b"".join(colours[int(bit)] for bit in bits[row * COLUMNS:(row + 1) * COLUMNS]) * height for row in range(ROWS))
                self.process.stdin.write(luma + blank)
                self.process.stdin.flush()

    def stop(self):
        self.is_over = True
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def serve(folder, port, stack):
    """An empty page without a policy, and the files of a folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), lambda *all: Files(*all, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)


def start(command, log, stack):
    process = subprocess.Popen(command, stdout=log, stderr=log)

    def end():
        process.terminate()
        process.wait()

    stack.callback(end)
    return process


def await_port(port, process, name):
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise Unavailable(f"{name} ended with {process.returncode}")
        time.sleep(0.1)
    raise Unavailable(f"{name} does not listen")


def measure(driver, page, script, address, options):
    driver.get(page)
    driver.execute_script(PAGE, WIDTH, HEIGHT, COLUMNS, ROWS)
    starts, delays = [], []
    for turn in range(max(3, options.starts // 3)):
        # The delay is that of the first.
        answer = driver.execute_async_script(script, address, options.seconds if turn == 0 else 0)
        if isinstance(answer, str):
            raise Unavailable(answer)
        starts.append(answer[0])
        delays += answer[1]
        time.sleep(0.37)
    return starts, delays


def nginx_rtmp(driver, directory, options, stack):
    folder, port = directory / "nginx", options.base_port + 100
    (folder / "hls").mkdir(parents=True)
    folder.chmod(0o755)
    directory.chmod(0o755)
    (folder / "hls" / "empty.html").write_text("<!doctype html><title>empty</title>")
    (folder / "nginx.conf").write_text(f"""
load_module /usr/lib/nginx/modules/ngx_rtmp_module.so;
daemon off;
user root;
worker_processes 1;
pid {folder}/pid;
events {{ worker_connections 256; }}
rtmp {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        application live {{ live on; hls on; hls_path {folder}/hls; hls_fragment 1s; hls_playlist_length 6s; }}
    }}
}}
http {{
    access_log off;
    types {{ application/vnd.apple.mpegurl m3u8; video/mp2t ts; text/html html; }}
    server {{ listen 127.0.0.1:{port + 1}; root {folder}/hls; add_header Cache-Control no-cache; }}
}}
""")
    log = stack.enter_context(open(folder / "log", "w"))
    server = start(["nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")], log, stack)
    await_port(port, server, "nginx")
    # The module's segments announce sound, for which Chromium waits.
    silence = ["-f", "lavfi", "-i", "anullsrc=r=44100:cl=mono"]
    camera = Camera(["-c:a", "aac", "-f", "flv", f"rtmp://127.0.0.1:{port}/live/cam"], log, silence)
    stack.callback(camera.stop)
    playlist = folder / "hls" / "cam.m3u8"
    for _ in range(200):
        if playlist.exists() and playlist.read_text().count(".ts") >= 3:
            break
        time.sleep(0.1)
    else:
        raise Unavailable("nginx-rtmp writes no playlist")
    page = f"http://127.0.0.1:{port + 1}/empty.html"
    driver.get(page)
    if not driver.execute_script("return document.createElement('video').canPlayType('application/vnd.apple.mpegurl')"):
        raise Unavailable("this Chromium does not play HLS")
    return measure(driver, page, HLS, f"http://127.0.0.1:{port + 1}/cam.m3u8", options)


def janus(driver, directory, options, stack):
    folder, port = directory / "janus", options.base_port + 110
    folder.mkdir()
    libraries = next(pathlib.Path("/usr/lib").glob("*/janus"), None)
    if libraries is None:
        raise Unavailable("Debian's janus is not installed")
    media = port + 2

    def others(kind, wanted):
        return ",".join(path.name for path in sorted((libraries / kind).glob("*.so")) if path.name != f"libjanus_{wanted}.so")

    (folder / "janus.jcfg").write_text(f"""
general: {{ configs_folder = "{folder}" plugins_folder = "{libraries}/plugins" transports_folder = "{libraries}/transports"
    events_folder = "{folder}" loggers_folder = "{folder}" debug_level = 3 session_timeout = 60 }}
nat: {{ ice_enforce_list = "lo,eth0" ice_ignore_list = "vmnet" }}
media: {{ rtp_port_range = "20000-20100" }}
plugins: {{ disable = "{others('plugins', 'streaming')}" }}
transports: {{ disable = "{others('transports', 'http')}" }}
""")
    (folder / "janus.transport.http.jcfg").write_text(
        f'general: {{ base_path = "/janus" http = true port = {port} ip = "127.0.0.1" https = false }}\nadmin: {{ admin_http = false }}\n')
    (folder / "janus.plugin.streaming.jcfg").write_text(f"""
cam: {{ type = "rtp" id = 1 description = "cam" audio = false video = true videoport = {media} videopt = 96 videocodec = "h264"
    videofmtp = "profile-level-id=42e01f;packetization-mode=1" videobufferkf = true }}
""")
    log = stack.enter_context(open(folder / "log", "w"))
    server = start(["janus", "-F", str(folder)], log, stack)
    await_port(port, server, "janus")
    camera = Camera(["-payload_type", "96", "-f", "rtp", f"rtp://127.0.0.1:{media}?pkt_size=1200"], log)
    stack.callback(camera.stop)
    time.sleep(3)
    pages = folder / "pages"
    pages.mkdir()
    (pages / "empty.html").write_text("<!doctype html><title>empty</title>")
    serve(pages, port + 1, stack)
    return measure(driver, f"http://127.0.0.1:{port + 1}/empty.html", JANUS, f"http://127.0.0.1:{port}/janus", options)


SERVERS = {"nginx-rtmp with HLS": nginx_rtmp, "Janus": janus}
