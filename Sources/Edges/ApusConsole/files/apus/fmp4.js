// Makes fragmented MP4 (ISO/IEC 14496-12 §8.8) of media frames, for Media Source Extensions. One muxer has one track.

import { Codec } from "./frames.js";

/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */

/** Ticks a second: the unit of a frame's times. */
const timescale = 1_000_000;

/** A buffer of bytes that grows, with boxes whose lengths are set at their ends. */
class Writer {
    constructor(size = 1024) {
        this.bytes = new Uint8Array(size);
        this.view = new DataView(this.bytes.buffer);
        this.length = 0;
    }

    /** @param {number} count */
    #reserve(count) {
        if (this.length + count <= this.bytes.length) return;
        const bytes = new Uint8Array(Math.max(this.bytes.length * 2, this.length + count));
        bytes.set(this.bytes);
        this.bytes = bytes;
        this.view = new DataView(bytes.buffer);
    }

    /** @param {...number} values */
    u8(...values) {
        this.#reserve(values.length);
        for (const value of values) this.bytes[this.length++] = value;
        return this;
    }

    /** @param {...number} values */
    u16(...values) {
        this.#reserve(values.length * 2);
        for (const value of values) {
            this.view.setUint16(this.length, value);
            this.length += 2;
        }
        return this;
    }

    /** @param {...number} values */
    u32(...values) {
        this.#reserve(values.length * 4);
        for (const value of values) {
            this.view.setUint32(this.length, value);
            this.length += 4;
        }
        return this;
    }

    /** @param {number} value */
    u64(value) {
        return this.u32(Math.floor(value / 2 ** 32), value % 2 ** 32);
    }

    /** @param {string} text */
    text(text) {
        return this.u8(...[...text].map(character => character.charCodeAt(0)));
    }

    /** @param {Uint8Array} bytes */
    raw(bytes) {
        this.#reserve(bytes.length);
        this.bytes.set(bytes, this.length);
        this.length += bytes.length;
        return this;
    }

    /** @param {number} count */
    zeros(count) {
        this.#reserve(count);
        this.bytes.fill(0, this.length, this.length + count);
        this.length += count;
        return this;
    }

    /**
     * @param {string} type
     * @param {(writer: Writer) => void} content
     */
    box(type, content) {
        const start = this.length;
        this.u32(0).text(type);
        content(this);
        this.view.setUint32(start, this.length - start);
        return this;
    }

    /**
     * @param {string} type
     * @param {number} version
     * @param {number} flags
     * @param {(writer: Writer) => void} content
     */
    full(type, version, flags, content) {
        return this.box(type, writer => content(writer.u32((version << 24 | flags) >>> 0)));
    }

    finish() {
        return this.bytes.slice(0, this.length);
    }
}

/**
 * `ftyp` and `moov` of one track.
 * @param {TrackConfiguration} track
 * @returns {Uint8Array}
 */
export function initSegment(track) {
    return new Writer(1024)
        .box("ftyp", w => w.text("iso6").u32(0).text("iso6iso5mp41"))
        .box("moov", w => {
            w.full("mvhd", 0, 0, w => matrix(w.u32(0, 0, 1000, 0, 0x0001_0000).u16(0x0100, 0).u32(0,
                0)).zeros(24).u32(2));
            w.box("trak", w => writeTrack(w, track));
            w.box("mvex", w => w.full("trex", 0, 0, w => w.u32(1, 1, 0, 0, 0)));
        })
        .finish();
}

/** @param {Writer} w */
function matrix(w) {
    return w.u32(0x0001_0000, 0, 0, 0, 0x0001_0000, 0, 0, 0, 0x4000_0000);
}

/**
 * @param {Writer} w
 * @param {TrackConfiguration} track
 */
function writeTrack(w, track) {
    const { isVideo } = track;
    w.full("tkhd", 0, 3, w => {
        matrix(w.u32(0, 0, 1, 0, 0, 0, 0).u16(0, isVideo ? 0 : 1, isVideo ? 0 : 0x0100, 0));
        w.u32(isVideo ? track.first << 16 : 0, isVideo ? track.second << 16 : 0);
    });
    w.box("mdia", w => {
        w.full("mdhd", 0, 0, w => w.u32(0, 0, timescale, 0).u16(0x55c4, 0));
        w.full("hdlr", 0, 0, w => w.u32(0).text(isVideo ? "vide" : "soun").zeros(12).text(isVideo ? "video\0"
            : "sound\0"));
        w.box("minf", w => {
            if (isVideo) w.full("vmhd", 0, 1, w => w.zeros(8));
            else w.full("smhd", 0, 0, w => w.u32(0));
            w.box("dinf", w => w.full("dref", 0, 0, w => w.u32(1).full("url ", 0, 1, () => {})));
            w.box("stbl", w => {
                w.full("stsd", 0, 0, w => (isVideo ? writePicture(w.u32(1), track) : writeSound(w.u32(1), track)));
                w.full("stts", 0, 0, w => w.u32(0));
                w.full("stsc", 0, 0, w => w.u32(0));
                w.full("stsz", 0, 0, w => w.u32(0, 0));
                w.full("stco", 0, 0, w => w.u32(0));
            });
        });
    });
}

/**
 * @param {Writer} w
 * @param {TrackConfiguration} track
 */
