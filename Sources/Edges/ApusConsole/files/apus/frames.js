// The media frames of a stream, as docs/reference/media-frames.md has them: a parser and a maker.
// A message of the WebSocket has whole link frames, one after another. All numbers are big endian.

/** Flags of a media header. */
export const Flag = Object.freeze({
    key: 1, configuration: 2, discardable: 4, repeated: 8, endOfEpoch: 16, continued: 32, continuation: 64,
});

/** Numbers of codecs in a track configuration. */
export const Codec = Object.freeze({
    h264: 1, h265: 2, aac: 16, opus: 17, pcma: 18, pcmu: 19, amrNarrow: 20, amrWide: 21, mp3: 22, l16: 23,
});

/** The names of codecs, for people. */
export const codecNames = Object.freeze({
    1: "H.264", 2: "H.265", 16: "AAC", 17: "Opus", 18: "G.711 A-law", 19: "G.711 µ-law", 20: "AMR-NB", 21: "AMR-WB",
    22: "MP3", 23: "L16",
});

export const linkHeaderBytes = 12;
export const mediaHeaderBytes = 40;
/** The most bytes of media in one frame. */
export const payloadBytesMax = 4_194_048;
/** The most bytes of a picture that is sent in parts. */
export const joinedBytesMax = 8_323_072;
/** The most frames in one message. */
export const framesPerMessageMax = 65_536;
const mediaKind = 0x20;
const tracksMax = 8;
const extraBytesMax = 16_384;
const timeMax = 2 ** 52;
const deltaMax = 60_000_000;

/** An error of a frame that violates the format. */
export class FrameError extends Error {
    /** @param {string} message */
    constructor(message) {
        super(message);
        this.name = "FrameError";
    }
}

/**
 * A frame of a stream. Times are in microseconds of the publisher's clock.
 * @typedef {object} MediaFrame
 * @property {number} stream the number of the stream on this connection
 * @property {number} term
 * @property {number} epoch
 * @property {number} sequence
 * @property {number} pts
 * @property {number} delta decode time minus presentation time
 * @property {number} capture the wall clock at capture in ms, modulo 2^32; 0 if it is unknown
 * @property {number} flags
 * @property {number} track
 * @property {number} rendition
 * @property {Uint8Array} payload a view of the message, or joined parts
 */

/**
 * The frames of one binary message.
 *
 * @param {ArrayBuffer | Uint8Array} message
 * @returns {MediaFrame[]}
 * @throws {FrameError} if the message is not a sequence of whole, valid media frames
 */
export function parseFrames(message) {
    const bytes = message instanceof Uint8Array ? message : new Uint8Array(message);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    /** @type {MediaFrame[]} */
    const frames = [];
    let at = 0;
    while (at < bytes.length) {
        if (bytes.length - at < linkHeaderBytes + mediaHeaderBytes) throw new FrameError("a frame is cut off");
        if (frames.length >= framesPerMessageMax) throw new FrameError("a message has too many frames");
        const end = at + 4 + view.getUint32(at);
        if (end > bytes.length) throw new FrameError("a frame is longer than its message");
        if (view.getUint8(at + 4) !== mediaKind || view.getUint8(at + 5) !== 0 || view.getUint16(at + 6) !== 0) {
            throw new FrameError("a binary message has a frame that is not a media frame");
        }
        frames.push(parseMedia(view, bytes, at + linkHeaderBytes, end, view.getUint32(at + 8)));
        at = end;
    }
    return frames;
}

/**
 * @param {DataView} view
 * @param {Uint8Array} bytes
 * @param {number} at
 * @param {number} end
 * @param {number} stream
 * @returns {MediaFrame}
 */
