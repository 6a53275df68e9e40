// A session of a page with the cluster: requests, topics and streams over WebSockets, which continue at another node
// when one dies (docs/api.md).

import { parseFrames } from "./frames.js";
import { LinkMachine } from "./link.js";
import { PlayStream, PublishStream } from "./streams.js";

/** An error that a node has sent, or that arose here. `code` is a number of docs/reference/errors.md. */
export class ApusError extends Error {
    /**
     * @param {number} code
     * @param {string} message
     * @param {string} [node]
     */
    constructor(code, message, node) {
        super(message || `error ${code}`);
        this.name = "ApusError";
        this.code = code;
        this.node = node;
    }

    /** @param {any} problem */
    static of(problem) {
        const code = Number(problem?.code);
        const text = problem?.detail || problem?.message || problem?.title || "";
        return new ApusError(Number.isInteger(code) ? code : 10018, String(text), problem?.node);
    }
}

/** Requests that may be sent again if their answer was lost. */
const repeatable = /\.(list|get|read|explain|changes|shares|invitations|query|home)$|^topics\.|^calls\.report$/;

/** The most requests that wait for answers. */
const requestsMax = 256;
const tickMs = 25;

/**
 * @typedef {object} SessionOptions
 * @property {string | string[]} [url] the WebSocket of a node, or of several; default: that of the page's own node
 * @property {string} [token] a token; without one the page's sign-in is used
 * @property {string} [agent] what the node's log shows
 */

/**
 * Events: `state` (detail: "connecting", "online", "offline", "signed-out", "replaced", "stopped") and `welcome`.
 */
export class Session extends EventTarget {
    /** @param {SessionOptions} [options] */
    constructor(options = {}) {
        super();
        const urls = options.url ? [options.url].flat() : [defaultURL()];
        this.token = options.token ?? "";
        this.agent = options.agent ?? "apus.js";
        this.ticket = "";
        this.ticketEnd = 0;
        this.ticketRenewal = Infinity;
        /**
         * Asks for a new ticket, beside the active connection.
         * @type {Connection | null}
         */
        this.renewing = null;
        this.instance = randomID();
        /**
         * The newest welcome.
         * @type {any}
         */
        this.welcome = null;
        /** @type {import("./link.js").LinkState} */
        this.state = "connecting";
        this.node = "";
        this.link = new LinkMachine(urls.map(socketURL));
        /** @type {Map<number, Connection>} */
        this.connections = new Map();
        /** @type {Connection | null} */
        this.active = null;
        this.nextRequest = 1;
        /** @type {Set<Request>} */
        this.waiting = new Set();
        /** @type {Map<string, Subscription>} */
        this.subscriptions = new Map();
        /** @type {Set<PlayStream | PublishStream>} */
        this.streams = new Set();
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        this.timer = undefined;
        /** When the next tick is due. */
        this.due = 0;
        /** By how much the latest tick was late: no message was read meanwhile either. */
        this.late = 0;
        this.wake = () => this.#perform(this.link.wanted(performance.now()));
    }

    /** Connects. */
    start() {
        globalThis.addEventListener?.("online", this.wake);
        this.#perform(this.link.start(performance.now()));
        this.#schedule();
        return this;
    }

    /** Ends the session and its streams. */
    stop() {
        globalThis.removeEventListener?.("online", this.wake);
        for (const stream of [...this.streams]) stream.stop();
        this.#perform(this.link.stop());
        this.#failAll(new ApusError(21023, "the session has ended"));
    }

    get isOnline() { return this.active !== null; }

    /**
     * Sends a request, and waits for the answer. A request that may be repeated is sent again at the next node if its
     * connection is lost.
     *
     * @param {string} name such as `devices.list`
     * @param {object} [body]
     * @param {{timeoutMs?: number, repeats?: boolean}} [options]
     * @returns {Promise<any>}
     * @throws {ApusError}
     */
    request(name, body = {}, options = {}) {
        if (this.waiting.size >= requestsMax) return Promise.reject(new ApusError(10007, "too many requests wait"));
        if (!this.link.isRunning) return Promise.reject(new ApusError(21023, "the session has ended"));
        return new Promise((resolve, reject) => {
            const timeoutMs = options.timeoutMs ?? 5000;
            const request = new Request(name, body, timeoutMs, options.repeats ?? repeatable.test(name), resolve,
                reject);
            this.waiting.add(request);
            request.timer = setTimeout(() => {
                this.waiting.delete(request);
                if (request.sentOn) request.sentOn.cancel(request.id);
                reject(new ApusError(request.sentOn ? 21002 : 21025, request.sentOn ? "no answer came in time"
                    : "no node can be reached"));
            }, timeoutMs + 250);
            if (this.active) this.#send(request, this.active);
            else this.wake();
        });
    }

