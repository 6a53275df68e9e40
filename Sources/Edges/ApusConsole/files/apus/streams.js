// Streams of a session: what is played, and what is published. Both continue at the next node at their position.

import { Flag, FrameJoiner, makeFrame, parseConfiguration, payloadBytesMax, PositionFilter } from "./frames.js";

/** @typedef {import("./frames.js").MediaFrame} MediaFrame */
/** @typedef {import("./frames.js").TrackConfiguration} TrackConfiguration */
/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./session.js").Connection} Connection */

/** Errors after which a stream is not played any more (docs/reference/errors.md). */
const endsPlaying = new Set([-2522, -2508, -2500, 8002, 8003, 12004, 20011, 21031]);
/** The page has just stopped the same stream, or plays it twice: it is tried again so many times. */
const twiceMax = 8;
const endsPublishing = new Set([-2522, -2508, -2500, 8003, 12004, 20011, 21031]);
const retryMs = 100;
const retryMaxMs = 2000;

/**
 * @typedef {{device: string, source?: number} | {call: string}} PlayTarget
 * @typedef {object} PlayHandlers
 * @property {(track: number, configuration: TrackConfiguration) => void} onConfiguration also when it comes again
 * @property {(frame: MediaFrame) => void} onFrame a whole picture or packet of sound, each once, in order
 * @property {(hasGap: boolean, skipped: number) => void} [onGap] frames are missing: decode from the next key frame on
 * @property {(state: "live" | "waiting" | "moving") => void} [onState]
 * @property {() => void} [onGranted] the node has accepted the stream: what is sent from now on is not missed
 * @property {(epoch: number) => void} [onEndOfRun] the publisher has ended its run
 * @property {(error: import("./session.js").ApusError) => void} [onEnd] the stream has ended permanently
 */

/** What both kinds of streams share: where the stream is open. */
class Stream {
    /** @param {Session} session */
    constructor(session) {
        this.session = session;
        /** @type {Connection | null} */
        this.connection = null;
        /** @type {number | null} */
        this.stream = null;
        /**
         * At a node that leaves, until the next one serves the stream.
         * @type {{connection: Connection, stream: number} | null}
         */
        this.previous = null;
        this.grant = "";
        this.isOver = false;
        this.failures = 0;
    }

    get isMoving() { return this.previous !== null; }

    /**
     * @param {Connection} connection
     * @param {Connection | null} retired
     */
    move(connection, retired) {
        if (retired && this.connection === retired && this.stream !== null) {
            this.previous = { connection: retired, stream: this.stream };
        } else if (this.previous && this.previous.connection !== retired) {
            this.previous = null;
        }
        this.connection = connection;
        this.stream = null;
    }

    leavePrevious() {
        if (!this.previous) return;
        this.previous = null;
        this.session.checkRetired();
    }

    /**
     * @param {number} number
     * @param {Connection} connection
     */
    isOpen(number, connection) {
        return (this.connection === connection && this.stream === number)
            || (this.previous?.connection === connection && this.previous.stream === number);
    }

    /**
     * @param {Connection} connection
     * @param {() => void} open
     */
    retry(connection, open) {
        const wait = Math.min(retryMs * 2 ** this.failures, retryMaxMs) * (0.5 + Math.random());
        this.failures += 1;
        setTimeout(() => {
            if (this.connection === connection && this.stream === null && !this.isOver) open();
        }, wait);
    }
}

export class PlayStream extends Stream {
    /**
     * @param {Session} session
     * @param {PlayTarget} target
     * @param {PlayHandlers} handlers
     */
    constructor(session, target, handlers) {
        super(session);
        this.target = target;
        this.handlers = handlers;
        this.filter = new PositionFilter();
        this.joiner = new FrameJoiner();
        /** Frames of earlier runs are not delivered. */
        this.epochMin = 0;
        this.epoch = 0;
        /** Frames that came, were skipped for a slow page, and that came again from the next node. */
        this.counts = { frames: 0, skipped: 0 };
        this.startedAt = performance.now();
    }

    /** The node that serves it. */
    get node() { return this.connection?.welcome?.node ?? ""; }

    /**
     * @param {Connection} connection
     * @param {Connection | null} retired
     */
    attach(connection, retired) {
        this.move(connection, retired);
        if (this.filter.last) this.handlers.onState?.("moving");
        this.#open(connection);
    }

    stop() {
        if (this.isOver) return;
        this.isOver = true;
        if (this.connection && this.stream !== null) {
            this.session.request("streams.stop", { stream: this.stream }, { repeats: false }).catch(() => {});
        }
        this.session.remove(this);
    }

