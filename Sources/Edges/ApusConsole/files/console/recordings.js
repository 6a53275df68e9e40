// What a device has recorded itself, listed and played from any time on (docs/recordings.md).

import { randomHex } from "../apus.js";
import { runAction } from "./camera.js";
import { h, put, say, setText } from "./dom.js";
import { errorText, lengthText, t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../apus.js").ApusPlayer} ApusPlayer */

const dayMs = 86_400_000;
const keepMs = 20_000;

/**
 * @param {Context} context
 * @param {string} device
 * @param {ApusPlayer} player shows the live picture, or a recording
 */
export function recordingsCard(context, device, player) {
    const body = h("div", { class: "stack" });
    const bar = h("div", { class: "stack", hidden: true });
    const playback = new Playback(context, device, player, bar);
    context.signal.addEventListener("abort", () => playback.stop());
    const load = async () => {
        const now = Date.now();
        try {
            const list = await recordings(context, device, now - dayMs, now);
            if (context.signal.aborted) return;
            show(list, now);
        } catch (error) {
            const { code } = /** @type {any} */ (error);
            put(body, h("p", { class: "quiet" }, code === 20104 || code === 21030 ? t("recordingsMissing")
                : code === 12004 ? t("rights") : errorText(error)), button);
        }
    };
    const button = h("div", {}, h("button", { type: "button", class: "button", onclick: load }, t("recordingsLoad")));
    /**
     * @param {[number, number][]} list
     * @param {number} now
     */
    const show = (list, now) => {
        if (list.length === 0) return put(body, h("p", { class: "quiet" }, t("recordingsNone")), button);
        const day = h("div", { class: "day", role: "group", "aria-label": t("timeline") });
        for (const [start, end] of list) {
            const from = Math.max(start, now - dayMs);
            const run = h("button", { type: "button", "aria-label": t("recordingPlay", { time: timeText(from) }),
                title: `${timeText(from)} – ${timeText(end)}` });
            run.style.left = `min(${(from - (now - dayMs)) / dayMs * 100}%, calc(100% - 10px))`;
            run.style.width = `${Math.max(0, end - from) / dayMs * 100}%`;
            // A press in the middle of a run plays from there, the keyboard from its start.
            run.addEventListener("click", (/** @type {MouseEvent} */ event) => {
                const box = run.getBoundingClientRect();
                const part = event.detail === 0 || box.width === 0 ? 0 : (event.clientX - box.left) / box.width;
                playback.play(from + (end - from) * part);
            });
            day.append(run);
        }
        const rows = list.slice(-12).reverse().map(([start, end]) => h("li", {},
            h("span", { class: "grow" }, `${timeText(start)} – ${timeText(end)} `, h("span", { class: "quiet small" },
                lengthText((end - start) / 1000))),
            h("button", { type: "button", class: "button", "aria-label": t("recordingPlay", { time: timeText(start) }),
                onclick: () => playback.play(start) }, t("resume"))));
        put(body, day, h("div", { class: "scale quiet small" }, h("span", {}, timeText(now - dayMs)),
            h("span", {}, timeText(now))), h("ul", { class: "list" }, rows));
    };
    put(body, button);
    return h("section", { class: "card" }, h("h2", {}, t("recordings")), h("div", { class: "stack" }, bar, body));
}

/**
 * The recordings of a device between two times, in Unix milliseconds, oldest first.
 *
 * @param {Context} context
 * @param {string} device
 * @param {number} from
 * @param {number} to
 * @returns {Promise<[number, number][]>}
 */
async function recordings(context, device, from, to) {
    /** @type {[number, number][]} */
    const found = [];
    for (let round = 0; round < 20; round++) {
        const { json } = await runAction(context, device, "_recordings",
            JSON.stringify({ source: 0, from: Math.floor(from), to: Math.floor(to) }));
        const answer = JSON.parse(json);
        const list = Array.isArray(answer.list) ? answer.list : [];
        const last = found.length > 0 ? found[found.length - 1][0] : -1;
        const fresh = list.filter((/** @type {any} */ run) => Array.isArray(run) && run.length === 2 && run.every(Number.isFinite) && run[0] > last);
        found.push(...fresh);
        if (!answer.more || fresh.length === 0) break;
        from = fresh[fresh.length - 1][1];
    }
    return found;
}

/** Plays a recording in a player. The device publishes it as a source of its own. */
class Playback {
    /**
     * @param {Context} context
     * @param {string} device
     * @param {ApusPlayer} player
     * @param {HTMLElement} bar
     */
    constructor(context, device, player, bar) {
        this.context = context;
        this.device = device;
        this.player = player;
        this.bar = bar;
        this.id = "";
        this.start = 0;
        this.end = 0;
        this.epoch = 0;
        this.isPaused = false;
        /** @type {ReturnType<typeof setInterval> | undefined} */
        this.timer = undefined;
        this.ended = (/** @type {any} */ event) => event.detail >= this.epoch && this.id !== "" && say(t("recordingEnded"));
    }

    /**
     * @param {string} verb
     * @param {object} [values]
     */
    async ask(verb, values = {}) {
        const { json } = await runAction(this.context, this.device, "_playback",
            JSON.stringify({ verb, id: this.id, ...values }));
        return json ? JSON.parse(json) : {};
    }

    /** @param {number} time Unix milliseconds */
    async play(time) {
        const at = Math.floor(time);
        try {
            if (this.id !== "") return await this.seek(at);
            this.id = randomHex();
            const opened = await this.ask("open", { source: 0, at });
            this.note(opened);
            // The device sends once the stream is granted, so no frame is missed.
            const granted = new Promise((resolve, reject) => {
                this.player.addEventListener("apus-granted", resolve, { once: true });
                setTimeout(() => reject(new Error("the stream was not granted in time")), 10_000);
            });
            this.player.skipRunsBefore(opened.epoch);
            this.player.setAttribute("source", String(opened.source));
            this.player.addEventListener("apus-run-ended", this.ended);
            this.player.play();
            this.show();
            this.timer = setInterval(() => this.ask("keep").catch(() => {}), keepMs);
            this.player.scrollIntoView({ block: "nearest" });
            await granted;
            await this.ask("resume");
        } catch (error) {
            say(errorText(error), true);
            this.stop();
        }
    }

    /** @param {number} at */
    async seek(at) {
        const opened = await this.ask("seek", { at });
        this.player.skipRunsBefore(opened.epoch);
        this.note(opened);
        this.show();
        if (!this.isPaused) await this.ask("resume");
    }

    /** @param {any} opened */
    note(opened) {
        this.start = Number(opened.start);
        this.end = Math.max(this.start + 1, Number(opened.end));
        this.epoch = Number(opened.epoch);
    }

    show() {
        const slider = h("input", {
            type: "range", min: this.start, max: this.end, step: 1000, value: this.start,
                "aria-label": t("recordingTime"),
            oninput: () => setText(time, timeText(Number(slider.value))),
            onchange: () => this.seek(Number(slider.value)).catch(error => say(errorText(error), true)),
        });
        slider.value = String(this.start);
        const time = h("span", { class: "mono" }, timeText(this.start));
        const pause = h("button", {
            type: "button", class: "button", onclick: async () => {
                this.isPaused = !this.isPaused;
                setText(pause, t(this.isPaused ? "resume" : "pause"));
                await this.ask(this.isPaused ? "pause" : "resume").catch(error => say(errorText(error), true));
            },
        }, t(this.isPaused ? "resume" : "pause"));
        put(this.bar, h("p", {}, t("recordingNow", { time: `${timeText(this.start)} – ${timeText(this.end)}` })),
            slider,
            h("div", { class: "row" }, time, pause, h("button", { type: "button", class: "button primary",
                onclick: () => this.stop() }, t("live"))));
        this.bar.hidden = false;
    }

    /** Shows the live picture again. */
    stop() {
        if (this.id === "") return;
        clearInterval(this.timer);
        this.player.removeEventListener("apus-run-ended", this.ended);
        this.ask("stop").catch(() => {});
        this.id = "";
        this.bar.hidden = true;
        this.player.skipRunsBefore(0);
        this.player.removeAttribute("source");
    }
}
