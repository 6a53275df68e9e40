import assert from "node:assert/strict";
import test from "node:test";
import { linkBounds, LinkMachine } from "../../Sources/Edges/ApusConsole/files/apus/link.js";
import { seeded } from "./random.mjs";

const urls = ["ws://a/", "ws://b/", "ws://c/"];
const welcome = { endpoints: urls, keepaliveMs: 5000, streamKeepaliveMs: 80 };
const started = (list = urls) => {
    const link = new LinkMachine(list, () => 0.5);
    const [, { id }] = link.start(0);
    link.welcomed(id, welcome, 10);
    return { link, id };
};
const opened = link => {
    link.streamsWanted(true, 20);
    link.streamOpened(link.active.id, 20);
};
const connects = actions => actions.filter(action => action.do === "connect").map(action => action.url);

test("Connects to the first endpoint, and reports the link", () => {
    const link = new LinkMachine(urls);
    assert.deepEqual(link.start(0), [{ do: "report", state: "connecting" }, { do: "connect", id: 1, url: urls[0] }]);
    assert.deepEqual(link.welcomed(1, welcome, 5), [{ do: "activate", id: 1 }, { do: "report", state: "online" }]);
});

test("A silence longer than the keepalive and its margin tries the next node beside the first", () => {
    const { link } = started();
    opened(link);
    for (let now = 20; now < 1000; now += 80) {
        link.heard(1, now);
        assert.deepEqual(link.tick(now + 60), []);
    }
    const last = 20 + 80 * 12;
    assert.deepEqual(link.tick(last + 179), []);
    const actions = link.tick(last + 181);
    assert.deepEqual(connects(actions), [urls[1]]);
    assert.equal(link.active.id, 1);
    assert.deepEqual(link.welcomed(2, welcome, last + 200), [{ do: "drop", id: 1 }, { do: "activate", id: 2 }]);
});

test("A node that recovers before the next one answers keeps the streams", () => {
    const { link } = started();
    opened(link);
    assert.equal(connects(link.tick(400)).length, 1);
    link.heard(1, 410);
    assert.deepEqual(link.welcomed(2, welcome, 415), [{ do: "drop", id: 2 }]);
    assert.equal(link.active.id, 1);
});

test("A page that was busy does not take its own lateness for jitter: the next silence is found as before", () => {
    const { link } = started();
    opened(link);
    for (let now = 20; now <= 1000; now += 40) link.heard(1, now);
    // A long task of 600 ms: the frames were there all the time.
    link.heard(1, 1620, 600);
    for (let now = 1620; now <= 2000; now += 40) link.heard(1, now);
    const last = 1620 + 40 * 9;
    assert.deepEqual(link.tick(last + 179), []);
    assert.deepEqual(connects(link.tick(last + 181)), [urls[1]]);
});

test("A tick at the time that is named finds the silent node", () => {
    const { link } = started();
    assert.equal(new LinkMachine(urls).silenceDueMs(0), Infinity);
    opened(link);
    link.heard(1, 60);
    assert.equal(link.silenceDueMs(100), 140);
    assert.equal(connects(link.tick(100 + link.silenceDueMs(100))).length, 1);
});

test("A line that was late has more time, but not more than it was late", () => {
    const { link } = started();
    opened(link);
    link.heard(1, 20 + 380);
    assert.equal(link.silenceMs, 80 + 450);
});

test("Without a stream, a page waits for two keepalives", () => {
    const { link } = started();
    assert.deepEqual(link.tick(10 + linkBounds.idleSilenceMs - 1), []);
    assert.equal(connects(link.tick(10 + linkBounds.idleSilenceMs + 1)).length, 1);
});

test("A lost connection is replaced at once by one to the next endpoint", () => {
    const { link, id } = started();
    opened(link);
    assert.deepEqual(link.closed(id, null, 500), [{ do: "connect", id: 2, url: urls[1] }]);
});

