import assert from "node:assert/strict";
import test from "node:test";
import {
    Codec, Flag, FrameError, FrameJoiner, linkHeaderBytes, makeConfiguration, makeFrame, mediaHeaderBytes,
        parseConfiguration,
    parseFrames, PositionFilter,
} from "../../Sources/Edges/ApusConsole/files/apus/frames.js";
import { seeded } from "./random.mjs";

const frame = (values = {}) => ({
    stream: 3, term: 2, epoch: 7, sequence: 41, pts: -5_000_000, delta: -40_000, capture: 123, flags: Flag.key,
        track: 1,
    rendition: 0, payload: new Uint8Array([1, 2, 3]), ...values,
});
const joined = (...frames) => {
    const parts = frames.map(makeFrame);
    const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
        bytes.set(part, at);
        at += part.length;
    }
    return bytes;
};

test("A frame is laid out as in docs/reference/media-frames.md", () => {
    const bytes = makeFrame(frame());
    const view = new DataView(bytes.buffer);
    assert.equal(bytes.length, linkHeaderBytes + mediaHeaderBytes + 3);
    assert.equal(view.getUint32(0), bytes.length - 4);
    assert.deepEqual([...bytes.slice(4, 12)], [0x20, 0, 0, 0, 0, 0, 0, 3]);
    assert.deepEqual([view.getUint32(12), view.getUint32(16)], [2, 7]);
    assert.equal(view.getBigUint64(20), 41n);
    assert.equal(view.getBigInt64(28), -5_000_000n);
    assert.deepEqual([view.getInt32(36), view.getUint32(40), view.getUint32(44)], [-40_000, 3, 123]);
    assert.deepEqual([...bytes.slice(48)], [1, 1, 0, 1, 1, 2, 3]);
});

test("Frames that were made are read again, one or many in a message", () => {
    const random = seeded(1);
    for (let round = 0; round < 200; round++) {
        const frames = Array.from({ length: 1 + random(5) }, () => frame({
            stream: random(1000), epoch: random(2 ** 31), sequence: random(2 ** 40), pts: random(2 ** 40) - 2 ** 39,
            delta: random(1000) - 500, flags: random(128), track: random(8),
                payload: new Uint8Array(random(300)).fill(round),
        }));
        assert.deepEqual(parseFrames(joined(...frames)).map(read =>
            ({ ...read, payload: new Uint8Array(read.payload) })), frames);
    }
});

test("A message that is cut off at any byte is refused, except between two frames", () => {
    const one = makeFrame(frame());
    const bytes = joined(frame(), frame());
    for (let length = 0; length < bytes.length; length++) {
        const read = () => parseFrames(bytes.slice(0, length));
        if (length === 0 || length === one.length) read();
        else assert.throws(read, FrameError, `at ${length}`);
    }
});

test("A flipped bit is refused or changes one frame: nothing else is thrown, and nothing is read beyond the message",
    () => {
    const bytes = joined(frame(), frame({ sequence: 42 }));
    for (let bit = 0; bit < bytes.length * 8; bit++) {
        const broken = bytes.slice();
        broken[bit >> 3] ^= 1 << (bit & 7);
        try {
            for (const read of parseFrames(broken)) assert.ok(read.payload.length <= bytes.length);
        } catch (error) {
            assert.ok(error instanceof FrameError, `${error}`);
        }
    }
});

test("Lies are refused: lengths, kinds, versions, numbers and times out of range", () => {
    const change = (offset, ...values) => {
        const bytes = makeFrame(frame());
        bytes.set(values, offset);
        return () => parseFrames(bytes);
    };
    const all = {
        "a length beyond the message": change(0, 0x7f), "another kind": change(4, 0x12),
            "flags of a link frame": change(5, 1),
        "a method": change(7, 1), "a payload length beyond the frame": change(40, 0xff),
            "a shorter payload length": change(43, 1),
        "another version": change(51, 2), "a sequence beyond 2^53": change(20, 0x3f), "a time beyond 2^52": change(28,
            0x3f),
        "a distance beyond 60 s": change(36, 0x7f),
    };
    for (const [name, read] of Object.entries(all)) assert.throws(read, FrameError, name);
});

test("Track configurations are read as they were made, and refused if they lie", () => {
    const track = { codec: Codec.h264, trackCount: 2, first: 1280, second: 720, third: 25_000,
        extra: new Uint8Array([1, 100, 0, 31]) };
    const bytes = makeConfiguration(track);
    assert.deepEqual(parseConfiguration(bytes), { ...track, isVideo: true });
    for (let length = 0; length < bytes.length; length++) assert.throws(() =>
        parseConfiguration(bytes.slice(0, length)), FrameError);
    for (const [offset, value] of [[0, 2], [1, 3], [2, 9], [16, 0xff]]) {
        const broken = bytes.slice();
        broken[offset] = value;
        assert.throws(() => parseConfiguration(broken), FrameError, `at ${offset}`);
    }
});

test("Parts of a picture are joined, and a picture without one of them is dropped", () => {
    const part = (sequence, flags, byte) => frame({ sequence, flags, payload: new Uint8Array([byte]) });
    const joiner = new FrameJoiner();
    assert.equal(joiner.add(part(1, Flag.key | Flag.continued, 1)), null);
    assert.equal(joiner.add(part(2, Flag.continued | Flag.continuation, 2)), null);
    const whole = joiner.add(part(3, Flag.continuation, 3));
    assert.deepEqual([...whole.payload], [1, 2, 3]);
    assert.equal(whole.flags, Flag.key);
    assert.equal(joiner.add(part(4, Flag.continued, 1)), null);
    assert.equal(joiner.add(part(6, Flag.continuation, 2)), null);
    assert.equal(joiner.dropped, 2);
    assert.equal(joiner.add(part(7, 0, 9)).payload[0], 9);
    assert.equal(joiner.add(part(8, Flag.continued, 1)), null);
    assert.equal(joiner.add(part(9, 0, 5)).sequence, 9);
});

test("Each position is delivered once and in order, whatever the next node sends again", () => {
    const random = seeded(2);
    for (let seed = 0; seed < 100; seed++) {
        const filter = new PositionFilter();
        const seen = [];
        let next = 0;
        while (seen.length < 200) {
            // Another node begins at an earlier position, with a higher term.
            if (random(10) === 0) next = Math.max(0, next - random(20));
            const position = next++;
            if (filter.add(frame({ term: 1, sequence: position })).isNew) seen.push(position);
        }
        assert.deepEqual(seen, seen.map((_, index) => index));
        assert.equal(filter.missing, 0);
    }
});

test("A lower term, an earlier epoch and a gap are recognized; a repeated configuration is outside of the sequence",
    () => {
    const filter = new PositionFilter();
    assert.deepEqual(filter.add(frame({ term: 5, sequence: 10 })), { isNew: true, hasGap: false });
    assert.equal(filter.add(frame({ term: 4, sequence: 11 })).isNew, false);
    assert.equal(filter.add(frame({ term: 5, epoch: 6, sequence: 99 })).isNew, false);
    assert.equal(filter.add(frame({ flags: Flag.repeated | Flag.configuration, sequence: 1 })).isNew, true);
    assert.deepEqual(filter.add(frame({ term: 5, sequence: 13 })), { isNew: true, hasGap: true });
    assert.equal(filter.missing, 2);
    assert.deepEqual(filter.add(frame({ term: 5, epoch: 8, sequence: 0 })), { isNew: true, hasGap: false });
});
