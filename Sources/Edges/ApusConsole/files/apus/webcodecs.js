// Shows a stream with WebCodecs: VideoDecoder to a canvas, at the times of the pacer.

import { codecName } from "./codecs.js";
import { Flag, isSameFormat } from "./frames.js";
import { Pacer } from "./pace.js";
import { SoundDecoder, SoundOutput } from "./sound.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */
/** @typedef {import("./frames.js").MediaFrame} MediaFrame */

/** Decoded pictures that wait for their time. More would starve a decoder of its buffers. */
const picturesMax = 8;
/** Pictures that wait for the decoder. Beyond it the next key frame is awaited. */
const encodedMax = 250;
/** So long before its time a picture is decoded. */
const leadMs = 120;

/**
 * What a renderer reports.
 * @typedef {object} RendererHandlers
 * @property {(width: number, height: number) => void} onSize
 * @property {() => void} onDrawn a picture is on the screen
 * @property {(delayMs: number | null) => void} onDelay from the capture to the screen; null if it is not known
 * @property {(message: string) => void} onFailed the renderer cannot show this stream
 */

export class CanvasRenderer {
    /** @param {RendererHandlers} handlers */
    constructor(handlers) {
        this.handlers = handlers;
        this.element = document.createElement("canvas");
        this.context = this.element.getContext("2d", { alpha: false, desynchronized: true });
        this.pacer = new Pacer();
        this.sound = new SoundOutput();
        /** @type {Map<number, TrackConfiguration>} */
        this.tracks = new Map();
        /** @type {number | null} */
        this.videoTrack = null;
        /** @type {VideoDecoder | null} */
        this.decoder = null;
        /** @type {SoundDecoder | null} */
        this.soundDecoder = null;
        /** @type {MediaFrame[]} */
        this.encoded = [];
        /** @type {{frame: VideoFrame, due: number}[]} */
        this.pictures = [];
        /** @type {Map<number, number>} */
        this.captures = new Map();
        this.needsKey = true;
        this.isMuted = true;
        this.isClosed = false;
        this.failures = 0;
        this.counts = { dropped: 0 };
        this.draw = () => this.#draw();
        this.loop = requestAnimationFrame(this.draw);
        // Pages whose tab is not drawn have no animation frames: decoded pictures must not pile up there.
        this.timer = setInterval(() => this.#feed(), 40);
    }

    /** @param {TrackConfiguration} track */
    static async supports(track) {
        const config = pictureConfig(track);
        if (!config || typeof VideoDecoder === "undefined") return false;
        try {
            return (await VideoDecoder.isConfigSupported(config)).supported === true;
        } catch {
            return false;
        }
    }

    /**
     * @param {number} track
     * @param {TrackConfiguration} configuration
     */
    configure(track, configuration) {
        const known = this.tracks.get(track);
        this.tracks.set(track, configuration);
        if (configuration.isVideo) {
            if (this.videoTrack !== null && this.videoTrack !== track
                && this.tracks.get(this.videoTrack)?.isVideo) return;
            if (known && this.videoTrack === track && isSameFormat(known, configuration)) return;
            this.videoTrack = track;
            this.#openDecoder();
        } else if (!known || !isSameFormat(known, configuration)) {
            this.#openSound(configuration);
        }
    }

    #openDecoder() {
        if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
        this.needsKey = true;
        this.encoded = [];
        const track = this.videoTrack === null ? undefined : this.tracks.get(this.videoTrack);
        const config = track && pictureConfig(track);
        if (!config) return;
        /** @type {VideoDecoder} */
        const decoder = new VideoDecoder({
            output: frame => this.#decoded(frame, decoder),
            error: error => this.#failed(error, decoder),
        });
        decoder.configure(config);
        this.decoder = decoder;
    }

