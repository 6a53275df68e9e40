// Which node a page is connected to, and when it tries another one: the rules of the native clients, for WebSockets.
// Pure: events and times in milliseconds go in, actions come out.
//
// One connection is active. While streams are open, the node sends at least each keepalive, so silence shows a failure.
// A connection to another node is then opened beside the first. A lost connection is replaced at once, by one to the
// next endpoint. When all endpoints have failed, attempts wait, longer each round, with jitter. A page without streams
// whose node was lost spreads its connect over the time that the node has named. A node that leaves still serves a page
// until the next one does.

import { Backoff } from "./pace.js";

/**
 * What the shell does.
 * @typedef {{do: "connect", id: number, url: string}
 *     | {do: "drop", id: number}
 *     | {do: "activate", id: number}
 *     | {do: "retire", id: number}
 *     | {do: "report", state: LinkState}} LinkAction
 * @typedef {"connecting" | "online" | "offline" | "signed-out" | "replaced" | "stopped"} LinkState
 * @typedef {{endpoints?: string[], keepaliveMs?: number, streamKeepaliveMs?: number, reconnectSpreadMs?: number}} Welcome
 */

/** The bounds of the rules, in milliseconds. */
export const linkBounds = Object.freeze({
    silenceMarginMs: 100, silenceCeilingMs: 3000, openingSilenceMs: 1500, idleSilenceMs: 12_000, hedgeMs: 300,
    attemptTimeoutMs: 8000, attemptsMax: 3, offlineGraceMs: 500, retireMs: 3000, endpointsMax: 32,
});

/** Errors that end a session at once. */
const endings = new Set([12003, 12004]);
/** Errors that end a session once two nodes report them. */
const endingsByTwo = new Set([12001, 12002]);

export class LinkMachine {
    /**
     * @param {string[]} endpoints
     * @param {() => number} [random]
     */
    constructor(endpoints, random = Math.random) {
        this.endpoints = [...endpoints];
        this.random = random;
        this.backoff = new Backoff({ random });
        this.nextEndpoint = 0;
        this.nextID = 1;
        /** @type {{id: number, url: string, heard: number, isStreaming: boolean, isLeaving: boolean, jitter: number, welcome: Required<Welcome>} | null} */
        this.active = null;
        /** @type {{id: number, until: number} | null} */
        this.retiring = null;
        /** @type {{id: number, url: string, since: number}[]} */
        this.attempts = [];
        this.lastConnect = -Infinity;
        this.failures = 0;
        this.notBefore = 0;
        /** @type {number | null} */
        this.lostSince = null;
        /** @type {LinkState | null} */
        this.state = null;
        /** @type {Set<string>} */
        this.refusals = new Set();
        this.hasStreams = false;
        this.isRunning = false;
        this.jitter = 0;
    }

