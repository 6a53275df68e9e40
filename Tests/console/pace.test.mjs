import assert from "node:assert/strict";
import test from "node:test";
import { Backoff, elementPace, Pacer, rateFor, rateMax,
    rateMin } from "../../Sources/Edges/ApusConsole/files/apus/pace.js";
import { seeded } from "./random.mjs";

test("The rate is within 0.95 and 1.05, grows with the distance, and is 1 near the target", () => {
    assert.equal(rateFor(0), 1);
    assert.equal(rateFor(10), 1);
    assert.equal(rateFor(10_000), rateMax);
    assert.equal(rateFor(-10_000), rateMin);
    for (let behind = -400; behind < 400; behind++) assert.ok(rateFor(behind + 1) >= rateFor(behind));
});

test("An element that is far behind jumps, one that is a little behind plays faster", () => {
    assert.deepEqual(elementPace(3, 0.1), { rate: 1, jump: true });
    const { rate, jump } = elementPace(0.5, 0.1);
    assert.ok(!jump && rate > 1 && rate <= rateMax);
    assert.ok(elementPace(0.01, 0.3).rate < 1);
});

/** Plays a stream of 25 frames a second whose way takes `way(index)` milliseconds. */
function play(pacer, count, way, start = 0, from = 0) {
    const delays = [];
    let before = 0;
    for (let index = from; index < from + count; index++) {
        const pts = index * 40;
        const arrival = Math.max(before, start + pts + way(index));
        before = arrival;
        pacer.arrived(pts, arrival);
        delays.push(pacer.due(pts) - (start + pts));
    }
    return delays;
}

test("A smooth stream is shown when it arrives", () => {
    const delays = play(new Pacer(), 200, () => 20);
    for (const delay of delays) assert.ok(Math.abs(delay - 20) < 1, `${delay}`);
});

test("The burst of a long group of pictures does not delay what follows", () => {
    const pacer = new Pacer();
    // Ten seconds of pictures come at once, and then one each 40 ms.
    const delays = play(pacer, 500, index => (index < 250 ? (250 - index) * 40 : 20));
    assert.ok(Math.abs(delays[255] - 20) < 5, `${delays[255]}`);
    assert.ok(pacer.bufferMs < 20);
});

test("Jitter makes a buffer that holds it, and quiet takes it away again, by 5 % at most", () => {
    const pacer = new Pacer();
    const random = seeded(5);
    play(pacer, 100, () => 20);
    const shaky = play(pacer, 500, () => 20 + random(80), 0, 100);
    assert.ok(pacer.bufferMs >= 60 && pacer.bufferMs <= 90, `${pacer.bufferMs}`);
    assert.ok(shaky[499] >= 75 && shaky[499] <= 115, `${shaky[499]}`);
    for (let index = 101; index < shaky.length; index++) assert.ok(Math.abs(shaky[index] - shaky[index - 1]) <= 0.05 * 130);
    const quiet = play(pacer, 1000, () => 20, 0, 600);
    assert.ok(quiet[999] < 30, `${quiet[999]}`);
    assert.equal(pacer.jumps, 0);
});

test("One outage of half a second does not delay what follows by more than a fraction of it", () => {
    const pacer = new Pacer();
    play(pacer, 300, () => 20);
    const delays = play(pacer, 300, index => (index < 313 ? (313 - index) * 40 + 20 : 20), 0, 300);
    assert.ok(Math.max(...delays) < 200, `${Math.max(...delays)}`);
    assert.ok(delays[299] < 60, `${delays[299]}`);
    assert.equal(pacer.jumps, 0);
});

test("A clock that jumps by minutes is followed at once", () => {
    const pacer = new Pacer();
    play(pacer, 200, () => 20);
    pacer.arrived(600_000, 200 * 40 + 20);
    assert.ok(Math.abs(pacer.due(600_000) - (200 * 40 + 20)) < 100);
    assert.equal(pacer.jumps, 1);
});

test("A slow clock of the camera is followed for hours without a jump", () => {
    const pacer = new Pacer();
    let last = 0;
    for (let index = 0; index < 90_000; index++) {
        const pts = index * 40;
        const arrival = index * 40.004 + 20;
        pacer.arrived(pts, arrival);
        last = pacer.due(pts) - arrival;
    }
    assert.ok(Math.abs(last) < 20, `${last}`);
    assert.equal(pacer.jumps, 0);
});

test("Waits double up to the bound, with jitter of a half", () => {
    const backoff = new Backoff({ firstMs: 50, longestMs: 400, random: () => 0.5 });
    assert.deepEqual(Array.from({ length: 5 }, () => backoff.wait()), [50, 100, 200, 400, 400]);
    backoff.reset();
    assert.equal(backoff.wait(), 50);
});