    /** @param {Connection} connection */
    #open(connection) {
        /** @type {any} */
        const body = { ...this.target };
        if (this.grant) body.grant = this.grant;
        if (this.filter.last) body.after = { epoch: this.filter.last.epoch,
            sequence: String(this.filter.last.sequence) };
        this.session.request("streams.play", body, { repeats: false, timeoutMs: 10_000 }).then(answer => {
            if (this.connection !== connection) return;
            if (this.isOver) {
                this.session.request("streams.stop", { stream: answer.stream }, { repeats: false }).catch(() => {});
                return;
            }
            this.stream = answer.stream;
            this.grant = answer.grant ?? "";
            this.failures = 0;
            this.session.streamOpened(connection);
            this.handlers.onGranted?.();
        }, error => {
            if (this.connection === connection && !this.isOver) this.#refused(error, connection);
        });
    }

    /**
     * @param {import("./session.js").ApusError} error
     * @param {Connection} connection
     */
    #refused(error, connection) {
        this.stream = null;
        if (endsPlaying.has(error.code) || (error.code === 21021 && this.failures >= twiceMax)) {
            this.isOver = true;
            this.session.remove(this);
            return this.handlers.onEnd?.(error);
        }
        // The session attaches the next connection.
        if (error.code === 10008 || error.code === 21023) return;
        this.handlers.onState?.("waiting");
        this.retry(connection, () => this.#open(connection));
    }

    /**
     * @param {any} message
     * @param {Connection} connection
     */
    stateChanged(message, connection) {
        if (this.previous?.connection === connection && this.connection !== connection) return;
        switch (message.state) {
        case "STATE_LIVE": return this.handlers.onState?.("live");
        case "STATE_WAITING": return this.handlers.onState?.("waiting");
        case "STATE_SKIPPED": {
            const skipped = Number(message.skipped ?? 0);
            this.counts.skipped += skipped;
            return this.handlers.onGap?.(true, skipped);
        }
        case "STATE_ENDED": {
            const failure = message.failure ?? {};
            const error = Object.assign(new Error(failure.message ?? ""),
                { name: "ApusError", code: Number(failure.code ?? 10018) });
            return this.#refused(/** @type {any} */ (error), connection);
        }
        }
    }

    /**
     * @param {MediaFrame[]} frames
     * @param {Connection} connection
     */
    received(frames, connection) {
        const { previous } = this;
        if (previous && previous.connection === connection) {
            for (const frame of frames) if (frame.stream === previous.stream) this.#received(frame);
            return;
        }
        if (connection !== this.connection || this.stream === null) return;
        for (const frame of frames) {
            if (frame.stream !== this.stream || this.isOver) continue;
            this.#received(frame);
            this.leavePrevious();
        }
    }

    /** @param {MediaFrame} frame */
    #received(frame) {
        const { isNew, hasGap } = this.filter.add(frame);
        if (!isNew || frame.epoch < this.epochMin) return;
        if (hasGap) this.handlers.onGap?.(true, 0);
        this.counts.frames += 1;
        if (frame.flags & Flag.endOfEpoch) {
            this.handlers.onState?.("waiting");
            return this.handlers.onEndOfRun?.(frame.epoch);
        }
        if (frame.epoch !== this.epoch) {
            if (this.epoch !== 0) this.handlers.onGap?.(false, 0);
            this.epoch = frame.epoch;
        }
        if (frame.flags & Flag.configuration) {
            try {
                this.handlers.onConfiguration(frame.track, parseConfiguration(frame.payload));
            } catch (error) {
                console.warn("apus: a configuration was ignored:", /** @type {Error} */ (error).message);
            }
            return;
        }
        const whole = this.joiner.add(frame);
        if (whole) this.handlers.onFrame(whole);
    }
}

/**
 * @typedef {object} PublishHandlers
 * @property {() => void} [onOpen]
 * @property {(error: import("./session.js").ApusError) => void} [onEnd]
 */

const windowFramesMax = 2048;
const windowBytesMax = 16 << 20;
const retentionMs = 1000;
/** While more waits at the socket, frames are kept here. */
const backlogMax = 1 << 20;

/** Sends frames, and keeps each until two nodes have it, and for a second after that. */
export class PublishStream extends Stream {
    /**
     * @param {Session} session
     * @param {{call: string}} target
     * @param {PublishHandlers} handlers
     */
    constructor(session, target, handlers) {
        super(session);
        this.target = target;
        this.handlers = handlers;
        this.instance = newInstance();
        this.epoch = 0;
        /** @type {{sequence: number, frame: any, since: number}[]} */
        this.window = [];
        this.bytes = 0;
        this.oldest = 0;
        this.nextSequence = 0;
        this.cursor = 0;
        this.acked = 0;
    }