    /**
     * @param {number} now
     * @returns {LinkAction[]}
     */
    start(now) {
        if (this.isRunning) return [];
        this.isRunning = true;
        this.lostSince = now;
        return [...this.#report("connecting"), ...this.#connect(now)];
    }

    /** @returns {LinkAction[]} */
    stop() { return this.#end("stopped"); }

    /**
     * A node has answered the hello.
     * @param {number} id
     * @param {Welcome} welcome
     * @param {number} now
     * @returns {LinkAction[]}
     */
    welcomed(id, welcome, now) {
        const index = this.attempts.findIndex(attempt => attempt.id === id);
        if (index < 0 || !this.isRunning) return [{ do: "drop", id }];
        const [attempt] = this.attempts.splice(index, 1);
        /** @type {LinkAction[]} */
        const actions = [];
        if (this.active) {
            // The first connection has recovered meanwhile. It stays, since it has the streams.
            if (!this.#isSilent(now)) return [{ do: "drop", id }];
            if (this.active.isLeaving) actions.push(...this.#retire(this.active.id, now));
            else actions.push({ do: "drop", id: this.active.id });
        }
        actions.push(...this.#dropAttempts());
        this.active = {
            id, url: attempt.url, heard: now, isStreaming: false, isLeaving: false, jitter: this.jitter,
            welcome: {
                endpoints: welcome.endpoints ?? [], keepaliveMs: welcome.keepaliveMs || 5000,
                streamKeepaliveMs: welcome.streamKeepaliveMs || 80, reconnectSpreadMs: welcome.reconnectSpreadMs ?? 0,
            },
        };
        this.failures = 0;
        this.refusals.clear();
        this.backoff.reset();
        this.lostSince = null;
        this.#learn(welcome.endpoints ?? []);
        actions.push({ do: "activate", id });
        return [...actions, ...this.#report("online")];
    }

    /**
     * A connection or an attempt has ended.
     * @param {number} id
     * @param {{code: number, node?: string} | null} error what the node has sent before
     * @param {number} now
     * @returns {LinkAction[]}
     */
    closed(id, error, now) {
        if (this.retiring?.id === id) this.retiring = null;
        const attempt = this.attempts.find(attempt => attempt.id === id);
        this.attempts = this.attempts.filter(attempt => attempt.id !== id);
        const isActive = this.active?.id === id;
        const url = attempt?.url ?? (isActive ? this.active?.url : undefined);
        if (!this.isRunning || url === undefined) return [];
        const { active } = this;
        if (isActive) this.active = null;
        if (error && endings.has(error.code)) return this.#end(error.code === 12003 ? "replaced" : "signed-out");
        if (error && endingsByTwo.has(error.code)) {
            this.refusals.add(error.node || url);
            if (this.refusals.size >= Math.min(2, this.endpoints.length)) return this.#end("signed-out");
        }
        if (isActive && active) {
            const index = this.endpoints.indexOf(url);
            if (index >= 0) this.nextEndpoint = index + 1;
            this.jitter = active.jitter;
            const spread = error && error.code !== 10017 ? 0 : active.welcome.reconnectSpreadMs;
            this.lostSince = now;
            this.failures = 0;
            if (!this.hasStreams) this.notBefore = now + spread * this.random();
            return this.attempts.length > 0 ? [] : this.#connect(now);
        }
        this.failures += 1;
        if (this.failures >= this.endpoints.length) {
            this.failures = 0;
            this.notBefore = now + this.backoff.wait();
            return [];
        }
        return this.attempts.length === 0 && this.#needs(now) ? this.#connect(now) : [];
    }

    /**
     * The active node names other endpoints; with `leaving` a connection there is opened first.
     * @param {number} id
     * @param {string[]} endpoints
     * @param {boolean} leaving
     * @param {number} now
     * @returns {LinkAction[]}
     */
    redirected(id, endpoints, leaving, now) {
        if (this.active?.id !== id || !this.isRunning) return [];
        const { url } = this.active;
        if (leaving) {
            this.active.isLeaving = true;
            this.endpoints = this.endpoints.filter(endpoint => endpoint !== url);
        }
        this.#learn(endpoints);
        return leaving && this.attempts.length === 0 ? this.#connect(now) : [];
    }

    /**
     * Nothing is expected on a retired connection.
     * @param {number} id
     * @returns {LinkAction[]}
     */
    moved(id) {
        if (this.retiring?.id !== id) return [];
        this.retiring = null;
        return [{ do: "drop", id }];
    }

    /**
     * A message has come.
     * @param {number} id
     * @param {number} now
     * @param {number} [late] so long the page was busy before it read the message: that is no jitter of the line
     */
    heard(id, now, late = 0) {
        if (this.active?.id !== id) return;
        if (this.active.isStreaming) {
            const gap = Math.max(0, now - this.active.heard - late);
            this.active.jitter = Math.max(gap - this.active.welcome.streamKeepaliveMs, this.active.jitter - gap / 64,
                0);
        }
        this.active.heard = now;
    }

    /**
     * Streams are wanted from now on, or none is.
     * @param {boolean} are
     * @param {number} now
     */
    streamsWanted(are, now) {
        if (this.hasStreams === are) return;
        this.hasStreams = are;
        if (this.active) {
            this.active.isStreaming = false;
            if (are) this.active.heard = now;
        }
    }

    /**
     * The node sends frames of a stream: its shorter keepalive holds.
     * @param {number} id
     * @param {number} now
     */
    streamOpened(id, now) {
        if (this.active?.id !== id || !this.hasStreams || this.active.isStreaming) return;
        this.active.isStreaming = true;
        this.active.heard = now;
    }

    /**
     * Somebody waits for the link: a page that waits for its turn connects now.
     * @param {number} now
     * @returns {LinkAction[]}
     */
    wanted(now) {
        if (!this.isRunning || this.active || this.attempts.length > 0) return [];
        if (this.backoff.next > this.backoff.firstMs) return [];
        this.notBefore = Math.min(this.notBefore, now);
        return this.#connect(now);
    }

    /**
     * @param {number} now
     * @returns {LinkAction[]}
     */
    tick(now) {
        if (!this.isRunning) return [];
        /** @type {LinkAction[]} */
        const actions = [];
        if (this.retiring && now >= this.retiring.until) actions.push(...this.moved(this.retiring.id));
        for (const attempt of [...this.attempts]) {
            if (now - attempt.since < linkBounds.attemptTimeoutMs) continue;
            actions.push({ do: "drop", id: attempt.id }, ...this.closed(attempt.id, null, now));
        }
        if (!this.#needs(now)) {
            actions.push(...this.#dropAttempts());
        } else {
            const wait = linkBounds.hedgeMs * 2 ** Math.max(0, this.attempts.length - 1);
            const isDue = this.attempts.length === 0
                || (this.attempts.length < linkBounds.attemptsMax && now - this.lastConnect >= wait);
            if (isDue) actions.push(...this.#connect(now));
        }
        if (this.lostSince !== null && !this.active && now - this.lostSince >= linkBounds.offlineGraceMs) {
            actions.push(...this.#report("offline"));
        }
        return actions;
    }

    /** The longest silence of the active node, in milliseconds. */
    get silenceMs() {
        const { active } = this;
        if (!active) return 0;
        if (!this.hasStreams) return Math.max(linkBounds.idleSilenceMs, active.welcome.keepaliveMs * 2);
        if (!active.isStreaming) return linkBounds.openingSilenceMs;
        const seen = Math.max(linkBounds.silenceMarginMs, active.jitter * 1.5);
        return active.welcome.streamKeepaliveMs + Math.min(seen, linkBounds.silenceCeilingMs);
    }

    /**
     * How long until the active node's silence is too long, in milliseconds; Infinity without one. A tick then finds it.
     * @param {number} now
     */
    silenceDueMs(now) {
        return this.active ? this.active.heard + this.silenceMs - now : Infinity;
    }

    /** @param {number} now */
    #isSilent(now) {
        const { active } = this;
        return active !== null && (active.isLeaving || now - active.heard >= this.silenceMs);
    }

    /** @param {number} now */
    #needs(now) { return this.active === null || this.#isSilent(now); }

    /**
     * @param {number} now
     * @returns {LinkAction[]}
     */
    #connect(now) {
        if (this.endpoints.length === 0 || now < this.notBefore) return [];
        const used = new Set(this.attempts.map(attempt => attempt.url));
        let free = this.endpoints.filter(endpoint => !used.has(endpoint) && endpoint !== this.active?.url);
        if (free.length === 0 && this.attempts.length === 0) free = [...this.endpoints];
        for (let tried = 0; tried < this.endpoints.length; tried++) {
            const url = this.endpoints[this.nextEndpoint++ % this.endpoints.length];
            if (!free.includes(url)) continue;
            const id = this.nextID++;
            this.attempts.push({ id, url, since: now });
            this.lastConnect = now;
            return [{ do: "connect", id, url }];
        }
        return [];
    }

    /**
     * @param {number} id
     * @param {number} now
     * @returns {LinkAction[]}
     */
    #retire(id, now) {
        /** @type {LinkAction[]} */
        const actions = this.retiring ? [{ do: "drop", id: this.retiring.id }] : [];
        this.retiring = { id, until: now + linkBounds.retireMs };
        return [...actions, { do: "retire", id }];
    }

    /** @param {string[]} endpoints */
    #learn(endpoints) {
        if (endpoints.length === 0) return;
        const known = this.endpoints.filter(endpoint => !endpoints.includes(endpoint));
        this.endpoints = [...endpoints, ...known].slice(0, linkBounds.endpointsMax);
        this.nextEndpoint = 0;
    }

    /** @returns {LinkAction[]} */
    #dropAttempts() {
        const attempts = this.attempts;
        this.attempts = [];
        return attempts.map(attempt => ({ do: "drop", id: attempt.id }));
    }

    /**
     * @param {LinkState} state
     * @returns {LinkAction[]}
     */
    #end(state) {
        if (!this.isRunning) return [];
        this.isRunning = false;
        const actions = this.#dropAttempts();
        for (const id of [this.active?.id, this.retiring?.id]) if (id !== undefined) actions.push({ do: "drop", id });
        this.active = null;
        this.retiring = null;
        return [...actions, ...this.#report(state)];
    }

    /**
     * @param {LinkState} state
     * @returns {LinkAction[]}
     */
    #report(state) {
        if (this.state === state) return [];
        this.state = state;
        return [{ do: "report", state }];
    }
}
