// <apus-player device="garden">: shows a live stream, or the other side of a call.

import { codecNames } from "./frames.js";
import { ElementRenderer } from "./mse.js";
import { Session } from "./session.js";
import { SoundDecoder } from "./sound.js";
import { StillRenderer } from "./stills.js";
import { playerTexts, textOf } from "./texts.js";
import { CanvasRenderer } from "./webcodecs.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */
/** @typedef {"connecting" | "waiting" | "live" | "moving" | "paused" | "queued" | "ended" | "unsupported" | "offline" | "signed-out" | "replaced"} PlayerState */

const style = `
:host { display: block; position: relative; text-align: start; background: #101418; color: #fff; overflow: hidden; aspect-ratio: 16 / 9;
    border-radius: var(--apus-radius, 0); font: 14px/1.4 system-ui, sans-serif; contain: content; }
:host([hidden]) { display: none; }
:host(:fullscreen) { border-radius: 0; aspect-ratio: auto; }
.picture, .picture > * { position: absolute; inset: 0; width: 100%; height: 100%; }
.picture > * { object-fit: contain; }
.veil { position: absolute; inset: 0; display: flex; align-items: center; justify-content: center; text-align: center;
    padding: 12px; box-sizing: border-box; pointer-events: none; color: #e8ecf0; }
.veil span:not(:empty) { background: rgb(16 20 24 / .78); padding: 6px 12px; border-radius: 6px; max-width: 100%; overflow-wrap: anywhere; }
.foot { position: absolute; inset: auto 0 0; display: none; align-items: center; gap: 4px; padding: 24px 8px 6px;
    flex-wrap: wrap; background: linear-gradient(transparent, rgb(0 0 0 / .75)); }
:host([controls]) .foot { display: flex; }
.line { flex: 1 1 auto; margin: 0; min-width: 0; overflow-wrap: anywhere; font-size: 13px; font-variant-numeric: tabular-nums; text-shadow: 0 1px 2px #000; }
.bar { display: flex; gap: 2px; margin-left: auto; }
button { appearance: none; border: 0; background: rgb(0 0 0 / .45); color: #fff; width: 44px; height: 44px; border-radius: 8px;
    padding: 10px; cursor: pointer; }
button:hover { background: rgb(255 255 255 / .2); }
button:focus-visible { outline: 3px solid #7db7ff; outline-offset: -3px; }
button[hidden] { display: none; }
svg { display: block; width: 24px; height: 24px; fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
`;

/** Paths of icons, 24 by 24. */
const icons = {
    play: "M7 4v16l13-8z",
    pause: "M8 5v14M16 5v14",
    unmute: "M4 9v6h4l5 4V5L8 9zM17 9l5 6M22 9l-5 6",
    mute: "M4 9v6h4l5 4V5L8 9zM16.5 8.5a5 5 0 0 1 0 7M19 6a9 9 0 0 1 0 12",
    snapshot: "M4 8h3l2-3h6l2 3h3v11H4zM12 16.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7",
    pip: "M3 5h18v14H3zM12 12h7v5h-7z",
    fullscreen: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
    leaveFullscreen: "M9 4v5H4M20 9h-5V4M15 20v-5h5M4 15h5v5",
};

/**
 * Sessions that players of a page share, by their address and token.
 * @type {Map<string, Session>}
 */
const sessions = new Map();

/** How long a stream goes on that nobody sees. */
const hiddenMs = 2500;

export class ApusPlayer extends HTMLElement {
    static get observedAttributes() { return ["device", "source", "call", "mode", "label", "lang", "paused"]; }

    /** The most players of a page that play at once. Others wait until one leaves the view. */
    static limit = 16;
    /** @type {Set<ApusPlayer>} */
    static playing = new Set();
    /** @type {Set<ApusPlayer>} */
    static queue = new Set();

