// Shows a stream with Media Source Extensions, where WebCodecs is missing: over plain http, and in older browsers.

import { codecName } from "./codecs.js";
import { Codec, Flag, isSameFormat } from "./frames.js";
import { fragment, initSegment, TimeLine } from "./fmp4.js";
import { elementPace, Pacer } from "./pace.js";
import { SoundDecoder, SoundOutput } from "./sound.js";
import { captureDelay } from "./webcodecs.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */
/** @typedef {import("./frames.js").MediaFrame} MediaFrame */

/** iPhones have a managed one. */
const Source = /** @type {typeof MediaSource | undefined} */ (/** @type {any} */ (globalThis).ManagedMediaSource ?? globalThis.MediaSource);
/** What is kept to begin again: the pictures since the last key frame. */
const keptMax = 900;
const keptBytesMax = 12 << 20;
/** Samples that wait for the buffer. */
const waitingMax = 1200;
const keepBehindSeconds = 8;
/** So long after a beginning, a small delay is removed by a jump. */
const startMs = 1500;

/** A track of the media source. */
class Lane {
    /**
     * @param {TrackConfiguration} track
     * @param {{value: number | null}} origin
     */
    constructor(track, origin) {
        this.track = track;
        const usual = track.isVideo ? (track.third ? 1e9 / track.third : 40_000)
            : 1e6 * (track.third || 960) / (track.first || 48_000);
        this.line = new TimeLine(usual, origin);
        /** @type {SourceBuffer | null} */
        this.buffer = null;
        /** @type {{time: number, duration: number, composition: number, isKey: boolean, payload: Uint8Array}[]} */
        this.samples = [];
        this.sequence = 1;
        this.hasInit = false;
    }
}

export class ElementRenderer {
    /** @param {import("./webcodecs.js").RendererHandlers} handlers */
    constructor(handlers) {
        this.handlers = handlers;
        this.element = document.createElement("video");
        this.element.muted = true;
        this.element.autoplay = true;
        this.element.playsInline = true;
        this.element.disableRemotePlayback = true;
        this.element.tabIndex = -1;
        this.pacer = new Pacer();
        this.sound = new SoundOutput();
        /** @type {SoundDecoder | null} */
        this.soundDecoder = null;
        /** @type {Map<number, TrackConfiguration>} */
        this.tracks = new Map();
        /** @type {Map<number, Lane>} */
        this.lanes = new Map();
        /** @type {MediaSource | null} */
        this.source = null;
        /** @type {MediaFrame[]} */
        this.kept = [];
        this.keptBytes = 0;
        this.needsKey = true;
        this.isMuted = true;
        this.isClosed = false;
        this.isOpen = false;
        this.jitterSeconds = 0.1;
        this.counts = { dropped: 0 };
        this.rebuilds = 0;
        this.lastTime = -1;
        this.lastMove = performance.now();
        this.began = 0;
        this.lastCapture = 0;
        this.element.addEventListener("resize", () => handlers.onSize(this.element.videoWidth,
            this.element.videoHeight));
        this.element.addEventListener("error", () => this.#rebuild("the browser refused the stream"));
        this.timer = setInterval(() => this.#pace(), 100);
        this.#watchPictures();
    }

    /** @param {TrackConfiguration} track */
    static async supports(track) {
        const type = mimeType(track);
        return type !== null && Source !== undefined && Source.isTypeSupported(type);
    }

    #watchPictures() {
        const { element } = this;
        if ("requestVideoFrameCallback" in element) {
            const drawn = () => {
                if (this.isClosed) return;
                this.#drawn();
                element.requestVideoFrameCallback(drawn);
            };
            element.requestVideoFrameCallback(drawn);
        } else {
            /** @type {HTMLVideoElement} */ (element).addEventListener("timeupdate", () => this.#drawn());
        }
    }

    #drawn() {
        // Where the shown picture lies in the buffer says how old it is.
        const end = this.#end();
        const lag = end === null ? 0 : Math.max(0, (end - this.element.currentTime) * 1000);
        const newest = captureDelay(this.lastCapture);
        this.handlers.onDelay(newest === null ? null : Math.round(newest + lag));
        this.handlers.onDrawn();
    }

    /**
     * @param {number} track
     * @param {TrackConfiguration} configuration
     */
    configure(track, configuration) {
        const known = this.tracks.get(track);
        this.tracks.set(track, configuration);
        if (known && isSameFormat(known, configuration)) return;
        if (configuration.isVideo) {
            if (known) this.#forget();
            this.#begin();
        } else if (known && !this.isMuted) {
            this.#openSound();
        }
    }

    /** @param {MediaFrame} frame */
    add(frame) {
        const track = this.tracks.get(frame.track);
        if (!track || this.isClosed) return;
        this.pacer.arrived((frame.pts + Math.min(0, frame.delta)) / 1000, performance.now());
        if (track.isVideo) {
            const isKey = (frame.flags & Flag.key) !== 0;
            if (this.needsKey && !isKey) {
                this.counts.dropped += 1;
                return;
            }
            this.needsKey = false;
            this.lastCapture = frame.capture;
            if (isKey) this.#forget();
        }
        this.#keep(frame);
        if (!track.isVideo && this.soundDecoder) return this.soundDecoder.add(frame);
        this.#append(frame);
    }

    /** @param {MediaFrame} frame */
    #keep(frame) {
        this.kept.push(frame);
        this.keptBytes += frame.payload.length;
        if (this.kept.length > keptMax || this.keptBytes > keptBytesMax) this.#forget();
    }

