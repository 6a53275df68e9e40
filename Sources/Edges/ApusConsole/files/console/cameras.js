// The cameras of an account, as tiles. A tile plays only while it is seen.

import { all } from "./api.js";
import { h, paced, put, say, setText } from "./dom.js";
import { errorText, t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */

/** Tiles that are made in one piece of work. */
const atOnce = 100;

/**
 * What people call a device; its id until that is known.
 *
 * @param {Context} context
 * @param {string} device
 * @returns {Promise<string>}
 */
export async function nameOf(context, device) {
    const known = context.names.get(device);
    if (known !== undefined) return known;
    context.names.set(device, device);
    try {
        const { json } = await context.session.request("properties.read", { device, path: "ProUser._buildIn.val" });
        const value = JSON.parse(json);
        const name = typeof value?.nickName === "string" ? value.nickName.trim() : "";
        if (name) context.names.set(device, name);
    } catch {
        // The device has no name.
    }
    return context.names.get(device) ?? device;
}

/**
 * Shows the presence of a device. @see docs/api.md
 * @param {HTMLElement} element
 * @param {number | null} online
 */
export function showPresence(element, online) {
    const key = online === 1 ? "online" : online === 2 ? "asleep" : online === 0 ? "offline" : "unknown";
    element.className = `state ${online === 1 ? "good" : online === 2 ? "warn" : ""}`;
    setText(element, t(key));
}

/** @type {import("./app.js").Page} */
export function camerasPage(context) {
    const list = h("ul", { class: "tiles", "aria-label": t("cameras") });
    const field = h("input", { type: "search", placeholder: t("search"), "aria-label": t("search") });
    const count = h("p", { class: "quiet small", role: "status" });
    const find = h("div", { class: "row", hidden: true }, h("div", { class: "grow" }, field), count);
    const empty = h("div");
    /** @type {Map<string, Tile>} */
    const tiles = new Map();
    const seen = new IntersectionObserver(entries => {
        for (const entry of entries) tiles.get(/** @type {HTMLElement} */ (entry.target).dataset.device ?? "")?.see(entry.isIntersecting);
    }, { rootMargin: "150px" });
    context.signal.addEventListener("abort", () => {
        seen.disconnect();
        for (const tile of tiles.values()) tile.see(false);
    });

    const filter = paced(() => {
        const words = field.value.trim().toLowerCase();
        let shown = 0;
        for (const tile of tiles.values()) {
            tile.element.hidden = words !== "" && !`${tile.device} ${context.names.get(tile.device)
                ?? ""}`.toLowerCase().includes(words);
            if (!tile.element.hidden) shown += 1;
        }
        setText(count, words ? t("count", { shown, all: tiles.size }) : String(tiles.size));
        put(empty, shown === 0 && tiles.size > 0 && h("p", { class: "empty" }, t("noMatch")));
    });
    field.addEventListener("input", filter);

    /** @param {any[]} devices */
    const add = devices => {
        const fragment = document.createDocumentFragment();
        for (const device of devices) {
            let tile = tiles.get(device.device);
            if (!tile) {
                tile = new Tile(context, device);
                tiles.set(device.device, tile);
                seen.observe(tile.element);
                fragment.append(tile.element);
            }
        }
        list.append(fragment);
    };
    /**
     * @param {any[]} devices
     * @param {boolean} areAll
     */
    const show = (devices, areAll) => {
        const names = new Set(devices.map(device => device.device));
        for (const [name, tile] of tiles) {
            if (!areAll || names.has(name)) continue;
            tile.see(false);
            tile.element.remove();
            tiles.delete(name);
        }
        add(devices.slice(0, atOnce));
        // The rest follows in pieces: a page with 1,000 cameras is there as soon as one with few.
        let from = atOnce;
        const more = () => {
            if (from >= devices.length || context.signal.aborted) return filter();
            add(devices.slice(from, from += atOnce));
            requestAnimationFrame(more);
        };
        requestAnimationFrame(more);
        find.hidden = devices.length < 7;
        setText(count, String(devices.length));
        put(empty, devices.length === 0 && h("div", { class: "empty card" }, h("h2", {}, t("noCameras")),
            h("p", {}, t("noCamerasHelp"))));
    };
    const load = async () => {
        try {
            // Each page of the list is shown when it comes.
            await all(context.session, "devices.list", "devices", {}, (devices, areAll) => {
                if (!context.signal.aborted) show(devices, areAll);
            });
        } catch (error) {
            if (!context.signal.aborted) put(empty, h("p", { class: "empty problem" }, errorText(error)));
        }
    };
    put(empty, h("p", { class: "empty" }, t("loading")));
    load();
    context.events.addEventListener("share", load, { signal: context.signal });
    return {
        title: t("cameras"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("cameras")), find), list, empty),
    };
}

class Tile {
    /**
     * @param {Context} context
     * @param {any} info of devices.list
     */
    constructor(context, info) {
        this.context = context;
        this.info = info;
        /** @type {string} */
        this.device = info.device;
        this.link = h("a", { href: `#/camera/${encodeURIComponent(this.device)}` }, context.names.get(this.device)
            ?? this.device);
        this.presence = h("span", { class: "state" });
        this.note = h("span");
        this.picture = h("div", { class: "picture" }, this.note);
        this.element = h("li", { class: "tile", "data-device": this.device }, this.picture, h("div", { class: "foot" },
            this.link, this.presence));
        /** @type {(() => void) | null} */
        this.unsubscribe = null;
        /** @type {import("../apus.js").ApusPlayer | null} */
        this.player = null;
        this.isSeen = false;
        if (info.disabled) this.#showNote(t("disabled"));
    }

    /** @param {boolean} isSeen */
    see(isSeen) {
        if (this.isSeen === isSeen || this.info.disabled) return;
        this.isSeen = isSeen;
        if (!isSeen) {
            this.unsubscribe?.();
            this.unsubscribe = null;
            this.#stop();
            return;
        }
        nameOf(this.context, this.device).then(name => {
            setText(this.link, name);
            this.player?.setAttribute("label", name);
        });
        this.unsubscribe = this.context.session.subscribe(`presence/${this.device}`,
            event => this.#present(event.message), {
            onError: () => this.#play(),
        });
    }

    /** @param {any} message */
    #present(message) {
        const online = Number(message.online ?? 0);
        showPresence(this.presence, online);
        if (online === 1) return this.#play();
        this.#stop();
        const last = Number(message.time ?? 0) || Number(this.info.lastSeen ?? 0);
        this.#showNote(online === 2 ? t("asleep") : last ? t("lastSeen", { time: timeText(last * 1000) })
            : t("offline"));
    }

    #play() {
        if (this.player || !this.isSeen) return;
        this.player = /** @type {any} */ (document.createElement("apus-player"));
        const { player } = this;
        if (!player) return;
        player.session = this.context.session;
        player.setAttribute("device", this.device);
        player.setAttribute("label", this.context.names.get(this.device) ?? this.device);
        put(this.picture, player);
    }

    #stop() {
        if (!this.player) return;
        this.player.remove();
        this.player = null;
        put(this.picture, this.note);
    }

    /** @param {string} text */
    #showNote(text) {
        setText(this.note, text);
        put(this.picture, this.note);
    }
}

/**
 * Shows an error of an action.
 * @param {Promise<any>} promise
 * @param {string} [done] what is said after it
 * @returns {Promise<any>} undefined after an error
 */
export async function attempt(promise, done) {
    try {
        const answer = await promise;
        if (done) say(done);
        return answer ?? {};
    } catch (error) {
        say(errorText(error), true);
        return undefined;
    }
}