    constructor() {
        super();
        /**
         * Set before the element is connected, or found by `node` and `token`.
         * @type {Session | null}
         */
        this.session = null;
        /** @type {PlayerState} */
        this.state = "connecting";
        /** @type {import("./streams.js").PlayStream | null} */
        this.stream = null;
        /** @type {CanvasRenderer | ElementRenderer | StillRenderer | null} */
        this.renderer = null;
        this.isVisible = false;
        this.isPaused = false;
        this.isMuted = true;
        this.reason = "";
        this.endText = "";
        this.way = "";
        /** @type {Map<number, TrackConfiguration>} */
        this.tracks = new Map();
        /**
         * Frames that came while the way was chosen.
         * @type {import("./frames.js").MediaFrame[]}
         */
        this.early = [];
        this.isChoosing = false;
        this.size = { width: 0, height: 0 };
        /** @type {number | null} */
        this.delayMs = null;
        /**
         * When pictures were drawn, the newest last.
         * @type {number[]}
         */
        this.drawn = [];
        this.drawnCount = 0;
        /** @type {number | null} */
        this.firstPictureMs = null;
        this.startedAt = 0;
        this.soundCodec = "";
        /** @type {HTMLVideoElement | null} */
        this.pipElement = null;
        /** @type {Set<string>} */
        this.failedWays = new Set();
        const root = this.attachShadow({ mode: "open" });
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(style);
        root.adoptedStyleSheets = [sheet];
        this.picture = make("div", "picture");
        this.picture.setAttribute("role", "img");
        this.veil = make("div", "veil");
        this.message = document.createElement("span");
        this.veil.append(this.message);
        this.foot = make("div", "foot");
        this.line = make("p", "line");
        this.bar = make("div", "bar");
        this.bar.setAttribute("role", "group");
        this.said = make("p", "said");
        this.said.setAttribute("role", "status");
        this.buttons = {
            play: this.#button(() => (this.isPaused ? this.play() : this.pause())),
            mute: this.#button(() => this.setMuted(!this.isMuted)),
            snapshot: this.#button(() => this.saveSnapshot()),
            pip: this.#button(() => this.togglePictureInPicture()),
            fullscreen: this.#button(() => this.toggleFullScreen()),
        };
        this.bar.append(...Object.values(this.buttons));
        this.foot.append(this.line, this.bar);
        root.append(this.picture, this.veil, this.foot, this.said);
        this.observer = new IntersectionObserver(entries => {
            this.isVisible = entries[entries.length - 1].isIntersecting;
            this.#look();
        }, { rootMargin: "80px" });
        this.epochMin = 0;
        /** @type {number | null} */
        this.movingSince = null;
        /** @type {ReturnType<typeof setInterval> | undefined} */
        this.statsTimer = undefined;
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        this.hideTimer = undefined;
        this.onState = () => this.#sessionChanged();
        this.onVisibility = () => this.#look();
    }