    #forget() {
        this.kept = [];
        this.keptBytes = 0;
    }

    /**
     * Frames are missing, or another run begins.
     * @param {boolean} isLoss
     */
    gap(isLoss) {
        this.needsKey = true;
        this.#forget();
        if (!isLoss) this.pacer.reset();
    }

    /** Makes a media source of the tracks that are wanted. */
    #begin() {
        if (this.isClosed || !Source) return;
        this.isOpen = false;
        const source = new Source();
        this.source = source;
        const origin = { value: /** @type {number | null} */ (null) };
        this.lanes = new Map();
        for (const [number, track] of this.tracks) {
            const type = mimeType(track);
            const isWanted = track.isVideo || (!this.isMuted && !this.soundDecoder);
            if (!isWanted || !type || !Source.isTypeSupported(type)) continue;
            if (track.isVideo && [...this.lanes.values()].some(lane => lane.track.isVideo)) continue;
            this.lanes.set(number, new Lane(track, origin));
        }
        source.addEventListener("sourceopen", () => {
            if (this.source !== source || this.isClosed) return;
            try {
                for (const lane of this.lanes.values()) {
                    lane.buffer = source.addSourceBuffer(/** @type {string} */ (mimeType(lane.track)));
                    lane.buffer.addEventListener("updateend", () => this.#flush(lane));
                }
            } catch (error) {
                return this.handlers.onFailed(/** @type {Error} */ (error).message);
            }
            this.isOpen = true;
            for (const lane of this.lanes.values()) this.#flush(lane);
        }, { once: true });
        const old = this.element.src;
        this.element.src = URL.createObjectURL(source);
        if (old) URL.revokeObjectURL(old);
        this.lastMove = performance.now();
        this.began = this.lastMove;
        for (const frame of this.kept) this.#append(frame);
        this.element.play().catch(() => {});
    }

    /**
     * Begins again with the pictures since the last key frame.
     * @param {string} reason
     */
    #rebuild(reason) {
        if (this.isClosed || this.lanes.size === 0) return;
        this.rebuilds += 1;
        if (this.rebuilds > 20) return this.handlers.onFailed(reason);
        if (this.kept.length === 0) this.needsKey = true;
        this.#begin();
    }

    /** @param {MediaFrame} frame */
    #append(frame) {
        const lane = this.lanes.get(frame.track);
        if (!lane) return;
        const { time, duration } = lane.line.place(frame.pts + frame.delta);
        lane.samples.push({
            time, duration, composition: -frame.delta, payload: frame.payload,
            isKey: !lane.track.isVideo || (frame.flags & Flag.key) !== 0,
        });
        if (lane.samples.length > waitingMax) return this.#rebuild("the buffer does not take the stream");
        this.#flush(lane);
    }

    /** @param {Lane} lane */
    #flush(lane) {
        const { buffer } = lane;
        if (!this.isOpen || !buffer || buffer.updating || this.source?.readyState !== "open") return;
        try {
            if (!lane.hasInit) {
                lane.hasInit = true;
                return buffer.appendBuffer(/** @type {any} */ (initSegment(lane.track)));
            }
            const start = this.element.currentTime - keepBehindSeconds;
            if (buffer.buffered.length > 0
                && start - buffer.buffered.start(0) > keepBehindSeconds) return buffer.remove(0, start);
            if (lane.samples.length === 0) return;
            const samples = lane.samples;
            lane.samples = [];
            buffer.appendBuffer(/** @type {any} */ (fragment(lane.sequence++, samples[0].time, samples)));
        } catch (error) {
            this.#rebuild(/** @type {Error} */ (error).message);
        }
    }

    /** The end of what can be played, in seconds. */
    #end() {
        const { buffered } = this.element;
        return buffered.length > 0 ? buffered.end(buffered.length - 1) : null;
    }

    /** Keeps the delay, and drives an element that has stopped at a hole. */
    #pace() {
        const { element } = this;
        const end = this.#end();
        const now = performance.now();
        if (end === null || this.isClosed) return;
        const target = Math.max(0.08, this.jitterSeconds, this.pacer.bufferMs / 1000 + 0.05);
        // What was kept to begin again is old: the newest picture is wanted at once.
        const { rate, jump } = elementPace(end - element.currentTime, target, now - this.began < startMs ? 0.2 : 1.5);
        const start = element.buffered.start(element.buffered.length - 1);
        if (jump || element.currentTime < start) element.currentTime = Math.max(start, end - target);
        else if (element.playbackRate !== rate) element.playbackRate = rate;
        if (element.paused && !element.ended) element.play().catch(() => {});
        if (element.currentTime !== this.lastTime) {
            this.lastTime = element.currentTime;
            this.lastMove = now;
        } else if (now - this.lastMove > 1500 && end - element.currentTime > 0.5) {
            this.lastMove = now;
            this.#rebuild("the element has stopped");
        }
    }

    // ---- sound

    async #openSound() {
        this.soundDecoder?.close();
        this.soundDecoder = null;
        const track = [...this.tracks.values()].find(track => !track.isVideo);
        // What the media source cannot take, such as G.711, is decoded here.
        if (track && !(await ElementRenderer.supports(track)) && await SoundDecoder.supports(track)) {
            this.soundDecoder = new SoundDecoder(track, (channels, rate, ptsMs) => {
                if (!this.isMuted) this.sound.play(channels, rate, this.pacer.due(ptsMs) + 100);
            });
            this.soundDecoder.open();
            return;
        }
        this.#begin();
    }

    /**
     * @param {boolean} isMuted
     * @returns {Promise<boolean>}
     */
    async setMuted(isMuted) {
        const had = this.isMuted;
        this.isMuted = isMuted;
        this.element.muted = isMuted;
        if (isMuted) {
            this.sound.stop();
            return true;
        }
        if (!(await this.sound.start())) {
            this.isMuted = true;
            this.element.muted = true;
            return false;
        }
        if (had) await this.#openSound();
        return true;
    }

    get hasSound() { return [...this.tracks.values()].some(track => !track.isVideo); }

    get bufferMs() {
        const end = this.#end();
        return end === null ? 0 : Math.max(0, Math.round((end - this.element.currentTime) * 1000));
    }

    /** @returns {Promise<Blob | null>} */
    snapshot() {
        const canvas = document.createElement("canvas");
        canvas.width = this.element.videoWidth;
        canvas.height = this.element.videoHeight;
        canvas.getContext("2d")?.drawImage(this.element, 0, 0);
        return new Promise(resolve => canvas.toBlob(resolve, "image/png"));
    }

    /** @returns {Promise<HTMLVideoElement>} */
    async pictureElement() { return this.element; }

    close() {
        this.isClosed = true;
        clearInterval(this.timer);
        this.soundDecoder?.close();
        this.sound.stop();
        const { src } = this.element;
        this.element.removeAttribute("src");
        this.element.load();
        if (src) URL.revokeObjectURL(src);
    }
}

/**
 * @param {TrackConfiguration} track
 * @returns {string | null}
 */
export function mimeType(track) {
    const name = codecName(track);
    if (!name || track.codec === Codec.mp3 || (track.isVideo && track.extra.length === 0)) return null;
    return `${track.isVideo ? "video" : "audio"}/mp4; codecs="${name}"`;
}