    /**
     * Subscribes to a topic, on this and each later connection. A topic that keeps events continues after the last one.
     *
     * @param {string} topic
     * @param {(event: {type: string, message: any, missed: boolean, cursor: string}) => void} onEvent
     * @param {{after?: string, onError?: (error: ApusError) => void, onSubscribed?: () => void}} [options]
     * @returns {() => void} ends it
     */
    subscribe(topic, onEvent, options = {}) {
        let subscription = this.subscriptions.get(topic);
        if (!subscription) {
            subscription = new Subscription(topic, options.after ?? "");
            this.subscriptions.set(topic, subscription);
            if (this.active) this.#subscribe(subscription, this.active);
        } else if (subscription.current) {
            // A further reader of a topic with a state sees the newest event too.
            onEvent(subscription.current);
        }
        const reader = { onEvent, onError: options.onError, onSubscribed: options.onSubscribed };
        subscription.readers.add(reader);
        const found = subscription;
        return () => {
            if (!found.readers.delete(reader) || found.readers.size > 0) return;
            this.subscriptions.delete(topic);
            if (this.active) this.request("topics.unsubscribe", { topic }).catch(() => {});
        };
    }

    /**
     * Plays a stream.
     * @param {import("./streams.js").PlayTarget} target
     * @param {import("./streams.js").PlayHandlers} handlers
     */
    play(target, handlers) { return this.#add(new PlayStream(this, target, handlers)); }

    /**
     * Publishes this side of a call.
     * @param {{call: string}} target
     * @param {import("./streams.js").PublishHandlers} handlers
     */
    publish(target, handlers) { return this.#add(new PublishStream(this, target, handlers)); }

    /**
     * @template {PlayStream | PublishStream} S
     * @param {S} stream
     * @returns {S}
     */
    #add(stream) {
        this.streams.add(stream);
        this.link.streamsWanted(true, performance.now());
        if (this.active) stream.attach(this.active, null);
        else this.wake();
        this.#schedule();
        return stream;
    }

    /**
     * Called by a stream that has ended.
     * @param {PlayStream | PublishStream} stream
     */
    remove(stream) {
        this.streams.delete(stream);
        this.link.streamsWanted(this.streams.size > 0, performance.now());
        this.checkRetired();
    }

    /**
     * The frames of a stream come on this connection.
     * @param {Connection} connection
     */
    streamOpened(connection) { this.link.streamOpened(connection.id, performance.now()); }

    /** Closes a connection to a node that leaves, once no stream and no request needs it. */
    checkRetired() {
        const { retiring } = this.link;
        if (!retiring || [...this.streams].some(stream => stream.isMoving)) return;
        if ([...this.waiting].some(request => request.sentOn?.id === retiring.id)) return;
        this.#perform(this.link.moved(retiring.id));
    }

    // ---- connections

    /** @param {import("./link.js").LinkAction[]} actions */
    #perform(actions) {
        /** @type {Connection | null} */
        let retired = null;
        for (const action of actions) {
            switch (action.do) {
            case "connect": this.#open(action.id, action.url); break;
            case "drop": this.#drop(action.id); break;
            case "retire": retired = this.connections.get(action.id) ?? null; break;
            case "activate": this.#activate(action.id, retired); break;
            case "report":
                this.state = action.state;
                if (!this.link.isRunning) this.#failAll(new ApusError(action.state === "replaced" ? 12003 : 12001,
                    "the session has ended"));
                this.dispatchEvent(new CustomEvent("state", { detail: action.state }));
                break;
            }
        }
    }

    /**
     * @param {number} id
     * @param {string} url
     */
    #open(id, url) {
        // The sign-in of the page counts at its own node alone: another one takes a ticket.
        if (!this.token && !this.#hasTicket && !isOwnNode(url)) {
            setTimeout(() => this.#perform(this.link.closed(id, null, performance.now())), 0);
            return;
        }
        const connection = new Connection(id, url, this.#hello(), {
            onText: (text, connection) => this.#received(text, connection),
            onBinary: (bytes, connection) => this.#receivedFrames(bytes, connection),
            onClosed: (error, connection) => this.#closed(error, connection),
        });
        this.connections.set(id, connection);
    }

    get #hasTicket() { return this.ticket !== "" && performance.now() < this.ticketEnd; }

    /** @param {any} welcome */
    #keepTicket(welcome) {
        if (!welcome.ticket) return;
        const life = Math.max(0, (welcome.ticketSeconds ?? 0) - 30) * 1000;
        this.ticket = welcome.ticket;
        this.ticketEnd = performance.now() + life;
        this.ticketRenewal = performance.now() + life * 2 / 3;
    }

    /** A ticket lasts for a time: the next one is asked for before its end, so that each node takes this page. */
    #renewTicket() {
        if (!this.active || this.renewing || performance.now() < this.ticketRenewal || !this.#hasTicket) return;
        this.ticketRenewal = performance.now() + 60_000;
        const ended = () => { this.renewing = null; };
        this.renewing = new Connection(0, this.active.url, this.#hello(), {
            onText: (message, connection) => {
                if (message.welcome) this.#keepTicket(message.welcome);
                connection.close();
                ended();
            },
            onBinary: () => {}, onClosed: ended,
        });
    }

    #hello() {
        /** @type {any} */
        const hello = { role: "ROLE_APP", agent: this.agent, instance: this.instance };
        if (this.#hasTicket) hello.ticket = this.ticket;
        else if (this.token) hello.token = this.token;
        return { hello };
    }

    /** @param {number} id */
    #drop(id) {
        const connection = this.connections.get(id);
        if (!connection) return;
        this.connections.delete(id);
        connection.close();
        this.#lost(connection);
    }

    /**
     * @param {{code: number, node?: string, message?: string} | null} error
     * @param {Connection} connection
     */
    #closed(error, connection) {
        if (!this.connections.delete(connection.id)) return;
        // A ticket that is refused is of no use; the token or the sign-in may still be.
        if (error && (error.code === 12001 || error.code === 12002) && this.ticket) {
            this.ticket = "";
            error = null;
        }
        this.lastError = error ?? this.lastError;
        this.#lost(connection);
        this.#perform(this.link.closed(connection.id, error, performance.now()));
        this.#schedule();
    }

    /** @param {Connection} connection */
    #lost(connection) {
        if (this.active === connection) this.active = null;
        for (const request of [...this.waiting]) {
            if (request.sentOn !== connection) continue;
            request.sentOn = null;
            if (request.repeats) {
                if (this.active) this.#send(request, this.active);
            } else {
                this.#finish(request, new ApusError(10008, "the connection was lost before the answer"));
            }
        }
    }

    /**
     * @param {number} id
     * @param {Connection | null} retired
     */
    #activate(id, retired) {
        const connection = this.connections.get(id);
        if (!connection) return;
        this.active = connection;
        this.welcome = connection.welcome;
        this.node = connection.welcome.node ?? "";
        this.#keepTicket(connection.welcome);
        for (const subscription of this.subscriptions.values()) this.#subscribe(subscription, connection);
        for (const stream of [...this.streams]) stream.attach(connection, retired);
        for (const request of [...this.waiting]) if (!request.sentOn) this.#send(request, connection);
        this.dispatchEvent(new CustomEvent("welcome", { detail: connection.welcome }));
        this.#schedule();
    }

    // ---- messages

    /**
     * @param {any} message
     * @param {Connection} connection
     */
    #received(message, connection) {
        const now = performance.now();
        if (message.welcome) {
            connection.welcome = message.welcome;
            this.#perform(this.link.welcomed(connection.id, {
                endpoints: (message.welcome.endpoints ?? []).map(socketURL),
                keepaliveMs: message.welcome.keepaliveMs, streamKeepaliveMs: message.welcome.streamKeepaliveMs,
                reconnectSpreadMs: message.welcome.reconnectSpreadMs,
            }, now));
            return;
        }
        this.#heard(connection, now);
        if (message.goodbye) connection.goodbye = ApusError.of(message.goodbye);
        else if (message.id !== undefined) this.#answered(message, connection);
        else if (message.event) this.#event(message.event);
        else if (message.streamState) this.#tell(message.streamState.stream, connection,
            stream => stream.stateChanged(message.streamState, connection));
        else if (message.publishAck) this.#tell(message.publishAck.stream, connection,
            stream => stream.acknowledged?.(message.publishAck));
        else if (message.publishResume) this.#tell(message.publishResume.stream, connection,
            stream => stream.resumed?.(message.publishResume));
        else if (message.endpointsChanged) {
            const { endpoints = [], leaving = false } = message.endpointsChanged;
            this.#perform(this.link.redirected(connection.id, endpoints.map(socketURL), leaving, now));
        }
    }

    /**
     * @param {number} number
     * @param {Connection} connection
     * @param {(stream: any) => void} body
     */
    #tell(number, connection, body) {
        for (const stream of [...this.streams]) if (stream.isOpen(number, connection)) body(stream);
    }

    /**
     * @param {ArrayBuffer} bytes
     * @param {Connection} connection
     */
    #receivedFrames(bytes, connection) {
        this.#heard(connection, performance.now());
        let frames;
        try {
            frames = parseFrames(bytes);
        } catch (error) {
            console.warn("apus: a message was dropped:", /** @type {Error} */ (error).message);
            return connection.fail();
        }
        for (const stream of [...this.streams]) stream.received(frames, connection);
    }

    /**
     * @param {Connection} connection
     * @param {number} now
     */
    #heard(connection, now) {
        const overdue = this.timer === undefined ? 0 : Math.max(0, now - this.due);
        this.link.heard(connection.id, now, Math.max(this.late, overdue));
        if (connection === this.active) this.late = 0;
    }

    /**
     * @param {any} message
     * @param {Connection} connection
     */
    #answered(message, connection) {
        const request = connection.requests.get(message.id);
        if (!request) return;
        connection.requests.delete(message.id);
        if (message.error) this.#finish(request, ApusError.of(message.error));
        else this.#finish(request, null, message.response ?? {});
        this.checkRetired();
    }

    /** @param {any} event */
    #event(event) {
        const subscription = this.subscriptions.get(event.topic);
        if (!subscription) return;
        if (event.cursor) subscription.cursor = event.cursor;
        const seen = { type: event.type, message: event.message ?? {}, missed: event.missed ?? false,
            cursor: event.cursor ?? "" };
        if (!event.cursor) subscription.current = seen;
        for (const reader of [...subscription.readers]) reader.onEvent(seen);
    }

    /**
     * @param {Request} request
     * @param {Connection} connection
     */
    #send(request, connection) {
        request.id = this.nextRequest++;
        request.sentOn = connection;
        connection.requests.set(request.id, request);
        connection.send({ id: request.id, request: request.name, body: request.body, timeoutMs: request.timeoutMs });
    }

    /**
     * @param {Request} request
     * @param {ApusError | null} error
     * @param {any} [answer]
     */
    #finish(request, error, answer) {
        if (!this.waiting.delete(request)) return;
        clearTimeout(request.timer);
        if (error) request.reject(error);
        else request.resolve(answer);
    }

    /** @param {ApusError} error */
    #failAll(error) {
        for (const request of [...this.waiting]) this.#finish(request, error);
    }

    /**
     * @param {Subscription} subscription
     * @param {Connection} connection
     */
    #subscribe(subscription, connection) {
        const body = subscription.cursor ? { topic: subscription.topic, after: subscription.cursor }
            : { topic: subscription.topic };
        this.request("topics.subscribe", body).then(answer => {
            if (!subscription.cursor && answer.cursor) subscription.cursor = answer.cursor;
            for (const reader of [...subscription.readers]) reader.onSubscribed?.();
        }, error => {
            if (this.active !== connection || error.code === 21023) return;
            // A cursor that no node knows: the events since then are lost.
            if (error.code === 21031 && subscription.cursor) {
                subscription.cursor = "";
                return this.#subscribe(subscription, connection);
            }
            for (const reader of [...subscription.readers]) reader.onError?.(error);
        });
    }

    // ---- time

    #schedule() {
        if (this.timer !== undefined || !this.link.isRunning) return;
        const isQuick = this.streams.size > 0 || !this.active || this.link.attempts.length > 0;
        const now = performance.now();
        // A silent node is found when it is due, and not at the next tick.
        const silence = this.link.silenceDueMs(now);
        const wait = !isQuick ? 1000 : silence > 0 ? Math.min(tickMs, Math.ceil(silence)) : tickMs;
        this.due = now + wait;
        this.timer = setTimeout(() => {
            this.timer = undefined;
            this.late = Math.max(0, performance.now() - this.due);
            // A page that was busy has messages to read first: the silence is its own.
            if (this.late > 40) setTimeout(() => this.#tick(), 0);
            else this.#tick();
        }, wait);
    }

    #tick() {
        this.#renewTicket();
        this.#perform(this.link.tick(performance.now()));
        this.#schedule();
    }
}

