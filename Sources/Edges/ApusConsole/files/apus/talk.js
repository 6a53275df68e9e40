// Sends this machine's microphone and camera as the own side of a call. Browsers allow both only over https, or on this
// machine, and after a press.

import { Codec, Flag, makeConfiguration } from "./frames.js";

const soundTrack = 0;
const pictureTrack = 1;
const rate = 48_000;
const packetSamples = 960;
const keyEverySeconds = 2;

/** Sends to a call while it is open. The microphone is off until `setTalking(true)`. */
export class Talk {
    /**
     * @param {import("./session.js").Session} session
     * @param {string} call
     * @param {{onEnd?: (error: Error) => void, onOpen?: () => void}} [handlers]
     */
    constructor(session, call, handlers = {}) {
        this.session = session;
        this.call = call;
        this.handlers = handlers;
        /** @type {MediaStream | null} */
        this.media = null;
        /** @type {AudioContext | null} */
        this.context = null;
        /** @type {AudioEncoder | null} */
        this.soundEncoder = null;
        /** @type {VideoEncoder | null} */
        this.pictureEncoder = null;
        /** @type {import("./streams.js").PublishStream | null} */
        this.stream = null;
        this.isTalking = false;
        this.hasPicture = false;
        this.samples = 0;
        this.pending = new Float32Array(packetSamples);
        this.pendingCount = 0;
        /** @type {ReturnType<typeof setInterval> | undefined} */
        this.timer = undefined;
    }

    /** What is missing to talk in this page; empty if nothing is: "https" or "encoder". */
    static get missing() {
        if (!globalThis.isSecureContext || !navigator.mediaDevices) return "https";
        return typeof AudioEncoder === "undefined" || typeof AudioWorkletNode === "undefined" ? "encoder" : "";
    }

    /**
     * Asks for the microphone, and for the camera if `withPicture`, and begins to send silence.
     * @param {{withPicture?: boolean}} [options]
     */
    async start(options = {}) {
        this.hasPicture = options.withPicture === true && typeof VideoEncoder !== "undefined";
        const media = await navigator.mediaDevices.getUserMedia({
            audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
            video: this.hasPicture ? { width: { ideal: 640 }, height: { ideal: 360 }, frameRate: { ideal: 15 } }
                : false,
        });
        this.media = media;
        this.hasPicture = media.getVideoTracks().length > 0;
        this.stream = this.session.publish({ call: this.call }, {
            onOpen: this.handlers.onOpen,
            onEnd: error => {
                this.stop();
                this.handlers.onEnd?.(error);
            },
        });
        await this.#startSound(media);
        if (this.hasPicture) this.#startPicture(media);
    }

    /**
     * The microphone is sent, or silence.
     * @param {boolean} isTalking
     */
    setTalking(isTalking) { this.isTalking = isTalking; }

    /** @param {MediaStream} media */
    async #startSound(media) {
        const context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
        this.context = context;
        await context.audioWorklet.addModule(new URL("./microphone.js", import.meta.url));
        const track = { codec: Codec.opus, trackCount: this.hasPicture ? 2 : 1, first: rate, second: 1,
            third: packetSamples, extra: new Uint8Array(0) };
        this.#send(soundTrack, 0, Flag.configuration, makeConfiguration(track));
        const encoder = new AudioEncoder({
            // A receiver starts at a key frame of the picture, or at any packet where there is only sound.
            output: chunk => this.#send(soundTrack, chunk.timestamp, this.hasPicture ? 0 : Flag.key, bytesOf(chunk)),
            error: error => this.#failed(error),
        });
        encoder.configure({ codec: "opus", sampleRate: rate, numberOfChannels: 1, bitrate: 32_000 });
        this.soundEncoder = encoder;
        const node = new AudioWorkletNode(context, "apus-microphone", { numberOfOutputs: 1 });
        node.port.onmessage = event => this.#sound(event.data);
        const quiet = context.createGain();
        quiet.gain.value = 0;
        context.createMediaStreamSource(media).connect(node);
        node.connect(quiet).connect(context.destination);
        await context.resume();
    }

    /** @param {Float32Array} samples */
    #sound(samples) {
        for (const sample of samples) {
            this.pending[this.pendingCount++] = this.isTalking ? sample : 0;
            if (this.pendingCount < packetSamples) continue;
            this.pendingCount = 0;
            const { soundEncoder } = this;
            if (!soundEncoder || soundEncoder.state !== "configured" || soundEncoder.encodeQueueSize > 25) continue;
            const data = new AudioData({
                format: "f32-planar", sampleRate: rate, numberOfFrames: packetSamples, numberOfChannels: 1,
                timestamp: Math.round(this.samples * 1e6 / rate), data: this.pending,
            });
            this.samples += packetSamples;
            soundEncoder.encode(data);
            data.close();
        }
    }

    /** @param {MediaStream} media */
    #startPicture(media) {
        const video = document.createElement("video");
        video.muted = true;
        video.srcObject = new MediaStream(media.getVideoTracks());
        video.play().catch(() => {});
        let count = 0;
        const encoder = new VideoEncoder({
            output: (chunk, metadata) => {
                const config = metadata?.decoderConfig;
                if (config?.description) {
                    const extra = new Uint8Array(/** @type {ArrayBuffer} */ (config.description));
                    const track = { codec: Codec.h264, trackCount: 2, first: video.videoWidth & ~1,
                        second: video.videoHeight & ~1, third: 15_000, extra };
                    this.#send(pictureTrack, chunk.timestamp, Flag.configuration, makeConfiguration(track));
                }
                this.#send(pictureTrack, chunk.timestamp, chunk.type === "key" ? Flag.key : 0, bytesOf(chunk));
            },
            error: error => this.#failed(error),
        });
        this.pictureEncoder = encoder;
        this.timer = setInterval(() => {
            if (video.readyState < 2 || encoder.state === "closed" || encoder.encodeQueueSize > 3) return;
            if (encoder.state === "unconfigured") {
                encoder.configure({
                    codec: "avc1.42e01f", width: video.videoWidth & ~1, height: video.videoHeight & ~1,
                        bitrate: 600_000,
                    framerate: 15, latencyMode: "realtime", avc: { format: "avc" },
                });
            }
            const frame = new VideoFrame(video, { timestamp: Math.round(this.samples * 1e6 / rate) });
            encoder.encode(frame, { keyFrame: count++ % (keyEverySeconds * 15) === 0 });
            frame.close();
        }, 1000 / 15);
    }

    /** @param {Error} error */
    #failed(error) {
        this.stop();
        this.handlers.onEnd?.(error);
    }

    /**
     * @param {number} track
     * @param {number} pts
     * @param {number} flags
     * @param {Uint8Array} payload
     */
    #send(track, pts, flags, payload) { this.stream?.send({ track, pts, flags, payload }); }

    /** Ends what is sent. Another start waits for this. */
    async stop() {
        clearInterval(this.timer);
        for (const encoder of [this.soundEncoder, this.pictureEncoder]) {
            if (encoder && encoder.state !== "closed") encoder.close();
        }
        this.media?.getTracks().forEach(track => track.stop());
        this.context?.close().catch(() => {});
        this.context = null;
        const { stream } = this;
        this.stream = null;
        await stream?.stop();
    }
}

/** @param {EncodedAudioChunk | EncodedVideoChunk} chunk */
function bytesOf(chunk) {
    const bytes = new Uint8Array(chunk.byteLength);
    chunk.copyTo(bytes);
    return bytes;
}