    /** @param {() => void} action */
    #button(action) {
        const button = document.createElement("button");
        button.type = "button";
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        svg.setAttribute("viewBox", "0 0 24 24");
        svg.setAttribute("aria-hidden", "true");
        svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
        button.append(svg);
        button.addEventListener("click", action);
        return button;
    }

    connectedCallback() {
        this.isPaused = this.hasAttribute("paused");
        this.session ??= sharedSession(this.getAttribute("node") ?? "", this.getAttribute("token") ?? "");
        this.session.addEventListener("state", this.onState);
        document.addEventListener("visibilitychange", this.onVisibility);
        document.addEventListener("fullscreenchange", this.onVisibility);
        this.observer.observe(this);
        this.statsTimer = setInterval(() => this.#stats(), 1000);
        this.#sessionChanged();
        this.#render();
    }

    disconnectedCallback() {
        this.session?.removeEventListener("state", this.onState);
        document.removeEventListener("visibilitychange", this.onVisibility);
        document.removeEventListener("fullscreenchange", this.onVisibility);
        this.observer.disconnect();
        clearInterval(this.statsTimer);
        clearTimeout(this.hideTimer);
        this.isVisible = false;
        this.#stop();
    }

    /**
     * @param {string} name
     * @param {string | null} before
     * @param {string | null} after
     */
    attributeChangedCallback(name, before, after) {
        if (before === after || !this.isConnected) return;
        if (name === "label" || name === "lang") return this.#render();
        if (name === "paused") return after === null ? this.play() : this.pause();
        this.failedWays.clear();
        this.#stop();
        this.#look();
    }

    // ---- what a page may call

    /** Plays from now on. */
    play() {
        this.isPaused = false;
        if (this.state === "ended") this.#set("connecting");
        this.#look();
        this.#render();
    }

    /** Stops the stream; the last picture remains. */
    pause() {
        this.isPaused = true;
        this.#stop();
        this.#set("paused");
    }

    /**
     * Sound needs a press of the user, by the rules of browsers.
     * @param {boolean} isMuted
     */
    async setMuted(isMuted) {
        this.isMuted = isMuted;
        if (this.renderer && !(await this.renderer.setMuted(isMuted))) {
            this.isMuted = true;
            this.said.textContent = this.text("soundRefused");
        }
        this.#render();
        this.dispatchEvent(new CustomEvent("apus-muted", { detail: this.isMuted }));
    }

    /**
     * The picture on the screen, as PNG.
     * @returns {Promise<Blob | null>}
     */
    async snapshot() { return this.renderer?.snapshot() ?? null; }

    async saveSnapshot() {
        const blob = await this.snapshot();
        if (!blob) return;
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        const name = (this.getAttribute("device") ?? "picture").replace(/[^\w.-]+/g, "-");
        link.download = `${name}-${new Date().toISOString().slice(0, 19).replace(/:/g, "")}.png`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    }

    async toggleFullScreen() {
        if (document.fullscreenElement) await document.exitFullscreen();
        else await this.requestFullscreen?.().catch(() => {});
        this.#render();
    }

    async togglePictureInPicture() {
        if (document.pictureInPictureElement) return document.exitPictureInPicture();
        const { renderer } = this;
        if (!renderer) return;
        try {
            const element = await renderer.pictureElement();
            await element.requestPictureInPicture();
            this.pipElement = element;
            element.addEventListener("leavepictureinpicture", () => {
                this.pipElement = null;
                if (element !== renderer.element) element.srcObject = null;
                this.#look();
            }, { once: true });
        } catch (error) {
            this.said.textContent = /** @type {Error} */ (error).message;
        }
    }

    /** Numbers of the stream, also in the event `apus-stats` each second. */
    get stats() {
        const now = performance.now();
        const recent = this.drawn.filter(time => now - time <= 2000);
        return {
            state: this.state, way: this.way, reason: this.reason, width: this.size.width, height: this.size.height,
            fps: recent.length / 2, delayMs: this.delayMs, bufferMs: Math.round(this.renderer?.bufferMs ?? 0),
            firstPictureMs: this.firstPictureMs, drawn: this.drawnCount, frames: this.stream?.counts.frames ?? 0,
            skipped: this.stream?.counts.skipped ?? 0, missing: this.stream?.filter.missing ?? 0,
            repeated: this.stream?.filter.repeated ?? 0, dropped: this.renderer?.counts.dropped ?? 0,
            node: this.stream?.node ?? "",
        };
    }

    // ---- the stream

    get language() {
        return this.getAttribute("lang") ?? this.closest("[lang]")?.getAttribute("lang") ?? navigator.language ?? "en";
    }

    /**
     * @param {string} key
     * @param {Record<string, string | number>} [values]
     */
    text(key, values) { return textOf(playerTexts, key, this.language, values); }

    /** Starts or stops the stream by what is seen. */
    #look() {
        const isSeen = (this.isVisible && document.visibilityState === "visible") || this.pipElement !== null
            || !this.isMuted
            || document.fullscreenElement === this;
        this.#render();
        clearTimeout(this.hideTimer);
        if (!isSeen) {
            ApusPlayer.queue.delete(this);
            if (this.stream) this.hideTimer = setTimeout(() => this.#stop(), hiddenMs);
            return;
        }
        if (this.stream || this.isPaused || !this.isConnected || this.state === "ended"
            || this.state === "unsupported") return;
        if (ApusPlayer.playing.size >= ApusPlayer.limit) {
            ApusPlayer.queue.add(this);
            return this.#set("queued");
        }
        this.#start();
    }

    #start() {
        const call = this.getAttribute("call");
        const device = this.getAttribute("device");
        if (!this.session || (!call && !device)) return;
        ApusPlayer.queue.delete(this);
        ApusPlayer.playing.add(this);
        this.startedAt = performance.now();
        this.firstPictureMs = null;
        this.endText = "";
        this.#set(this.session.isOnline ? "connecting" : this.state === "offline" ? "offline" : "connecting");
        /** @type {import("./streams.js").PlayTarget} */
        const target = call ? { call }
            : { device: /** @type {string} */ (device), source: Number(this.getAttribute("source") ?? 0) };
        this.stream = this.session.play(target, {
            onConfiguration: (track, configuration) => this.#configure(track, configuration),
            onFrame: frame => this.#frame(frame),
            onGap: (isLoss) => this.renderer?.gap(isLoss),
            onState: state => {
                if (state === "waiting") this.#set("waiting");
                else if (state === "moving") this.movingSince = performance.now();
            },
            onGranted: () => this.dispatchEvent(new CustomEvent("apus-granted")),
            onEndOfRun: epoch => this.dispatchEvent(new CustomEvent("apus-run-ended", { detail: epoch })),
            onEnd: error => {
                this.endText = error.message || String(error.code);
                this.#stop();
                this.#set("ended");
                this.dispatchEvent(new CustomEvent("apus-ended", { detail: error }));
            },
        });
        this.stream.epochMin = this.epochMin;
    }

    /**
     * Frames of earlier runs are not shown: for recordings that are played from another time.
     * @param {number} epoch
     */
    skipRunsBefore(epoch) {
        this.epochMin = epoch;
        if (this.stream) this.stream.epochMin = epoch;
    }

    #stop() {
        this.stream?.stop();
        this.stream = null;
        this.#freeze();
        this.renderer?.close();
        this.renderer = null;
        this.tracks.clear();
        this.early = [];
        ApusPlayer.playing.delete(this);
        ApusPlayer.queue.delete(this);
        const [next] = ApusPlayer.queue;
        if (next) next.#look();
    }

    /** The last picture of a video element remains as a still. */
    #freeze() {
        const { renderer } = this;
        if (!(renderer instanceof ElementRenderer) || renderer.element.videoWidth === 0) return;
        const canvas = document.createElement("canvas");
        canvas.width = renderer.element.videoWidth;
        canvas.height = renderer.element.videoHeight;
        canvas.getContext("2d")?.drawImage(renderer.element, 0, 0);
        this.picture.replaceChildren(canvas);
    }

    /**
     * @param {number} track
     * @param {TrackConfiguration} configuration
     */
    #configure(track, configuration) {
        this.tracks.set(track, configuration);
        if (!configuration.isVideo) {
            SoundDecoder.supports(configuration).then(async isSupported => {
                const isPlayed = isSupported || await ElementRenderer.supports(configuration);
                this.soundCodec = isPlayed ? "" : codecNames[/** @type {1} */ (configuration.codec)];
                this.#render();
            });
        }
        if (this.renderer && !this.isChoosing) this.renderer.configure(track, configuration);
        else if (configuration.isVideo) this.#choose(configuration);
        else if (configuration.trackCount === 1) {
            this.#use(new CanvasRenderer(this.#handlers()), "webcodecs", "");
            this.#set("live");
        }
    }

    #handlers() {
        const { stream } = this;
        return {
            /**
             * @param {number} width
             * @param {number} height
             */
            onSize: (width, height) => {
                this.size = { width, height };
                this.dispatchEvent(new CustomEvent("apus-size", { detail: this.size }));
            },
            onDrawn: () => this.#wasDrawn(),
            /** @param {number | null} delay */
            onDelay: delay => { this.delayMs = delay === null ? null : this.delayMs === null ? delay
                : Math.round((this.delayMs * 7 + delay) / 8); },
            /** @param {string} message */
            onFailed: message => {
                if (this.stream !== stream || !this.renderer) return;
                this.failedWays.add(this.way);
                console.warn(`apus: ${this.way} failed: ${message}`);
                this.#stop();
                this.#look();
            },
        };
    }

    /**
     * Chooses how the stream is shown.
     * @param {TrackConfiguration} track
     */
    async #choose(track) {
        if (this.isChoosing) return;
        this.isChoosing = true;
        const { stream } = this;
        const wanted = this.getAttribute("mode") ?? "auto";
        const codec = codecNames[/** @type {1} */ (track.codec)];
        const canDecode = await CanvasRenderer.supports(track);
        const canAppend = await ElementRenderer.supports(track);
        this.isChoosing = false;
        if (this.stream !== stream || !stream) return;
        if (canDecode && (wanted === "auto" || wanted === "webcodecs") && !this.failedWays.has("webcodecs")) {
            return this.#use(new CanvasRenderer(this.#handlers()), "webcodecs", wanted === "webcodecs"
                ? this.text("chosen") : "");
        }
        if (canAppend && (wanted === "auto" || wanted === "mse") && !this.failedWays.has("mse")) {
            const key = wanted === "mse" ? "mse" : this.failedWays.has("webcodecs") ? "mseFailed"
                : typeof VideoDecoder !== "undefined" ? "mseCodec" : globalThis.isSecureContext ? "mseMissing"
                : "mseInsecure";
            return this.#use(new ElementRenderer(this.#handlers()), "mse", this.text(key, { codec }));
        }
        const canShow = wanted === "auto" || wanted === "stills";
        if (canShow && StillRenderer.supports(track) && !this.failedWays.has("stills")) {
            const key = wanted === "stills" ? "stillsChosen" : this.failedWays.size > 0 ? "stillsFailed" : "stills";
            return this.#use(new StillRenderer(this.#handlers()), "stills", this.text(key, { codec }));
        }
        this.reason = this.text("unsupported", { codec });
        this.#stop();
        this.#set("unsupported");
    }

    /**
     * @param {CanvasRenderer | ElementRenderer | StillRenderer} renderer
     * @param {string} way
     * @param {string} reason
     */
    #use(renderer, way, reason) {
        this.renderer?.close();
        this.renderer = renderer;
        this.way = way;
        this.reason = reason;
        if (!this.isMuted) this.setMuted(false);
        for (const [track, configuration] of this.tracks) renderer.configure(track, configuration);
        for (const frame of this.early) renderer.add(frame);
        this.early = [];
    }

    /** @param {import("./frames.js").MediaFrame} frame */
    #frame(frame) {
        if (this.renderer) this.renderer.add(frame);
        else if (this.early.length < 1000) this.early.push(frame);
    }

    #wasDrawn() {
        const now = performance.now();
        this.drawnCount += 1;
        this.drawn.push(now);
        if (this.drawn.length > 240) this.drawn.splice(0, 120);
        if (this.renderer && this.renderer.element.parentNode !== this.picture) this.picture.replaceChildren(this.renderer.element);
        if (this.firstPictureMs === null) {
            this.firstPictureMs = Math.round(now - this.startedAt);
            this.dispatchEvent(new CustomEvent("apus-first-picture", { detail: this.firstPictureMs }));
        }
        if (this.state !== "live") this.#set("live");
    }

    #sessionChanged() {
        const state = this.session?.state;
        if (state === "signed-out" || state === "replaced") {
            this.#stop();
            return this.#set(state);
        }
        if (state === "offline" && this.state !== "paused" && this.state !== "queued") this.#set("offline");
        if (state === "online" && this.state === "offline") this.#set("connecting");
        this.#look();
    }

    // ---- what is seen

    /** @param {PlayerState} state */
    #set(state) {
        if (this.state !== state) {
            this.state = state;
            this.setAttribute("data-state", state);
            this.dispatchEvent(new CustomEvent("apus-state", { detail: state }));
        }
        this.#render();
    }

    #stats() {
        const { stats } = this;
        // A stream that moves shows a notice only if that takes long.
        const isStill = this.stream && this.state === "live" && this.way !== "" && this.drawn.length > 0
            && performance.now() - this.drawn[this.drawn.length - 1] > 3000;
        if (isStill && this.movingSince && !this.session?.isOnline) this.#set("moving");
        this.#render();
        if (this.stream) this.dispatchEvent(new CustomEvent("apus-stats", { detail: stats }));
    }

    #render() {
        const { state, stats } = this;
        const name = this.getAttribute("label") ?? this.getAttribute("device") ?? "";
        this.picture.setAttribute("aria-label", this.text("live", { name }));
        this.bar.setAttribute("aria-label", this.text("controls"));
        const message = {
            connecting: this.text("connecting"), waiting: this.text("waiting"), moving: this.text("moving"),
            offline: this.text("offline"), "signed-out": this.text("signedOut"), replaced: this.text("replaced"),
            paused: this.text("paused"), queued: this.text("queued", { count: ApusPlayer.limit }),
            ended: this.text("ended", { reason: this.endText }), unsupported: this.reason, live: "",
        }[state];
        if (this.message.textContent !== message) this.message.textContent = message;
        if (this.hasAttribute("controls") && this.said.textContent !== message) this.said.textContent = message;
        const parts = [];
        if (state === "live") {
            parts.push(this.reason && this.way !== "webcodecs" ? this.reason : this.text(this.way || "webcodecs"));
            if (stats.width) parts.push(`${stats.width} × ${stats.height}`);
            if (this.way !== "stills") parts.push(this.text("fps", { value: Math.round(stats.fps) }));
            if (stats.delayMs !== null) parts.push(this.text("delay", { value: stats.delayMs }));
            else parts.push(this.text("buffer", { value: stats.bufferMs }));
            if (stats.skipped) parts.push(this.text("skipped", { value: stats.skipped }));
            if (this.soundCodec) parts.push(this.text("noSound", { codec: this.soundCodec }));
            if (stats.node) parts.push(stats.node);
        }
        const line = parts.join(" · ");
        if (this.line.textContent !== line) this.line.textContent = line;
        const isFull = document.fullscreenElement === this;
        this.#icon("play", this.isPaused ? "play" : "pause");
        this.#icon("mute", this.isMuted ? "unmute" : "mute");
        this.#icon("snapshot", "snapshot");
        this.#icon("pip", "pip");
        this.#icon("fullscreen", isFull ? "leaveFullscreen" : "fullscreen");
        this.buttons.mute.hidden = !(this.renderer?.hasSound ?? false) || this.soundCodec !== "";
        this.buttons.snapshot.hidden = state !== "live";
        this.buttons.pip.hidden = state !== "live" || !document.pictureInPictureEnabled;
        this.buttons.fullscreen.hidden = !document.fullscreenEnabled;
    }

    /**
     * @param {keyof ApusPlayer["buttons"]} button
     * @param {keyof typeof icons} icon
     */
    #icon(button, icon) {
        const element = this.buttons[button];
        const label = this.text(icon);
        if (element.getAttribute("aria-label") === label) return;
        element.setAttribute("aria-label", label);
        element.title = label;
        element.querySelector("path")?.setAttribute("d", icons[icon]);
    }
}

/**
 * @param {string} node
 * @param {string} token
 */
function sharedSession(node, token) {
    const key = `${node} ${token}`;
    let session = sessions.get(key);
    if (!session) {
        session = new Session({ url: node || undefined, token: token || undefined }).start();
        sessions.set(key, session);
    }
    return session;
}

/**
 * @param {string} name
 * @param {string} className
 */
function make(name, className) {
    const element = document.createElement(name);
    element.className = className;
    return element;
}
