// What callers have left on the answering machine (docs/answering-machine.md).

import { ask, h, put, say } from "./dom.js";
import { attempt, nameOf } from "./cameras.js";
import { errorText, lengthText, t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */

const piecesMax = 4096;

/** @type {import("./app.js").Page} */
export function messagesPage(context) {
    const list = h("ul", { class: "list" });
    const card = h("section", { class: "card", hidden: true }, list);
    const note = h("div", {}, h("p", { class: "empty" }, t("loading")));
    const machine = h("div");
    const load = async () => {
        try {
            const { messages = [] } = await context.session.request("messages.list", { pageSize: 100 });
            if (context.signal.aborted) return;
            card.hidden = messages.length === 0;
            put(note, messages.length === 0 && h("div", { class: "card empty" }, h("h2", {}, t("messagesNone")),
                h("p", {}, t("messagesHelp"))));
            put(list, messages.map((/** @type {any} */ message) => row(context, message, load)));
        } catch (error) {
            put(note, h("p", { class: "problem" }, errorText(error)));
        }
    };
    load();
    showMachine(context, machine);
    context.events.addEventListener("message", load, { signal: context.signal });
    return { title: t("messages"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("messages"))),
        h("div", { class: "stack" }, card, note, machine)) };
}

/**
 * @param {Context} context
 * @param {any} message
 * @param {() => void} reload
 */
function row(context, message, reload) {
    const caller = message.caller?.device || message.caller?.account || "";
    const name = h("strong", {}, t("messageFrom", { name: context.names.get(caller) ?? caller }));
    if (message.caller?.device) nameOf(context, caller).then(known => { name.textContent = t("messageFrom",
        { name: known }); });
    const place = h("div", { hidden: true });
    const label = `${t("messageFrom", { name: caller })}, ${timeText(Number(message.startedMs ?? 0))}`;
    const watch = h("button", {
        type: "button", class: "button", "aria-label": `${t("watch")}: ${label}`, onclick: async () => {
            watch.disabled = true;
            try {
                const video = h("video", { class: "message", controls: true, autoplay: true, "aria-label": label });
                video.src = URL.createObjectURL(await read(context, message.message));
                place.hidden = false;
                put(place, video);
                context.signal.addEventListener("abort", () => URL.revokeObjectURL(video.src));
                await context.session.request("messages.mark", { message: message.message, watched: true });
            } catch (error) {
                say(errorText(error), true);
            }
            watch.disabled = false;
        },
    }, t("watch"));
    const remove = h("button", {
        type: "button", class: "button", "aria-label": `${t("delete")}: ${label}`, onclick: async () => {
            if (!(await ask({ title: t("deleteMessage"), text: t("deleteMessageText"), confirm: t("delete"),
                cancel: t("cancel"), isDangerous: true }))) return;
            await attempt(context.session.request("messages.delete", { message: message.message }));
            reload();
        },
    }, t("delete"));
    return h("li", {}, !message.watched && h("span", { class: "tag new" }, t("messageNew")),
        h("span", { class: "grow" }, name, " ", h("span", { class: "quiet small" },
            lengthText(Number(message.lengthMs ?? 0) / 1000))),
        h("time", { class: "quiet small" }, timeText(Number(message.startedMs ?? 0))), Number(message.bytes ?? 0) > 0
            && watch, remove,
        h("div", { class: "unseen" }), place);
}

/**
 * The MP4 of a message.
 *
 * @param {Context} context
 * @param {string} message
 */
async function read(context, message) {
    const pieces = [];
    for (let index = 0; index < piecesMax; index++) {
        const { data = "" } = await context.session.request("messages.read", { message, index });
        if (data === "") break;
        pieces.push(Uint8Array.from(atob(data), character => character.charCodeAt(0)));
    }
    return new Blob(pieces, { type: "video/mp4" });
}

/**
 * @param {Context} context
 * @param {HTMLElement} place
 */
async function showMachine(context, place) {
    let machine;
    try {
        machine = await context.session.request("answering.get", {});
    } catch {
        return;
    }
    if (context.signal.aborted) return;
    const enabled = h("input", { type: "checkbox", checked: machine.enabled === true });
    /** @type {(id: string, label: string, value: number, min: number, max: number) => any} */
    const number = (id, label, value, min, max) => {
        const input = h("input", { type: "number", id, value: String(value), min, max, required: true });
        return { input, element: h("div", { class: "field" }, h("label", { for: id }, label), input) };
    };
    const after = number("machine-after", t("machineAfter"), machine.afterSeconds ?? 0, 0, 120);
    const length = number("machine-length", t("machineLength"), machine.lengthSeconds || 30, 1, 120);
    const keep = number("machine-keep", t("machineKeep"), machine.keepDays || 30, 1, 365);
    put(place, h("section", { class: "card" }, h("h2", {}, t("machine")), h("form", {
        class: "stack", onsubmit: (/** @type {Event} */ event) => {
            event.preventDefault();
            attempt(context.session.request("answering.set", {
                enabled: enabled.checked, afterSeconds: Number(after.input.value),
                    lengthSeconds: Number(length.input.value), keepDays: Number(keep.input.value),
            }), t("saved", { name: t("machine") }));
        },
    }, h("label", { class: "check" }, enabled, t("machineOn")), after.element, length.element, keep.element,
        h("div", {}, h("button", { class: "button" }, t("save"))))));
}
