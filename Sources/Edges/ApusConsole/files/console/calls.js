// Calls: those that ring, the page of one, and those of the past (docs/calls.md).

import { randomHex, Talk } from "../apus.js";
import { h, icon, put, say, setText } from "./dom.js";
import { nameOf } from "./cameras.js";
import { errorText, lengthText, t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */

/**
 * @typedef {object} Call
 * @property {string} id
 * @property {string} peer what the other side is called
 * @property {string} device of the other side; empty for an account
 * @property {boolean} isOutgoing
 * @property {"placing" | "ringing" | "accepting" | "accepted" | "ended"} phase
 * @property {boolean} isMessage an answering machine has answered
 * @property {boolean} hasRung
 * @property {boolean} isConnected
 * @property {string} reason
 * @property {number} until when it stops ringing
 */

const stages = { CALL_STAGE_RING: 1, CALL_STAGE_ACCEPTED: 2, CALL_STAGE_ENDED: 3 };
const callsMax = 64;

/** The calls of this page. */
export class CallCenter extends EventTarget {
    /**
     * @param {import("../apus.js").Session} session
     * @param {Map<string, string>} names
     */
    constructor(session, names) {
        super();
        this.session = session;
        this.names = names;
        /** @type {Map<string, Call>} */
        this.calls = new Map();
        /** @type {(() => void) | null} */
        this.unsubscribe = null;
    }

    start() {
        this.unsubscribe = this.session.subscribe("calls/own", event => this.#noticed(event.message), {
            // A token for certain devices takes no calls.
            onError: () => {},
        });
    }

    stop() {
        for (const call of this.calls.values()) if (call.phase === "accepted") this.hangUp(call);
        this.unsubscribe?.();
    }

    /**
     * The call that rings here, if any.
     * @returns {Call | null}
     */
    get ringing() {
        for (const call of this.calls.values()) if (!call.isOutgoing && call.phase === "ringing") return call;
        return null;
    }

    /** @param {Call} call */
    nameOf(call) { return this.names.get(call.device) ?? call.peer; }

    /** @param {any} notice */
    #noticed(notice) {
        const id = String(notice.call ?? "");
        const stage = stages[/** @type {keyof typeof stages} */ (notice.stage)] ?? 0;
        const isRing = stage === 1 && !notice.outgoing;
        this.#report(id, isRing ? "CALL_EVENT_RANG" : "CALL_EVENT_CONFIRMED", isRing ? {} : { stage: notice.stage });
        let call = this.calls.get(id);
        if (!call) {
            if (stage === 3) return;
            call = { id, peer: "", device: "", isOutgoing: notice.outgoing === true, phase: "ringing", isMessage: false,
                hasRung: false, isConnected: false, reason: "", until: Infinity };
            this.calls.set(id, call);
            if (this.calls.size > callsMax) this.calls.delete(/** @type {string} */ (this.calls.keys().next().value));
        }
        if (notice.peer?.device || notice.peer?.account) {
            call.device = notice.peer.device ?? "";
            call.peer = notice.peer.device || notice.peer.account;
        }
        if (stage === 1) {
            call.hasRung = true;
            if (!call.isOutgoing && notice.timeoutMs) this.#expire(call, notice.timeoutMs);
        } else if (stage === 2 && call.phase !== "ended") {
            call.phase = "accepted";
            call.isMessage = notice.message === true;
        } else if (stage === 3) {
            call.phase = "ended";
            call.reason = String(notice.reason ?? "");
        }
        this.#changed();
    }

    /**
     * @param {Call} call
     * @param {number} wait
     */
    #expire(call, wait) {
        setTimeout(() => {
            if (call.phase !== "ringing") return;
            call.phase = "ended";
            this.#changed();
        }, wait + 2000);
    }

    #changed() { this.dispatchEvent(new Event("change")); }

    /**
     * @param {string} call
     * @param {string} event
     * @param {object} [values]
     */
    async #report(call, event, values = {}) {
        try {
            return await this.session.request("calls.report", { call, event, ...values });
        } catch (error) {
            const known = this.calls.get(call);
            if (known && [-2508, -2522, 8003, 20011].includes(/** @type {any} */ (error).code)) {
                known.phase = "ended";
                this.#changed();
            } else if (event !== "CALL_EVENT_CONFIRMED" && event !== "CALL_EVENT_RANG") {
                say(errorText(error), true);
            }
            return null;
        }
    }

    /** @param {Call} call */
    async accept(call) {
        call.phase = "accepting";
        this.#changed();
        await this.#report(call.id, "CALL_EVENT_ACCEPTED");
    }

    /** @param {Call} call */
    decline(call) {
        call.phase = "ended";
        this.#changed();
        this.#report(call.id, "CALL_EVENT_REJECTED");
    }

    /** @param {Call} call */
    hangUp(call) {
        const event = call.phase === "accepted" ? "CALL_EVENT_HUNG_UP" : "CALL_EVENT_CANCELLED";
        call.phase = "ended";
        this.#changed();
        this.#report(call.id, event);
    }

    /** @param {Call} call */
    connected(call) {
        if (call.isConnected) return;
        call.isConnected = true;
        this.#report(call.id, "CALL_EVENT_CONNECTED");
    }

    /**
     * Calls a device, and shows the call.
     * @param {string} device
     */
    async place(device) {
        const id = randomHex();
        const body = { type: 1, targets: [{ device }], timeoutSeconds: 30, id };
        try {
            const info = await this.session.request("calls.start", body).catch(error => {
                // Its answer was lost: the same id places one call.
                if (error.code === 10008) return this.session.request("calls.start", { ...body, again: true });
                throw error;
            });
            const call = this.calls.get(info.call)
                ?? { id: String(info.call), peer: device, device, isOutgoing: true, phase: "ringing", isMessage: false,
                hasRung: false, isConnected: false, reason: "", until: Infinity };
            call.isOutgoing = true;
            call.device ||= device;
            call.peer ||= device;
            this.calls.set(call.id, /** @type {Call} */ (call));
            location.hash = `#/call/${encodeURIComponent(call.id)}`;
        } catch (error) {
            say(errorText(error), true);
        }
    }
}

