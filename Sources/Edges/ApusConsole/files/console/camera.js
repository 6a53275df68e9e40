// One camera: the live picture, what it recorded, its settings, actions and shares.

import { ApusError } from "../apus.js";
import { ask, h, icon, paced, put, say, setText } from "./dom.js";
import { attempt, nameOf, showPresence } from "./cameras.js";
import { eventRow } from "./events.js";
import { recordingsCard } from "./recordings.js";
import { t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */

/** @type {import("./app.js").Page} */
export function cameraPage(context, device) {
    const title = h("h1", { class: "grow" }, context.names.get(device) ?? device);
    const presence = h("span", { class: "state" });
    const player = /** @type {import("../apus.js").ApusPlayer} */ (document.createElement("apus-player"));
    player.session = context.session;
    player.setAttribute("device", device);
    player.setAttribute("controls", "");
    player.setAttribute("label", context.names.get(device) ?? device);
    const call = h("button", { type: "button", class: "button primary", onclick: () => context.calls.place(device) },
        icon("calls"), t("talk"));
    nameOf(context, device).then(name => {
        if (context.signal.aborted) return;
        setText(title, name);
        player.setAttribute("label", name);
    });
    const leave = context.session.subscribe(`presence/${device}`, event => showPresence(presence,
        Number(event.message.online ?? 0)));
    context.signal.addEventListener("abort", leave);
    const model = new Model(context, device, value => { call.hidden = value?.ProReadonly?._twoWayVideo?.stVal === 0; });
    const rights = h("p", { class: "card quiet", hidden: true }, t("rights"));
    return {
        title: context.names.get(device) ?? device,
        element: h("div", {},
            h("div", { class: "head" },
                h("a", { class: "button plain", href: "#/cameras", "aria-label": t("back") }, icon("back")), title,
                    presence, call),
            h("div", { class: "camera" },
                h("div", { class: "stack live" }, player, recordingsCard(context, device, player)),
                h("div", { class: "stack beside" }, rights, model.actions, model.settings, model.states),
                h("div", { class: "columns more" }, sharingCard(context, device), eventsCard(context, device)))),
    };
}

/** The model of a device, as three cards that follow its changes. */
class Model {
    /**
     * @param {Context} context
     * @param {string} device
     * @param {(value: any) => void} onValue
     */
    constructor(context, device, onValue) {
        this.context = context;
        this.device = device;
        this.onValue = onValue;
        /** @type {any} */
        this.value = null;
        this.pending = new Set();
        this.settingsBody = h("div", { class: "stack" }, h("p", { class: "quiet" }, t("loading")));
        this.actionsBody = h("div", { class: "stack" });
        this.statesBody = h("dl", { class: "pair" });
        this.settings = h("section", { class: "card" }, h("h2", {}, t("settings")), this.settingsBody);
        this.actions = h("section", { class: "card" }, h("h2", {}, t("actions")), this.actionsBody);
        this.states = h("section", { class: "card", hidden: true }, h("h2", {}, t("states")), this.statesBody);
        /** @type {Map<string, {set: (value: any, isPending: boolean) => void}>} */
        this.fields = new Map();
        this.shownActions = "?";
        this.show = paced(() => this.#show());
        const unsubscribe = context.session.subscribe(`things/${device}`, event => this.#changed(event),
            { onError: () => {} });
        context.signal.addEventListener("abort", unsubscribe);
        this.#read();
    }

    async #read() {
        try {
            const { json } = await this.context.session.request("properties.read", { device: this.device, path: "" });
            this.value = JSON.parse(json);
            this.show();
        } catch (error) {
            put(this.settingsBody, h("p", { class: "quiet" }, /** @type {Error} */ (error).message));
        }
    }

    /** @param {any} event */
    #changed(event) {
        if (event.missed || !this.value) return this.#read();
        const { path = "", json = "", pending = false } = event.message;
        const [root, leaf] = path.split(".");
        if (!root || !leaf) return this.#read();
        this.value[root] ??= {};
        if (json === "") delete this.value[root][leaf];
        else {
            try {
                this.value[root][leaf] = JSON.parse(json);
            } catch {
                return this.#read();
            }
        }
        if (pending) this.pending.add(leaf);
        else this.pending.delete(leaf);
        this.show();
    }

    #show() {
        if (this.context.signal.aborted) return;
        this.onValue(this.value);
        const leaves = /** @param {string} root */ root => Object.entries(this.value?.[root] ?? {}).filter(([name]) => !name.startsWith("_"));
        this.#showSettings(leaves("ProWritable"));
        this.#showActions(leaves("Action"));
        const states = leaves("ProReadonly");
        this.states.hidden = states.length === 0;
        put(this.statesBody, states.flatMap(([name, leaf]) => [h("dt", {}, name),
            h("dd", {}, valueText(leaf?.stVal))]));
    }

    /** @param {[string, any][]} leaves */
    #showSettings(leaves) {
        if (leaves.length === 0) {
            this.fields.clear();
            return put(this.settingsBody, h("p", { class: "quiet" }, t("settingsNone")));
        }
        const names = new Set(leaves.map(([name]) => name));
        const isSame = this.fields.size === names.size && [...this.fields.keys()].every(name => names.has(name));
        if (!isSame) {
            this.fields.clear();
            put(this.settingsBody, leaves.map(([name, leaf]) => {
                const field = settingField(name, leaf?.setVal, value => this.#write(name, value));
                this.fields.set(name, field);
                return field.element;
            }));
        }
        for (const [name, leaf] of leaves) this.fields.get(name)?.set(leaf?.setVal, this.pending.has(name));
    }

    /**
     * @param {string} name
     * @param {any} value
     */
    async #write(name, value) {
        const answer = await attempt(this.context.session.request("properties.write", {
            device: this.device, path: `ProWritable.${name}.setVal`, json: JSON.stringify(value),
        }));
        if (!answer) return this.#read();
        if (answer.pending) this.pending.add(name);
        if (this.value?.ProWritable?.[name]) this.value.ProWritable[name].setVal = value;
        say(t("saved", { name }));
        this.show();
    }

    /** @param {[string, any][]} leaves */
    #showActions(leaves) {
        const names = leaves.map(([name]) => name).join("\n");
        this.actions.hidden = false;
        if (names === this.shownActions) return;
        this.shownActions = names;
        const recent = h("details", {}, h("summary", {}, t("recent")));
        recent.addEventListener("toggle", () => recent.open && this.#showRecent(recent));
        put(this.actionsBody, leaves.map(([name, leaf]) => this.#action(name, leaf?.ctlVal)), this.#otherAction(), recent);
    }

    /** A device may carry out actions that its model does not list. */
    #otherAction() {
        const name = h("input", { "aria-label": t("actionName"), placeholder: t("actionName"), spellcheck: "false" });
        const place = h("div", { class: "stack" });
        const form = h("form", {
            onsubmit: (/** @type {Event} */ event) => {
                event.preventDefault();
                if (/^[\w-]{1,64}$/.test(name.value)) put(place, this.#action(name.value, 0));
            },
        }, h("div", { class: "row" }, h("div", { class: "grow" }, name), h("button", { class: "button" }, t("choose"))));
        return h("div", { class: "stack" }, form, place);
    }

    /**
     * @param {string} name
     * @param {any} value
     */
    #action(name, value) {
        const field = h("input", { value: JSON.stringify(value ?? 0), "aria-label": t("argument", { name }),
            spellcheck: "false", class: "mono" });
        const answer = h("p", { class: "quiet small", role: "status" });
        const button = h("button", { class: "button", "aria-label": `${t("run")}: ${name}` }, t("run"));
        return h("form", {
            class: "field", onsubmit: async (/** @type {Event} */ event) => {
                event.preventDefault();
                try {
                    JSON.parse(field.value);
                } catch {
                    setText(answer, t("badJSON"));
                    return field.focus();
                }
                button.disabled = true;
                setText(answer, "");
                const result = await attempt(runAction(this.context, this.device, name, field.value));
                button.disabled = false;
                if (result) setText(answer, result.json ? t("answer", { json: result.json.slice(0, 500) })
                    : t("ran", { name }));
            },
        }, h("span", {}, name), h("div", { class: "row" }, h("div", { class: "grow" }, field), button), answer);
    }

    /** @param {HTMLElement} details */
    async #showRecent(details) {
        const answer = await attempt(this.context.session.request("commands.list", { device: this.device }));
        const list = h("ul", { class: "list" }, (answer?.commands ?? []).slice(0,
            20).map((/** @type {any} */ command) => h("li", {},
            h("span", { class: "grow" }, (command.path || "").replace(/^Action\./, "") || "–", " ",
                h("span", { class: "quiet small" }, t(command.status), command.code ? ` (${command.code})` : "")),
            h("time", { class: "quiet small" }, timeText(Number(command.createdMs ?? 0))))));
        put(details, h("summary", {}, t("recent")), list);
    }
}

