// Plays sound at the times that the pacer gives. Browsers start an AudioContext only after a press of the user.

import { decodePlain, isPlain, codecName, opusDescription } from "./codecs.js";
import { Codec } from "./frames.js";
import { rateFor } from "./pace.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */

const resyncSeconds = 0.15;

/** A loudspeaker for one stream. */
export class SoundOutput {
    constructor() {
        /** @type {AudioContext | null} */
        this.context = null;
        /** @type {GainNode | null} */
        this.gain = null;
        this.next = 0;
        /** Packets that came too late to be heard. */
        this.late = 0;
    }

    /**
     * Starts. Called for a press of the user.
     * @returns {Promise<boolean>} false where the browser does not allow it
     */
    async start() {
        this.context ??= new AudioContext({ latencyHint: "interactive" });
        if (!this.gain) {
            this.gain = this.context.createGain();
            this.gain.connect(this.context.destination);
        }
        await Promise.race([this.context.resume(), new Promise(resolve => setTimeout(resolve, 500))]);
        return this.context.state === "running";
    }

    get isRunning() { return this.context?.state === "running"; }

    stop() {
        const { context } = this;
        this.context = null;
        this.gain = null;
        context?.close().catch(() => {});
    }

    /**
     * @param {Float32Array[]} channels
     * @param {number} rate
     * @param {number} due a time of performance.now()
     */
    play(channels, rate, due) {
        const { context, gain } = this;
        if (!context || !gain || context.state !== "running" || channels[0].length === 0) return;
        const wanted = context.currentTime + (due - performance.now()) / 1000;
        const length = channels[0].length / rate;
        // Sound is continuous: a packet follows the one before, and the rate takes it to its time.
        if (Math.abs(wanted - this.next) > resyncSeconds || this.next < context.currentTime) this.next = wanted;
        if (this.next < context.currentTime) {
            this.late += 1;
            if (this.next + length < context.currentTime) return;
            this.next = context.currentTime;
        }
        const buffer = context.createBuffer(channels.length, channels[0].length, rate);
        channels.forEach((samples, index) => buffer.copyToChannel(/** @type {any} */ (samples), index));
        const source = context.createBufferSource();
        source.buffer = buffer;
        source.playbackRate.value = rateFor((this.next - wanted) * 1000, 8, 120);
        source.connect(gain);
        source.start(this.next);
        this.next += length / source.playbackRate.value;
    }
}

/** Decodes one track of sound to samples. */
export class SoundDecoder {
    /**
     * @param {TrackConfiguration} track
     * @param {(channels: Float32Array[], rate: number, ptsMs: number) => void} onSamples
     */
    constructor(track, onSamples) {
        this.track = track;
        this.onSamples = onSamples;
        /** @type {AudioDecoder | null} */
        this.decoder = null;
        this.isReady = isPlain(track.codec);
        this.isFailed = false;
    }

    /**
     * True if this browser decodes the track without Media Source Extensions.
     * @param {TrackConfiguration} track
     */
    static async supports(track) {
        if (isPlain(track.codec)) return true;
        const config = soundConfig(track);
        if (!config || typeof AudioDecoder === "undefined") return false;
        try {
            return (await AudioDecoder.isConfigSupported(config)).supported === true;
        } catch {
            return false;
        }
    }

    open() {
        const config = soundConfig(this.track);
        if (this.isReady || !config) return;
        this.decoder = new AudioDecoder({
            output: data => this.#decoded(data),
            error: () => { this.isFailed = true; },
        });
        this.decoder.configure(config);
        this.isReady = true;
    }

    /** @param {import("./frames.js").MediaFrame} frame */
    add(frame) {
        if (!this.isReady || this.isFailed) return;
        const plain = decodePlain(this.track, frame.payload);
        if (plain) return this.onSamples(plain, this.track.first || 8000, frame.pts / 1000);
        if (!this.decoder || this.decoder.state !== "configured" || this.decoder.decodeQueueSize > 50) return;
        this.decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: frame.pts, data: frame.payload }));
    }

    /** @param {AudioData} data */
    #decoded(data) {
        const channels = Array.from({ length: data.numberOfChannels }, (_, index) => {
            const samples = new Float32Array(data.numberOfFrames);
            data.copyTo(samples, { planeIndex: index, format: "f32-planar" });
            return samples;
        });
        const { sampleRate, timestamp } = data;
        data.close();
        this.onSamples(channels, sampleRate, timestamp / 1000);
    }

    close() {
        if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
        this.decoder = null;
        this.isReady = false;
    }
}

/**
 * @param {TrackConfiguration} track
 * @returns {AudioDecoderConfig | null}
 */
function soundConfig(track) {
    const codec = codecName(track);
    if (!codec || track.isVideo) return null;
    /** @type {AudioDecoderConfig} */
    const config = { codec, sampleRate: track.first, numberOfChannels: Math.max(1, track.second) };
    if (track.codec === Codec.aac && track.extra.length > 0) config.description = track.extra;
    if (track.codec === Codec.opus) {
        config.sampleRate = 48_000;
        const head = opusDescription(track);
        if (head) config.description = head;
    }
    return config;
}