test("A page without streams spreads its connect over the time that the node has named, unless it is wanted", () => {
    const link = new LinkMachine(urls, () => 0.5);
    link.start(0);
    link.welcomed(1, { ...welcome, reconnectSpreadMs: 4000 }, 10);
    assert.deepEqual(link.closed(1, null, 100), []);
    assert.deepEqual(link.tick(2000).filter(action => action.do === "connect"), []);
    assert.equal(connects(link.wanted(2010)).length, 1);
});

test("Rounds in which all endpoints fail wait longer and longer, to 2 s", () => {
    const link = new LinkMachine(urls, () => 0.5);
    let now = 0;
    let id = 1;
    link.start(now);
    const rounds = [];
    for (let attempts = 0; attempts < 30; attempts++) {
        const before = now;
        let actions = link.closed(id, null, now);
        while (connects(actions).length === 0) actions = link.tick(now += 10);
        id = actions.find(action => action.do === "connect").id;
        if (now > before) rounds.push(now - before);
    }
    assert.deepEqual(rounds.map(wait => Math.round(wait / 50) * 50), [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000,
        2000]);
});

test("A node that leaves serves until the next one does", () => {
    const { link } = started();
    opened(link);
    const actions = link.redirected(1, ["ws://b/", "ws://c/"], true, 100);
    assert.deepEqual(connects(actions), ["ws://b/"]);
    assert.deepEqual(link.welcomed(2, welcome, 150), [{ do: "retire", id: 1 }, { do: "activate", id: 2 }]);
    assert.deepEqual(link.moved(1), [{ do: "drop", id: 1 }]);
});

test("A kicked session ends at once, a refused token after two nodes have said so", () => {
    let { link, id } = started();
    assert.deepEqual(link.closed(id, { code: 12003 }, 20), [{ do: "report", state: "replaced" }]);
    ({ link, id } = started());
    const [{ id: second }] = link.closed(id, { code: 12001, node: "a" }, 20);
    assert.deepEqual(link.closed(second, { code: 12001, node: "b" }, 30), [{ do: "report", state: "signed-out" }]);
    assert.deepEqual(link.tick(10_000), []);
});

test("Random events: at most three attempts, one active connection, and each connection is dropped once at most",
    () => {
    for (let seed = 1; seed <= 300; seed++) {
        const random = seeded(seed);
        const link = new LinkMachine(urls, () => random(1000) / 1000);
        const open = new Set();
        let now = 0;
        const run = actions => {
            for (const action of actions) {
                if (action.do === "connect") open.add(action.id);
                if (action.do === "drop") assert.ok(open.delete(action.id),
                    `seed ${seed}: ${action.id} is dropped twice`);
                if (action.do === "activate") assert.ok(open.has(action.id), `seed ${seed}: activates a dropped one`);
            }
            assert.ok(link.attempts.length <= linkBounds.attemptsMax, `seed ${seed}`);
            assert.ok(open.size <= linkBounds.attemptsMax + 2, `seed ${seed}`);
        };
        run(link.start(now));
        for (let step = 0; step < 400; step++) {
            now += random(300);
            const ids = [...open];
            const id = ids[random(Math.max(1, ids.length))] ?? 99;
            switch (random(8)) {
            case 0: if (open.has(id) && link.attempts.some(attempt => attempt.id === id)) run(link.welcomed(id, welcome,
                now)); break;
            case 1: open.delete(id); run(link.closed(id, null, now)); break;
            case 2: link.heard(id, now); break;
            case 3: link.streamsWanted(random(2) === 0, now); break;
            case 4: if (link.active) link.streamOpened(link.active.id, now); break;
            case 5: if (link.active) run(link.redirected(link.active.id, ["ws://b/", "ws://d/"], random(2) === 0,
                now)); break;
            default: run(link.tick(now));
            }
        }
        // What is left alone comes online again.
        for (let tries = 0; tries < 2000 && link.state !== "online"; tries++) {
            now += 50;
            run(link.tick(now));
            const [attempt] = link.attempts;
            if (attempt) run(link.welcomed(attempt.id, welcome, now));
        }
        assert.equal(link.state, "online", `seed ${seed}`);
        run(link.stop());
        assert.equal(open.size, 0, `seed ${seed}: ${[...open]} remain`);
    }
});