function writePicture(w, track) {
    const isH265 = track.codec === Codec.h265;
    w.box(isH265 ? "hvc1" : "avc1", w => {
        w.zeros(6).u16(1).zeros(16).u16(Math.min(track.first, 65_535), Math.min(track.second, 65_535));
        w.u32(0x0048_0000, 0x0048_0000, 0).u16(1).zeros(32).u16(24, 0xffff);
        w.box(isH265 ? "hvcC" : "avcC", w => w.raw(track.extra));
    });
}

/**
 * @param {Writer} w
 * @param {TrackConfiguration} track
 */
function writeSound(w, track) {
    const isOpus = track.codec === Codec.opus;
    const rate = isOpus ? 48_000 : track.first;
    w.box(isOpus ? "Opus" : "mp4a", w => {
        w.zeros(6).u16(1).zeros(8).u16(track.second, 16).u32(0).u32(rate < 65_536 ? rate * 65_536 : 0);
        if (isOpus) writeOpus(w, track);
        else w.full("esds", 0, 0, w => w.u8(...streamDescriptor(track)));
    });
}

/**
 * `dOps`, from the OpusHead of the track if there is one (RFC 7845 §5.1), whose numbers are little endian.
 * @param {Writer} w
 * @param {TrackConfiguration} track
 */
function writeOpus(w, track) {
    const head = track.extra;
    w.box("dOps", w => {
        w.u8(0);
        if (head.length < 19) return w.u8(track.second).u16(312).u32(track.first || 48_000).u16(0).u8(0);
        return w.u8(head[9], head[11], head[10], head[15], head[14], head[13], head[12], head[17], head[16])
            .raw(head.subarray(18));
    });
}

/**
 * ISO/IEC 14496-1 §7.2.6.5.
 * @param {TrackConfiguration} track
 */
function streamDescriptor(track) {
    /** @type {(tag: number, content: number[]) => number[]} */
    const descriptor = (tag, content) => {
        const count = content.length;
        return [tag, 0x80 | count >> 21 & 127, 0x80 | count >> 14 & 127, 0x80 | count >> 7 & 127, count & 127,
            ...content];
    };
    const decoder = [track.codec === Codec.mp3 ? 0x6b : 0x40, 0x15, ...new Array(11).fill(0)];
    if (track.extra.length > 0) decoder.push(...descriptor(5, [...track.extra]));
    return descriptor(3, [0, 1, 0, ...descriptor(4, decoder), ...descriptor(6, [2])]);
}

/**
 * A sample of a fragment.
 * @typedef {object} Sample
 * @property {number} duration in microseconds
 * @property {number} composition presentation time minus decode time, in microseconds
 * @property {boolean} isKey
 * @property {Uint8Array} payload
 */

/**
 * One `moof` and `mdat`.
 *
 * @param {number} sequence
 * @param {number} time the decode time of the first sample, in microseconds
 * @param {Sample[]} samples
 * @returns {Uint8Array}
 */
export function fragment(sequence, time, samples) {
    const size = samples.reduce((sum, sample) => sum + sample.payload.length, 0);
    const writer = new Writer(128 + 16 * samples.length + size);
    let offset = 0;
    writer.box("moof", w => {
        w.full("mfhd", 0, 0, w => w.u32(sequence));
        w.box("traf", w => {
            // Data offsets count from the moof.
            w.full("tfhd", 0, 0x02_0000, w => w.u32(1));
            w.full("tfdt", 1, 0, w => w.u64(time));
            w.full("trun", 1, 0xf01, w => {
                w.u32(samples.length);
                offset = w.length;
                w.u32(0);
                for (const sample of samples) {
                    const flags = sample.isKey ? 0x0200_0000 : 0x0101_0000;
                    w.u32(sample.duration, sample.payload.length, flags, sample.composition >>> 0);
                }
            });
        });
    });
    writer.view.setUint32(offset, writer.length + 8);
    writer.box("mdat", w => samples.forEach(sample => w.raw(sample.payload)));
    return writer.finish();
}

/**
 * The time line of one track.
 *
 * A browser drops pictures until the next key frame if a decode time is more than twice the last duration after the one
 * before. So a sample begins where the one before ends, and its duration is corrected by what the time line is early or
 * late. A jump of the publisher's clock, of more than `jumpMax` or backwards, continues with the usual distance.
 */
export class TimeLine {
    /**
     * @param {number} usual the distance of two samples, in microseconds, until one is measured
     * @param {{value: number | null}} origin the decode time at 0 of the file, which the tracks of a stream share
     */
    constructor(usual, origin = { value: null }) {
        this.usual = Math.max(1000, Math.min(1_000_000, Math.round(usual)));
        this.origin = origin;
        this.next = 0;
        /** @type {number | null} */
        this.last = null;
    }

    /**
     * Places a sample.
     *
     * @param {number} decode its decode time in microseconds
     * @returns {{time: number, duration: number}}
     */
    place(decode) {
        if (this.origin.value === null) this.origin.value = decode;
        if (this.last === null) {
            this.next = Math.max(0, decode - this.origin.value);
        } else {
            const step = decode - this.last;
            if (step <= 0 || step > jumpMax) this.origin.value = decode - this.next;
            else if (step < 1_000_000) this.usual = Math.round((this.usual * 7 + step) / 8);
        }
        this.last = decode;
        const time = this.next;
        const late = decode - this.origin.value - time;
        const duration = Math.round(Math.max(this.usual / 2, Math.min(this.usual + late, jumpMax)));
        this.next = time + duration;
        return { time, duration };
    }
}
const jumpMax = 30_000_000;