/** A request that waits. */
class Request {
    /**
     * @param {string} name
     * @param {object} body
     * @param {number} timeoutMs
     * @param {boolean} repeats
     * @param {(answer: any) => void} resolve
     * @param {(error: ApusError) => void} reject
     */
    constructor(name, body, timeoutMs, repeats, resolve, reject) {
        this.id = 0;
        this.name = name;
        this.body = body;
        this.timeoutMs = timeoutMs;
        this.repeats = repeats;
        this.resolve = resolve;
        this.reject = reject;
        /** @type {Connection | null} */
        this.sentOn = null;
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        this.timer = undefined;
    }
}

class Subscription {
    /**
     * @param {string} topic
     * @param {string} after
     */
    constructor(topic, after) {
        this.topic = topic;
        this.cursor = after;
        /**
         * The newest event of a topic that keeps none.
         * @type {any}
         */
        this.current = null;
        /** @type {Set<{onEvent: (event: any) => void, onError?: (error: ApusError) => void, onSubscribed?: () => void}>} */
        this.readers = new Set();
    }
}

/** One WebSocket. */
export class Connection {
    /**
     * @param {number} id
     * @param {string} url
     * @param {object} hello
     * @param {{onText: (text: any, connection: Connection) => void, onBinary: (bytes: ArrayBuffer, connection: Connection) => void, onClosed: (error: any, connection: Connection) => void}} handlers
     */
    constructor(id, url, hello, handlers) {
        this.id = id;
        this.url = url;
        /** @type {any} */
        this.welcome = null;
        /** @type {ApusError | null} */
        this.goodbye = null;
        /** @type {Map<number, any>} */
        this.requests = new Map();
        this.isClosed = false;
        this.handlers = handlers;
        /** @type {WebSocket | null} */
        this.socket = null;
        try {
            this.socket = new WebSocket(url);
        } catch {
            // The page may not connect there: mixed content, or an address that cannot be read.
            setTimeout(() => this.#ended(), 0);
            return;
        }
        const { socket } = this;
        socket.binaryType = "arraybuffer";
        socket.onopen = () => this.send(hello);
        socket.onclose = () => this.#ended();
        socket.onmessage = event => {
            if (this.isClosed) return;
            if (typeof event.data !== "string") return handlers.onBinary(event.data, this);
            let message;
            try {
                message = JSON.parse(event.data);
            } catch {
                return this.fail();
            }
            handlers.onText(message, this);
        };
    }

    /** Bytes that wait to be sent. */
    get backlog() { return this.socket?.bufferedAmount ?? 0; }

    /** @param {object} message */
    send(message) {
        if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
    }

    /** @param {Uint8Array} bytes */
    sendBytes(bytes) {
        if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(bytes);
    }

    /** @param {number} id */
    cancel(id) {
        this.requests.delete(id);
        this.send({ cancel: id });
    }

    /** The node violates the protocol. */
    fail() {
        this.close();
        this.isClosed = false;
        this.#ended();
    }

    close() {
        this.isClosed = true;
        this.socket?.close();
    }

    #ended() {
        if (this.isClosed) return;
        this.isClosed = true;
        this.handlers.onClosed(this.goodbye, this);
    }
}

/** @param {string} url */
function isOwnNode(url) {
    return new URL(url).host === globalThis.location?.host;
}

function defaultURL() {
    const { location } = globalThis;
    return `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/v1/ws`;
}

/**
 * The address of a node's WebSocket. Over TLS, only wss: a browser refuses ws in such a page.
 * @param {string} text
 */
function socketURL(text) {
    const url = new URL(text.includes("://") ? text : `ws://${text}`);
    if (url.protocol === "http:") url.protocol = "ws:";
    if (url.protocol === "https:") url.protocol = "wss:";
    if (globalThis.location?.protocol === "https:") url.protocol = "wss:";
    if (url.pathname === "/" || url.pathname === "") url.pathname = "/v1/ws";
    return url.href;
}

/** A random number of 63 bits, in decimal digits. */
export function randomID() {
    const words = crypto.getRandomValues(new BigUint64Array(1));
    return (words[0] >> 1n).toString();
}

/** 32 random hexadecimal digits. */
export function randomHex() {
    return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, "0")).join("");
}