/** @type {import("./app.js").Page} */
export function callPage(context, id) {
    const { calls } = context;
    const call = calls.calls.get(id);
    const title = h("h1", {}, call ? calls.nameOf(call) : t("calls"));
    const status = h("p", { role: "status" });
    const stage = h("div", { class: "person" });
    const tools = h("div", { class: "stack" });
    const back = h("a", { class: "button", href: "#/calls" }, t("calls"));
    /** @type {Talk | null} */
    let talk = null;
    let shown = "";
    /** @param {Call} call */
    const open = call => {
        const player = /** @type {import("../apus.js").ApusPlayer} */ (document.createElement("apus-player"));
        player.session = context.session;
        player.setAttribute("call", call.id);
        player.setAttribute("label", calls.nameOf(call));
        player.setAttribute("controls", "");
        player.addEventListener("apus-first-picture", () => calls.connected(call), { once: true });
        put(stage, player);
        // The press that has answered allows sound.
        player.setMuted(false);
        talk = microphone(context, call, tools);
    };
    const show = () => {
        if (!call) return setText(status, t("callOver"));
        const name = calls.nameOf(call);
        setText(title, name);
        const text = {
            placing: t("calling", { name }), accepting: t("connecting"), ringing: call.isOutgoing
                ? (call.hasRung ? t("itRings") : t("calling", { name })) : t("ringing", { name }),
            accepted: call.isMessage ? t("leaveMessage") : t("onCall", { name }),
            ended: call.reason ? t("callOverWhy", { reason: t(call.reason === "unreachable" ? "unreachable_party"
                : call.reason) }) : t("callOver"),
        }[call.phase];
        setText(status, text);
        if (shown === call.phase) return;
        shown = call.phase;
        if (call.phase === "accepted") open(call);
        else if (call.phase === "ended") {
            talk?.stop();
            talk = null;
            setText(stage, name);
            put(tools, h("div", { class: "row" }, call.device && h("button", { type: "button", class: "button",
                onclick: () => calls.place(call.device) }, icon("calls"), t("talk")), back));
        } else {
            setText(stage, name);
            put(tools, h("div", { class: "row" },
                !call.isOutgoing && call.phase === "ringing" && h("button", { type: "button", class: "button primary",
                    onclick: () => calls.accept(call) }, t("accept")),
                h("button", { type: "button", class: "button danger", onclick: () =>
                    (call.isOutgoing || call.phase !== "ringing" ? calls.hangUp(call) : calls.decline(call)) },
                    t(call.isOutgoing ? "cancel" : call.phase === "ringing" ? "decline" : "hangUp"))));
        }
    };
    calls.addEventListener("change", show, { signal: context.signal });
    context.signal.addEventListener("abort", () => {
        talk?.stop();
        // Leaving the page of a call ends it: nothing is sent that is not shown.
        if (call && call.phase !== "ended") calls.hangUp(call);
    });
    if (!call) put(tools, back);
    show();
    return { title: call ? calls.nameOf(call) : t("calls"), element: h("div", { class: "call" }, title, status, stage,
        tools) };
}

/**
 * The buttons of a call: hold to talk, keep the microphone on, show the camera, hang up.
 *
 * @param {Context} context
 * @param {Call} call
 * @param {HTMLElement} tools
 * @returns {Talk}
 */