    #begin() {
        this.instance = newInstance();
        this.epoch = 0;
        this.window = [];
        this.bytes = 0;
        this.oldest = 0;
        this.nextSequence = 0;
        this.cursor = 0;
        this.acked = 0;
    }

    /**
     * @param {Connection} connection
     * @param {Connection | null} retired
     */
    attach(connection, retired) {
        this.move(connection, retired);
        this.#open(connection);
    }

    /** @param {Connection} connection */
    #open(connection) {
        /** @type {object} */
        const body = {
            source: 65_536, epoch: this.epoch, resumes: this.epoch !== 0, instance: this.instance,
            oldest: String(this.oldest), call: this.target.call, grant: this.grant,
        };
        this.session.request("streams.publish", body, { repeats: false, timeoutMs: 10_000 }).then(answer => {
            if (this.connection !== connection || this.isOver) return;
            this.leavePrevious();
            this.stream = answer.stream;
            this.grant = answer.grant ?? "";
            this.epoch = answer.epoch || this.epoch;
            this.failures = 0;
            this.cursor = Math.min(Math.max(Number(answer.next ?? 0), this.oldest), this.nextSequence);
            this.session.streamOpened(connection);
            this.#write();
            this.handlers.onOpen?.();
        }, error => {
            if (this.connection === connection && !this.isOver) this.#refused(error, connection);
        });
    }

    /**
     * @param {import("./session.js").ApusError} error
     * @param {Connection} connection
     */
    #refused(error, connection) {
        this.stream = null;
        if (endsPublishing.has(error.code)) {
            this.isOver = true;
            this.session.remove(this);
            return this.handlers.onEnd?.(error);
        }
        if (error.code === 10008 || error.code === 21023) return;
        if (error.code === 10024) this.#again();
        this.retry(connection, () => this.#open(connection));
    }

    /** Numbers what was not acknowledged again: a newer publisher had the channel. */
    #again() {
        const kept = this.window.filter(entry => entry.sequence >= this.acked).map(entry => entry.frame);
        this.#begin();
        for (const frame of kept) this.#keep(frame);
    }

    /**
     * Sends a frame. A configuration comes first in each track.
     * @param {{track: number, pts: number, flags: number, payload: Uint8Array}} frame
     */
    send(frame) {
        if (this.isOver || frame.payload.length > payloadBytesMax) return;
        this.#keep({ delta: 0, capture: Date.now() % 2 ** 32, rendition: 0, ...frame });
        this.#write();
    }

    /** @param {any} frame */
    #keep(frame) {
        const now = performance.now();
        this.window.push({ sequence: this.nextSequence++, frame, since: now });
        this.bytes += frame.payload.length;
        while (this.window.length > 1) {
            const [first] = this.window;
            const isOver = this.window.length > windowFramesMax || this.bytes > windowBytesMax;
            const isDone = first.sequence < this.acked && now - first.since > retentionMs;
            if (!isOver && !isDone) break;
            this.window.shift();
            this.bytes -= first.frame.payload.length;
            this.oldest = first.sequence + 1;
            this.cursor = Math.max(this.cursor, this.oldest);
        }
    }

    #write() {
        const place = this.previous ?? (this.connection && this.stream !== null ? { connection: this.connection,
            stream: this.stream } : null);
        if (!place || this.epoch === 0) return;
        while (this.cursor < this.nextSequence && place.connection.backlog < backlogMax) {
            const entry = this.window[this.cursor - this.oldest];
            place.connection.sendBytes(makeFrame({ ...entry.frame, stream: place.stream, epoch: this.epoch,
                sequence: entry.sequence }));
            this.cursor += 1;
        }
    }

    /** @param {any} message */
    acknowledged(message) {
        this.acked = Math.max(this.acked, Number(message.next ?? 0));
    }

    /** @param {any} message */
    resumed(message) {
        if (message.epoch) this.epoch = message.epoch;
        const next = Number(message.next ?? 0);
        if (next < this.oldest && this.connection) {
            // The frames that are asked for were dropped: a gap is accepted only if an offer names it.
            this.stream = null;
            return this.#open(this.connection);
        }
        this.cursor = Math.min(next, this.nextSequence);
        this.#write();
    }

    /**
     * @param {any} message
     * @param {Connection} connection
     */
    stateChanged(message, connection) {
        if (message.state !== "STATE_ENDED" || connection !== this.connection) return;
        const failure = message.failure ?? {};
        const error = Object.assign(new Error(failure.message ?? ""),
            { name: "ApusError", code: Number(failure.code ?? 10018) });
        this.#refused(/** @type {any} */ (error), connection);
    }

    received() {}

    /** Ends the stream. */
    async stop() {
        if (this.isOver) return;
        if (this.nextSequence > 0) {
            const pts = this.window[this.window.length - 1]?.frame.pts ?? 0;
            this.send({ track: 0, pts, flags: Flag.endOfEpoch, payload: new Uint8Array(0) });
        }
        this.isOver = true;
        this.session.remove(this);
        const body = { source: 65_536, call: this.target.call };
        await this.session.request("streams.unpublish", body, { repeats: false }).catch(() => {});
    }
}

function newInstance() {
    return (crypto.getRandomValues(new BigUint64Array(1))[0] | 1n).toString();
}