/**
 * Carries out an action of a device, and waits for its answer.
 *
 * @param {Context} context
 * @param {string} device
 * @param {string} name
 * @param {string} json
 */
export async function runAction(context, device, name, json) {
    const command = await context.session.request("commands.send", { device, path: `Action.${name}.ctlVal`, json },
        { timeoutMs: 10_000 });
    if (command.code) throw new ApusError(command.code, command.message);
    return command;
}

/** @param {any} value */
function valueText(value) {
    if (value === true) return t("yes");
    if (value === false) return t("no");
    return value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

/**
 * A field that fits a value's type.
 *
 * @param {string} name
 * @param {any} value
 * @param {(value: any) => void} write
 */
function settingField(name, value, write) {
    const note = h("span", { class: "state warn", hidden: true }, t("pending"));
    const id = `setting-${name}`;
    const head = h("div", { class: "row" }, h("label", { for: id, class: "grow" }, name), note);
    if (typeof value === "boolean") {
        const input = h("input", { type: "checkbox", id, onchange: () => write(input.checked) });
        return {
            element: h("div", { class: "row" }, h("label", { class: "check grow" }, input, name), note),
            /** @type {(value: any, isPending: boolean) => void} */
            set: (value, isPending) => {
                input.checked = value === true;
                note.hidden = !isPending;
            },
        };
    }
    const isNumber = typeof value === "number";
    const isText = typeof value === "string";
    const input = isNumber || isText ? h("input", { id, type: isNumber ? "number" : "text", step: "any" })
        : h("textarea", { id, spellcheck: "false" });
    const problem = h("p", { class: "problem small", role: "alert" });
    const button = h("button", { class: "button", hidden: true, "aria-label": `${t("save")}: ${name}` }, t("save"));
    let shown = "";
    input.addEventListener("input", () => { button.hidden = input.value === shown; });
    const element = h("form", {
        class: "field", onsubmit: (/** @type {Event} */ event) => {
            event.preventDefault();
            setText(problem, "");
            let written;
            try {
                written = isText ? input.value : JSON.parse(input.value);
            } catch {
                return setText(problem, t("badJSON"));
            }
            shown = input.value;
            button.hidden = true;
            write(written);
        },
    }, head, h("div", { class: "row" }, h("div", { class: "grow" }, input), button), problem);
    return {
        element,
        /** @type {(value: any, isPending: boolean) => void} */
        set: (value, isPending) => {
            note.hidden = !isPending;
            const text = isText && typeof value === "string" ? value : JSON.stringify(value);
            if (text === shown) return;
            // What a person is typing stays.
            if (input.value === shown) input.value = text;
            shown = text;
            button.hidden = input.value === shown;
        },
    };
}

/**
 * @param {Context} context
 * @param {string} device
 */
function sharingCard(context, device) {
    const list = h("ul", { class: "list" });
    const account = h("input", { id: "share-account", autocomplete: "off", required: true, spellcheck: "false" });
    const control = h("input", { type: "checkbox" });
    const card = h("section", { class: "card", hidden: true }, h("h2", {}, t("sharing")), h("div", { class: "stack" },
        list,
        h("form", {
            class: "stack", onsubmit: async (/** @type {Event} */ event) => {
                event.preventDefault();
                const name = account.value.trim();
                const answer = await attempt(context.session.request("devices.share",
                    { device, account: name, control: control.checked }), t("invitedNow", { account: name }));
                if (answer) account.value = "";
                load();
            },
        }, h("div", { class: "field" }, h("label", { for: "share-account" }, t("shareAccount")), account),
        h("label", { class: "check" }, control, t("shareControl")),
            h("div", {}, h("button", { class: "button" }, t("share"))))));
    /** @param {any} share */
    const remove = async share => {
        const title = t("endShare", { account: share.account });
        if (!(await ask({ title: `${title}?`, text: "", confirm: t("remove"), cancel: t("cancel"),
            isDangerous: true }))) return;
        await attempt(context.session.request("devices.unshare", { device, account: share.account }));
        load();
    };
    const load = async () => {
        try {
            const { shares = [] } = await context.session.request("devices.shares", { device });
            if (context.signal.aborted) return;
            card.hidden = false;
            put(list, shares.length === 0 && h("li", { class: "quiet" }, t("shareNone")),
                shares.map((/** @type {any} */ share) => h("li", {},
                h("span", { class: "grow" }, share.account, " ",
                    h("span", { class: "quiet small" }, t(share.invited ? "invited" : share.control ? "mayControl"
                        : "mayView"))),
                h("button", { type: "button", class: "button", "aria-label": t("endShare", { account: share.account }),
                    onclick: () => remove(share) }, t("remove")))));
        } catch {
            // A guest does not share: what a role may not do is not shown.
            card.hidden = true;
        }
    };
    load();
    return card;
}

/**
 * @param {Context} context
 * @param {string} device
 */
function eventsCard(context, device) {
    const list = h("ul", { class: "list" });
    const card = h("section", { class: "card", hidden: true }, h("h2", {}, t("events")), list);
    let newest = -1;
    const show = () => {
        const events = context.events.list.filter(event => event.device === device).slice(0, 8);
        card.hidden = events.length === 0;
        if (newest === (events[0]?.time ?? 0)) return;
        newest = events[0]?.time ?? 0;
        put(list, events.map(event => eventRow(context, { ...event, device: "" })));
    };
    context.events.addEventListener("change", show, { signal: context.signal });
    show();
    return card;
}
