// What codecs are called in a browser, and G.711.

import { Codec } from "./frames.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */

/** @param {number} byte */
const hex = byte => byte.toString(16).padStart(2, "0");

/**
 * The codec's name of RFC 6381; null if browsers have no name for it.
 * @param {TrackConfiguration} track
 * @returns {string | null}
 */
export function codecName(track) {
    switch (track.codec) {
    case Codec.h264:
        return track.extra.length >= 7 ? `avc1.${hex(track.extra[1])}${hex(track.extra[2])}${hex(track.extra[3])}`
            : null;
    case Codec.h265: return hevcName(track.extra);
    case Codec.aac: return `mp4a.40.${aacObjectType(track.extra)}`;
    case Codec.opus: return "opus";
    case Codec.mp3: return "mp3";
    default: return null;
    }
}

/**
 * ISO/IEC 14496-15 §E.3.
 * @param {Uint8Array} record hvcC
 */
function hevcName(record) {
    if (record.length < 13) return null;
    const space = ["", "A", "B", "C"][record[1] >> 6];
    const tier = record[1] & 0x20 ? "H" : "L";
    let flags = 0;
    for (let bit = 0; bit < 32; bit++) {
        if (record[2 + (bit >> 3)] & (0x80 >> (bit & 7))) flags += 2 ** bit;
    }
    const constraints = [...record.slice(6, 12)];
    while (constraints.length > 0 && constraints[constraints.length - 1] === 0) constraints.pop();
    const tail = constraints.map(byte => `.${byte.toString(16).toUpperCase()}`).join("");
    return `hvc1.${space}${record[1] & 0x1f}.${flags.toString(16).toUpperCase()}.${tier}${record[12]}${tail}`;
}

/**
 * ISO/IEC 14496-3 §1.6.2.1.
 * @param {Uint8Array} record AudioSpecificConfig
 */
function aacObjectType(record) {
    if (record.length < 2) return 2;
    const type = record[0] >> 3;
    return type === 31 ? 32 + ((record[0] & 7) << 3 | record[1] >> 5) : type || 2;
}

/**
 * The samples of G.711 and L16, which need no decoder of the browser. Null for any other codec.
 *
 * @param {TrackConfiguration} track
 * @param {Uint8Array} payload
 * @returns {Float32Array[] | null} one array for each channel
 */
export function decodePlain(track, payload) {
    const channels = Math.max(1, Math.min(8, track.second || 1));
    switch (track.codec) {
    case Codec.pcma: return spread(payload.length, channels, index => aLaw[payload[index]]);
    case Codec.pcmu: return spread(payload.length, channels, index => muLaw[payload[index]]);
    case Codec.l16: {
        const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
        return spread(payload.length >> 1, channels, index => view.getInt16(index * 2) / 32768);
    }
    default: return null;
    }
}

/** @param {number} codec */
export const isPlain = codec => codec === Codec.pcma || codec === Codec.pcmu || codec === Codec.l16;

/**
 * @param {number} count
 * @param {number} channels
 * @param {(index: number) => number} sample
 */
function spread(count, channels, sample) {
    const length = Math.floor(count / channels);
    return Array.from({ length: channels }, (_, channel) => {
        const samples = new Float32Array(length);
        for (let index = 0; index < length; index++) samples[index] = sample(index * channels + channel);
        return samples;
    });
}

/** ITU-T G.711, table 1a. */
const aLaw = table(code => {
    const value = code ^ 0x55;
    const segment = (value & 0x70) >> 4;
    let magnitude = (value & 0x0f) << 4 | 8;
    if (segment > 0) magnitude = (magnitude | 0x100) << (segment - 1);
    return value & 0x80 ? magnitude : -magnitude;
});

/** ITU-T G.711, table 2a. */
const muLaw = table(code => {
    const value = ~code & 0xff;
    const magnitude = (((value & 0x0f) << 3 | 0x84) << ((value & 0x70) >> 4)) - 0x84;
    return value & 0x80 ? -magnitude : magnitude;
});

/** @param {(code: number) => number} decode */
function table(decode) {
    return Float32Array.from({ length: 256 }, (_, code) => decode(code) / 32768);
}

/**
 * The decoder record for Opus in WebCodecs: an OpusHead, or nothing.
 * @param {TrackConfiguration} track
 */
export function opusDescription(track) {
    const head = track.extra;
    return head.length >= 19 && String.fromCharCode(...head.slice(0, 8)) === "OpusHead" ? head : undefined;
}