function parseMedia(view, bytes, at, end, stream) {
    if (end - at < mediaHeaderBytes) throw new FrameError("a frame has no media header");
    const length = view.getUint32(at + 28);
    if (length > payloadBytesMax) throw new FrameError("a frame has too many bytes");
    if (at + mediaHeaderBytes + length !== end) throw new FrameError("the length of a payload is wrong");
    const version = view.getUint8(at + 39);
    if (version !== 1) throw new FrameError(`media frames of version ${version} are not supported`);
    const sequence = safe(view.getBigUint64(at + 8), "a sequence");
    const pts = safe(view.getBigInt64(at + 16), "a time");
    const delta = view.getInt32(at + 24);
    if (Math.abs(pts) > timeMax || Math.abs(delta) > deltaMax) throw new FrameError("a time is out of range");
    return {
        stream, term: view.getUint32(at), epoch: view.getUint32(at + 4), sequence, pts, delta,
        capture: view.getUint32(at + 32), flags: view.getUint8(at + 36), track: view.getUint8(at + 37),
        rendition: view.getUint8(at + 38),
        payload: bytes.subarray(at + mediaHeaderBytes, end),
    };
}

/**
 * @param {bigint} value
 * @param {string} what
 */
function safe(value, what) {
    const number = Number(value);
    if (!Number.isSafeInteger(number)) throw new FrameError(`${what} is out of range`);
    return number;
}

/**
 * The bytes of one frame, with its link header.
 *
 * @param {Omit<MediaFrame, "term"> & {term?: number}} frame
 * @returns {Uint8Array}
 */
export function makeFrame(frame) {
    const length = frame.payload.length;
    if (length > payloadBytesMax) throw new FrameError("a frame has too many bytes");
    const bytes = new Uint8Array(linkHeaderBytes + mediaHeaderBytes + length);
    const view = new DataView(bytes.buffer);
    view.setUint32(0, bytes.length - 4);
    view.setUint8(4, mediaKind);
    view.setUint32(8, frame.stream);
    const at = linkHeaderBytes;
    view.setUint32(at, frame.term ?? 0);
    view.setUint32(at + 4, frame.epoch);
    view.setBigUint64(at + 8, BigInt(frame.sequence));
    view.setBigInt64(at + 16, BigInt(Math.round(frame.pts)));
    view.setInt32(at + 24, frame.delta);
    view.setUint32(at + 28, length);
    view.setUint32(at + 32, frame.capture);
    view.setUint8(at + 36, frame.flags);
    view.setUint8(at + 37, frame.track);
    view.setUint8(at + 38, frame.rendition);
    view.setUint8(at + 39, 1);
    bytes.set(frame.payload, at + mediaHeaderBytes);
    return bytes;
}

/**
 * What a track has.
 * @typedef {object} TrackConfiguration
 * @property {number} codec
 * @property {number} trackCount
 * @property {number} first width, or sample rate
 * @property {number} second height, or channels
 * @property {number} third frames a second times 1000, or samples a packet; 0 if it is unknown
 * @property {Uint8Array} extra
 * @property {boolean} isVideo
 */

/**
 * @param {Uint8Array} payload of a frame with the flag `configuration`
 * @returns {TrackConfiguration}
 */
export function parseConfiguration(payload) {
    if (payload.length < 18) throw new FrameError("a track configuration is cut off");
    const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
    if (view.getUint8(0) !== 1) throw new FrameError("the version of a track configuration is not supported");
    const codec = view.getUint8(1);
    const trackCount = view.getUint8(2);
    if (!(codec in codecNames)) throw new FrameError(`codec ${codec} is unknown`);
    if (trackCount > tracksMax) throw new FrameError("a stream has too many tracks");
    const length = view.getUint16(16);
    if (length > extraBytesMax || payload.length !== 18 + length) {
        throw new FrameError("the length of a track configuration is wrong");
    }
    return {
        codec, trackCount, first: view.getUint32(4), second: view.getUint32(8), third: view.getUint32(12),
        extra: payload.slice(18), isVideo: codec < 16,
    };
}

/**
 * @param {Omit<TrackConfiguration, "isVideo">} track
 * @returns {Uint8Array}
 */