function microphone(context, call, tools) {
    const talk = new Talk(context.session, call.id, { onOpen: () => context.calls.connected(call), onEnd: error =>
        call.phase === "accepted" && say(errorText(error), true) });
    const hangUp = h("button", { type: "button", class: "button danger", onclick: () => context.calls.hangUp(call) },
        t("hangUp"));
    const { missing } = Talk;
    if (missing) {
        put(tools, h("p", { class: "quiet" }, t(missing === "https" ? "talkNeedsHttps" : "talkNeedsEncoder")),
            h("div", { class: "row" }, hangUp));
        return talk;
    }
    let isHeld = false;
    /** @type {Promise<boolean> | null} */
    let starting = null;
    const start = () => {
        starting ??= talk.start({ withPicture: picture.checked }).then(() => true, error => {
            say(t("talkRefused", { reason: error.message }), true);
            starting = null;
            return false;
        });
        return starting;
    };
    const update = async () => {
        const isWanted = isHeld || keep.checked;
        if (isWanted && !(await start())) {
            keep.checked = false;
            return;
        }
        const isTalking = isHeld || keep.checked;
        talk.setTalking(isTalking);
        hold.setAttribute("aria-pressed", String(isTalking));
        setText(hold, t(isTalking ? "talking" : "holdToTalk"));
    };
    /** @param {boolean} value */
    const held = value => {
        if (isHeld === value) return;
        isHeld = value;
        update();
    };
    const hold = h("button", {
        type: "button", class: "button primary talk", "aria-pressed": "false",
        onpointerdown: (/** @type {PointerEvent} */ event) => {
            hold.setPointerCapture(event.pointerId);
            held(true);
        },
        onpointerup: () => held(false), onpointercancel: () => held(false),
        onkeydown: (/** @type {KeyboardEvent} */ event) => (event.key === " " || event.key === "Enter") && held(true),
        onkeyup: () => held(false), onblur: () => held(false),
            oncontextmenu: (/** @type {Event} */ event) => event.preventDefault(),
    }, t("holdToTalk"));
    const keep = h("input", { type: "checkbox", onchange: update });
    const picture = h("input", {
        type: "checkbox", onchange: async () => {
            const wasOn = starting !== null;
            if (wasOn) {
                // The tracks of a side are known from its beginning: it begins again with or without a picture.
                await talk.stop();
                starting = null;
            }
            if (picture.checked || wasOn) await start();
            update();
        },
    });
    const canShow = typeof VideoEncoder !== "undefined";
    put(tools, h("div", { class: "row" }, hold, hangUp), h("label", { class: "check" }, keep, t("keepTalking")), canShow
        && h("label", { class: "check" }, picture, t("withCamera")));
    // The other side hears silence until the button is held, so its player has a stream.
    start();
    return talk;
}

/** @type {import("./app.js").Page} */
export function callsPage(context) {
    const list = h("ul", { class: "list" });
    const card = h("section", { class: "card", hidden: true }, h("h2", {}, t("history")), list);
    const note = h("div", {}, h("p", { class: "empty" }, t("loading")));
    /** @param {any} party */
    const partyName = party => (party?.device ? context.names.get(party.device) ?? party.device : party?.account ?? "");
    const load = async () => {
        try {
            const { calls = [] } = await context.session.request("calls.list", { pageSize: 100 });
            await Promise.all([...new Set(calls.flatMap((/** @type {any} */ call) => [call.caller, ...(call.called ?? [])]).map((/** @type {any} */ party) => party?.device).filter(Boolean))]
                .slice(0, 50).map(device => nameOf(context, String(device))));
            if (context.signal.aborted) return;
            card.hidden = calls.length === 0;
            put(note, calls.length === 0 && h("div", { class: "card empty" }, h("h2", {}, t("historyNone")),
                h("p", {}, t("historyHelp"))));
            put(list, calls.map((/** @type {any} */ call) => {
                const isOwn = call.caller?.account === context.who.account;
                const other = isOwn ? (call.called ?? [])[0] : call.caller;
                const accepted = Number(call.acceptedMs ?? 0);
                const result = accepted ? t("answered",
                    { length: lengthText((Number(call.endedMs ?? 0) - accepted) / 1000) })
                    : t(call.reason === "message_left" ? "message_left" : "missed");
                return h("li", {}, h("span", { class: "grow" },
                    h("strong", {}, t(isOwn ? "callTo" : "callFrom", { name: partyName(other) })), " ",
                    h("span", { class: "quiet small" }, result)), h("time", { class: "quiet small" },
                        timeText(Number(call.startedMs ?? 0))),
                other?.device && h("button", { type: "button", class: "button",
                    "aria-label": `${t("talk")}: ${partyName(other)}`, onclick: () =>
                    context.calls.place(other.device) }, icon("calls"), t("talk")));
            }));
        } catch (error) {
            put(note, h("p", { class: "problem" }, errorText(error)));
        }
    };
    let open = "";
    context.calls.addEventListener("change", () => {
        const ended = [...context.calls.calls.values()].filter(call => call.phase === "ended").map(call =>
            call.id).join();
        if (ended !== open) load();
        open = ended;
    }, { signal: context.signal });
    load();
    return { title: t("calls"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("calls"))), card, note) };
}
