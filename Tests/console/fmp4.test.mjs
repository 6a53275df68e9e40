import assert from "node:assert/strict";
import test from "node:test";
import { codecName, decodePlain } from "../../Sources/Edges/ApusConsole/files/apus/codecs.js";
import { fragment, initSegment, TimeLine } from "../../Sources/Edges/ApusConsole/files/apus/fmp4.js";
import { Codec } from "../../Sources/Edges/ApusConsole/files/apus/frames.js";
import { seeded } from "./random.mjs";

/** The boxes of a file; each length must be within the one that holds it. */
function boxes(bytes, start = 0, end = bytes.length, path = "") {
    const containers = new Set(["moov", "trak", "mdia", "minf", "stbl", "dinf", "mvex", "moof", "traf"]);
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    const found = [];
    for (let at = start; at < end;) {
        const length = view.getUint32(at);
        const type = String.fromCharCode(...bytes.slice(at + 4, at + 8));
        assert.ok(length >= 8 && at + length <= end, `${path}/${type} of ${length} at ${at}`);
        found.push({ path: `${path}/${type}`, at, length });
        if (containers.has(type)) found.push(...boxes(bytes, at + 8, at + length, `${path}/${type}`));
        at += length;
    }
    return found;
}

const avcC = new Uint8Array([1, 0x64, 0, 0x1f, 0xff, 0xe1, 0, 1, 0x67, 1, 0, 1, 0x68]);
const picture = { codec: Codec.h264, trackCount: 1, first: 1280, second: 720, third: 25_000, extra: avcC,
    isVideo: true };
const sound = { codec: Codec.aac, trackCount: 1, first: 48_000, second: 2, third: 1024,
    extra: new Uint8Array([0x11, 0x90]), isVideo: false };

test("The head of a picture track and of sound tracks has all boxes, with right lengths", () => {
    for (const track of [picture, sound, { ...sound, codec: Codec.opus, extra: new Uint8Array(0) }]) {
        const bytes = initSegment(track);
        const paths = boxes(bytes).map(box => box.path);
        for (const path of ["/ftyp", "/moov/mvhd", "/moov/trak/tkhd", "/moov/trak/mdia/mdhd",
            "/moov/trak/mdia/minf/stbl/stsd", "/moov/mvex/trex"]) {
            assert.ok(paths.includes(path), path);
        }
        const text = String.fromCharCode(...bytes);
        assert.ok(text.includes({ 1: "avcC", 16: "esds", 17: "dOps" }[track.codec]));
    }
});

test("The data offset of a fragment is where its samples are, and the samples are as they were given", () => {
    const random = seeded(3);
    const samples = Array.from({ length: 7 }, (_, index) => ({
        duration: 40_000, composition: index === 3 ? -40_000 : 0, isKey: index === 0,
            payload: new Uint8Array(1 + random(5000)).fill(index + 1),
    }));
    const bytes = fragment(9, 2 ** 33 + 5, samples);
    const view = new DataView(bytes.buffer);
    const found = boxes(bytes);
    const at = path => found.find(box => box.path === path).at;
    const trun = at("/moof/traf/trun");
    let place = view.getUint32(trun + 16);
    assert.equal(place, at("/mdat") + 8);
    assert.equal(view.getBigUint64(at("/moof/traf/tfdt") + 12), 2n ** 33n + 5n);
    assert.equal(view.getUint32(at("/moof/mfhd") + 12), 9);
    samples.forEach((sample, index) => {
        const row = trun + 20 + index * 16;
        assert.equal(view.getUint32(row), sample.duration);
        assert.equal(view.getUint32(row + 4), sample.payload.length);
        assert.equal(view.getUint32(row + 8) === 0x0200_0000, sample.isKey);
        assert.equal(view.getInt32(row + 12), sample.composition);
        assert.deepEqual(bytes.slice(place, place + sample.payload.length), sample.payload);
        place += sample.payload.length;
    });
    assert.equal(place, bytes.length);
});

test("A time line has no hole and no step back, and stays within half a sample of the publisher's clock", () => {
    const random = seeded(4);
    for (let seed = 0; seed < 100; seed++) {
        const line = new TimeLine(40_000);
        let decode = random(1_000_000);
        const origin = decode;
        let end = 0;
        for (let index = 0; index < 500; index++) {
            const { time, duration } = line.place(decode);
            assert.equal(time, end);
            assert.ok(duration > 0);
            end = time + duration;
            if (index > 50) assert.ok(Math.abs(time - (decode - origin)) <= 90_000, `${time} of ${decode - origin}`);
            decode += 40_000 + random(20_000) - 10_000;
        }
    }
});

test("A pause is as long as it was; a jump of the clock is not", () => {
    const line = new TimeLine(40_000);
    line.place(0);
    line.place(40_000);
    line.place(5_000_000);
    assert.ok(Math.abs(line.place(5_040_000).time - 5_040_000) < 100_000);
    const before = line.next;
    assert.equal(line.place(90_000_000_000).time, before);
    assert.ok(line.place(90_000_040_000).duration < 200_000);
    const later = line.next;
    assert.equal(line.place(7).time, later);
});

test("Two tracks share one origin, so sound that begins later is later", () => {
    const origin = { value: null };
    const pictures = new TimeLine(40_000, origin);
    const sounds = new TimeLine(21_333, origin);
    pictures.place(10_000_000);
    assert.equal(sounds.place(10_300_000).time, 300_000);
});

test("Codec names are those of RFC 6381", () => {
    assert.equal(codecName(picture), "avc1.64001f");
    assert.equal(codecName(sound), "mp4a.40.2");
    assert.equal(codecName({ ...sound, codec: Codec.amrNarrow }), null);
    const hvcC = new Uint8Array([1, 1, 0x60, 0, 0, 0, 0x90, 0, 0, 0, 0, 0, 93, ...new Array(10).fill(0)]);
    assert.equal(codecName({ ...picture, codec: Codec.h265, extra: hvcC }), "hvc1.1.6.L93.90");
    assert.equal(codecName({ ...picture, extra: new Uint8Array(3) }), null);
});

test("G.711 and L16 are decoded to the values of the recommendation", () => {
    const of = (codec, ...bytes) => [...decodePlain({ ...sound, codec, first: 8000, second: 1 },
        new Uint8Array(bytes))[0]].map(value => Math.round(value * 32768) + 0);
    // ITU-T G.711: the smallest and the largest magnitudes of both laws.
    assert.deepEqual(of(Codec.pcmu, 0xff, 0x7f, 0x80, 0x00), [0, 0, 32124, -32124]);
    assert.deepEqual(of(Codec.pcma, 0xd5, 0x55, 0xaa, 0x2a), [8, -8, 32256, -32256]);
    assert.deepEqual(of(Codec.l16, 0x7f, 0xff, 0x80, 0x00), [32767, -32768]);
    assert.equal(decodePlain(sound, new Uint8Array(4)), null);
    assert.deepEqual(decodePlain({ ...sound, codec: Codec.l16, second: 2 },
        new Uint8Array([1, 0, 2, 0, 3, 0, 4, 0])).map(samples => samples.length), [2, 2]);
});