export function makeConfiguration(track) {
    if (track.extra.length > extraBytesMax) throw new FrameError("a decoder record is too long");
    const bytes = new Uint8Array(18 + track.extra.length);
    const view = new DataView(bytes.buffer);
    view.setUint8(0, 1);
    view.setUint8(1, track.codec);
    view.setUint8(2, track.trackCount);
    view.setUint32(4, track.first);
    view.setUint32(8, track.second);
    view.setUint32(12, track.third);
    view.setUint16(16, track.extra.length);
    bytes.set(track.extra, 18);
    return bytes;
}

/**
 * True if both describe the same format, so a decoder can continue.
 * @param {TrackConfiguration} left
 * @param {TrackConfiguration} right
 */
export function isSameFormat(left, right) {
    return left.codec === right.codec && left.first === right.first && left.second === right.second
        && left.extra.length === right.extra.length && left.extra.every((byte, index) => byte === right.extra[index]);
}

/** Joins the frames of a picture that was sent in parts. A picture of which a part is missing is dropped. */
export class FrameJoiner {
    constructor() {
        /** @type {MediaFrame[]} */
        this.parts = [];
        this.bytes = 0;
        /** Parts that were dropped. */
        this.dropped = 0;
    }

    /**
     * @param {MediaFrame} frame
     * @returns {MediaFrame | null} null while parts are missing
     */
    add(frame) {
        if (frame.flags & (Flag.configuration | Flag.repeated | Flag.endOfEpoch)) return frame;
        const parts = this.parts;
        this.parts = [];
        if (!(frame.flags & Flag.continuation)) {
            this.dropped += parts.length;
            if (!(frame.flags & Flag.continued)) return frame;
            this.parts = [frame];
            this.bytes = frame.payload.length;
            return null;
        }
        const last = parts[parts.length - 1];
        const fits = last !== undefined && last.track === frame.track && last.epoch === frame.epoch
            && last.sequence + 1 === frame.sequence && this.bytes + frame.payload.length <= joinedBytesMax;
        if (!fits) {
            this.dropped += parts.length + 1;
            return null;
        }
        parts.push(frame);
        this.bytes += frame.payload.length;
        if (frame.flags & Flag.continued) {
            this.parts = parts;
            return null;
        }
        const payload = new Uint8Array(this.bytes);
        let at = 0;
        for (const part of parts) {
            payload.set(part.payload, at);
            at += part.payload.length;
        }
        return { ...parts[0], sequence: frame.sequence, flags: parts[0].flags & ~Flag.continued, payload };
    }
}

/**
 * Which frames of a stream are new: after another node takes over, it may send frames again.
 *
 * A frame is new if its position is after the last one. A lower term than the highest comes from a node that was
 * replaced.
 */
export class PositionFilter {
    constructor() {
        /** @type {{epoch: number, sequence: number} | null} */
        this.last = null;
        this.term = 0;
        /** Frames that came again. */
        this.repeated = 0;
        /** Frames that are missing between two that came. */
        this.missing = 0;
    }

    /**
     * @param {MediaFrame} frame
     * @returns {{isNew: boolean, hasGap: boolean}}
     */
    add(frame) {
        if (frame.flags & Flag.repeated) return { isNew: true, hasGap: false };
        const last = this.last;
        if (frame.term < this.term
            || (last && (frame.epoch < last.epoch || (frame.epoch === last.epoch
            && frame.sequence <= last.sequence)))) {
            this.repeated += 1;
            return { isNew: false, hasGap: false };
        }
        let hasGap = false;
        if (last && frame.epoch === last.epoch && frame.sequence > last.sequence + 1) {
            hasGap = true;
            this.missing += frame.sequence - last.sequence - 1;
        }
        this.term = frame.term;
        this.last = { epoch: frame.epoch, sequence: frame.sequence };
        return { isNew: true, hasGap };
    }
}
