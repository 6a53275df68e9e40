// What has happened to the devices of an account.

import { h, paced, put, setText } from "./dom.js";
import { t, timeText } from "./texts.js";
import { nameOf } from "./cameras.js";

/** The most events that a browser keeps. */
const keptMax = 200;

/**
 * The events of the account, kept by the browser from one visit to the next. The cursor of the last one makes the cluster
 * send what was missed.
 */
export class EventLog extends EventTarget {
    /**
     * @param {import("../apus.js").Session} session
     * @param {string} account
     */
    constructor(session, account) {
        super();
        this.session = session;
        this.account = account;
        this.key = `apus-events-${account}`;
        /**
         * The newest first.
         * @type {{topic: string, name: string, device: string, json: string, time: number}[]}
         */
        this.list = [];
        this.cursor = "";
        this.unseen = 0;
        this.isMissed = false;
        this.problem = "";
        this.changed = paced(() => this.dispatchEvent(new Event("change")));
        this.store = paced(() => this.#store());
    }

    start() {
        try {
            const stored = JSON.parse(localStorage.getItem(this.key) ?? "{}");
            if (Array.isArray(stored.list)) this.list = stored.list.slice(0, keptMax);
            this.cursor = String(stored.cursor ?? "");
        } catch {
            // Nothing usable was kept.
        }
        this.session.subscribe(`events/${this.account}`, event => this.#add(event), {
            after: this.cursor,
            onError: error => {
                this.problem = error.message;
                this.changed();
            },
        });
    }

    /** @param {any} event */
    #add(event) {
        const { message, cursor, missed } = event;
        this.cursor = cursor;
        this.isMissed ||= missed;
        const topic = String(message.topic ?? "").replace("ACCOUNT_EVENT_TOPIC_", "").toLowerCase();
        this.list.unshift({
            topic, name: String(message.name ?? ""), device: String(message.device ?? ""),
                json: String(message.json ?? ""),
            time: Number(message.timeMs ?? 0),
        });
        this.list.length = Math.min(this.list.length, keptMax);
        this.unseen += 1;
        this.store();
        this.changed();
        if (topic === "share") this.dispatchEvent(new Event("share"));
        if (topic === "system" && message.name === "message") this.dispatchEvent(new Event("message"));
    }

    clear() {
        this.list = [];
        this.unseen = 0;
        this.isMissed = false;
        this.#store();
        this.changed();
    }

    seen() {
        if (this.unseen === 0) return;
        this.unseen = 0;
        this.changed();
    }

    #store() {
        try {
            localStorage.setItem(this.key, JSON.stringify({ list: this.list, cursor: this.cursor }));
        } catch {
            // The browser has no room, or does not allow it: the events last as long as the page.
        }
    }
}

/**
 * @param {import("./app.js").Context} context
 * @param {EventLog["list"][number]} event
 */
export function eventRow(context, event) {
    const label = t({ alarm: "topicAlarm", share: "topicShare", system: "topicSystem" }[event.topic] ?? event.topic);
    const link = event.device && h("a", { href: `#/camera/${encodeURIComponent(event.device)}` },
        context.names.get(event.device) ?? event.device);
    if (link) nameOf(context, event.device).then(name => setText(link, name));
    return h("li", {},
        h("span", { class: "tag" }, label), h("strong", {}, event.name),
        h("span", { class: "grow" }, link, event.json && event.json !== "{}" && h("code", { class: "quiet" }, " ",
            event.json.slice(0, 200))),
        h("time", { class: "quiet small", datetime: new Date(event.time || 0).toISOString() }, timeText(event.time)));
}

/** @type {import("./app.js").Page} */
export function eventsPage(context) {
    const { events } = context;
    const list = h("ul", { class: "list", "aria-label": t("events") });
    const card = h("div", { class: "card" }, list);
    const note = h("div");
    const clear = h("button", { type: "button", class: "button", onclick: () => events.clear() }, t("eventsClear"));
    let shown = -1;
    let newest = 0;
    const show = () => {
        if (context.signal.aborted) return;
        card.hidden = events.list.length === 0;
        clear.hidden = card.hidden;
        put(note,
            events.isMissed && h("p", { class: "quiet small" }, t("eventsMissed")), events.problem
                && h("p", { class: "problem" }, events.problem),
            card.hidden && h("div", { class: "card empty" }, h("h2", {}, t("eventsNone")),
                h("p", {}, t("eventsHelp"))));
        if (shown !== events.list.length || newest !== (events.list[0]?.time ?? 0)) put(list,
            events.list.map(event => eventRow(context, event)));
        shown = events.list.length;
        newest = events.list[0]?.time ?? 0;
        events.seen();
    };
    events.addEventListener("change", show, { signal: context.signal });
    show();
    return {
        title: t("events"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("events")), clear),
            h("div", { class: "stack" }, card, note)),
    };
}