    /**
     * @param {DOMException} error
     * @param {VideoDecoder} decoder
     */
    #failed(error, decoder) {
        if (decoder !== this.decoder || this.isClosed) return;
        this.failures += 1;
        this.counts.dropped += 1;
        // A broken picture: the next key frame begins again. A decoder that never shows one is given up.
        if (this.failures > 5) return this.handlers.onFailed(error.message);
        this.#openDecoder();
    }

    /** @param {TrackConfiguration} track */
    async #openSound(track) {
        this.soundDecoder?.close();
        this.soundDecoder = null;
        if (!(await SoundDecoder.supports(track)) || this.isClosed) return;
        this.soundDecoder = new SoundDecoder(track, (channels, rate, ptsMs) => {
            if (!this.isMuted) this.sound.play(channels, rate, this.pacer.due(ptsMs) + 20);
        });
        this.soundDecoder.open();
    }

    /** @param {MediaFrame} frame */
    add(frame) {
        const track = this.tracks.get(frame.track);
        if (!track || this.isClosed) return;
        const now = performance.now();
        if (!track.isVideo) {
            if (this.videoTrack === null || !this.isMuted) this.pacer.arrived(frame.pts / 1000, now);
            if (!this.isMuted) this.soundDecoder?.add(frame);
            return;
        }
        if (frame.track !== this.videoTrack) return;
        this.pacer.arrived((frame.pts + Math.min(0, frame.delta)) / 1000, now);
        const isKey = (frame.flags & Flag.key) !== 0;
        if (this.needsKey && !isKey) {
            this.counts.dropped += 1;
            return;
        }
        if (this.encoded.length >= encodedMax) {
            this.counts.dropped += this.encoded.length;
            this.encoded = [];
            if (!isKey) {
                this.needsKey = true;
                return;
            }
        }
        this.needsKey = false;
        if (frame.capture) {
            this.captures.set(frame.pts, frame.capture);
            if (this.captures.size > 600) this.captures.delete(/** @type {number} */ (this.captures.keys().next().value));
        }
        this.encoded.push(frame);
        this.#feed();
    }

    /**
     * Frames are missing, or another run begins.
     * @param {boolean} isLoss
     */
    gap(isLoss) {
        this.needsKey = true;
        this.encoded = [];
        if (!isLoss) this.pacer.reset();
    }

    /** Decodes what is due soon. */
    #feed() {
        const { decoder } = this;
        if (!decoder || decoder.state !== "configured") return;
        const now = performance.now();
        while (this.encoded.length > 0) {
            const [frame] = this.encoded;
            const waits = this.pictures.length + decoder.decodeQueueSize;
            if (this.pacer.due((frame.pts + Math.min(0, frame.delta)) / 1000) > now + leadMs && waits > 1) return;
            if (waits >= picturesMax && this.pictures.length > 1) return;
            this.encoded.shift();
            try {
                decoder.decode(new EncodedVideoChunk({
                    type: frame.flags & Flag.key ? "key" : "delta", timestamp: frame.pts, data: frame.payload,
                }));
            } catch (error) {
                return this.#failed(/** @type {DOMException} */ (error), decoder);
            }
        }
    }

    /**
     * @param {VideoFrame} frame
     * @param {VideoDecoder} decoder
     */
    #decoded(frame, decoder) {
        if (this.isClosed || decoder !== this.decoder) return frame.close();
        this.failures = 0;
        this.pictures.push({ frame, due: this.pacer.due(frame.timestamp / 1000) });
        while (this.pictures.length > picturesMax) this.pictures.shift()?.frame.close();
        // The first picture does not wait.
        if (this.element.width !== frame.displayWidth || this.element.height !== frame.displayHeight) this.#show(true);
    }

    #draw() {
        if (this.isClosed) return;
        this.loop = requestAnimationFrame(this.draw);
        this.#show(false);
        this.#feed();
    }

    /**
     * Shows the newest picture that is due.
     * @param {boolean} atOnce
     */
    #show(atOnce) {
        const until = performance.now() + 8;
        let count = 0;
        while (count < this.pictures.length
            && (atOnce || this.pacer.due(this.pictures[count].frame.timestamp / 1000) <= until)) count += 1;
        if (count === 0) return;
        const passed = this.pictures.splice(0, count);
        const { frame } = passed[passed.length - 1];
        const { displayWidth: width, displayHeight: height } = frame;
        if (this.element.width !== width || this.element.height !== height) {
            this.element.width = width;
            this.element.height = height;
            this.handlers.onSize(width, height);
        }
        this.context?.drawImage(frame, 0, 0, width, height);
        const capture = this.captures.get(frame.timestamp);
        this.captures.delete(frame.timestamp);
        for (const picture of passed) picture.frame.close();
        this.handlers.onDelay(captureDelay(capture));
        this.handlers.onDrawn();
    }

    /**
     * Sound needs a press of the user.
     * @param {boolean} isMuted
     * @returns {Promise<boolean>} true if it is as wanted
     */
    async setMuted(isMuted) {
        if (isMuted) {
            this.isMuted = true;
            this.pacer.bufferMinMs = 0;
            this.sound.stop();
            return true;
        }
        const isRunning = await this.sound.start();
        this.isMuted = !isRunning;
        if (isRunning) this.pacer.bufferMinMs = 40;
        return isRunning;
    }

    get hasSound() { return [...this.tracks.values()].some(track => !track.isVideo); }
    get bufferMs() { return this.pacer.bufferMs; }

    /**
     * The picture on the screen, as PNG.
     * @returns {Promise<Blob | null>}
     */
    snapshot() {
        return new Promise(resolve => this.element.toBlob(resolve, "image/png"));
    }

    /**
     * An element that picture in picture takes.
     * @returns {Promise<HTMLVideoElement>}
     */
    async pictureElement() {
        const video = document.createElement("video");
        video.muted = true;
        video.srcObject = this.element.captureStream();
        await video.play();
        return video;
    }

    close() {
        this.isClosed = true;
        cancelAnimationFrame(this.loop);
        clearInterval(this.timer);
        if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
        this.soundDecoder?.close();
        this.sound.stop();
        for (const picture of this.pictures) picture.frame.close();
        this.pictures = [];
        this.encoded = [];
    }
}

/**
 * @param {TrackConfiguration} track
 * @returns {VideoDecoderConfig | null}
 */
function pictureConfig(track) {
    const codec = codecName(track);
    if (!codec || !track.isVideo || track.extra.length === 0) return null;
    return { codec, description: track.extra, codedWidth: track.first, codedHeight: track.second,
        optimizeForLatency: true };
}

/**
 * The time from the capture to now; null if the clocks of the camera and of this machine cannot be compared.
 * @param {number | undefined} capture
 */
export function captureDelay(capture) {
    if (!capture) return null;
    const delay = (Date.now() % 2 ** 32 - capture + 2 ** 32) % 2 ** 32;
    return delay < 60_000 ? delay : null;
}
