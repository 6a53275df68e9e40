// Makes elements. What a tenant can name is text, and never HTML: no function here parses any.

import { t } from "./texts.js";

/** @typedef {string | number | Node | null | undefined | false} Child */

/**
 * @param {string} name
 * @param {Record<string, any>} [properties] `class`, `on…` listeners, `data`, and attributes; null and false leave one out
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(name, properties = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
        if (value === null || value === undefined || value === false) continue;
        if (key === "class") element.className = value;
        else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
        else if (key === "value" || key === "checked" || key === "selected") /** @type {any} */ (element)[key] = value;
        else element.setAttribute(key, value === true ? "" : String(value));
    }
    element.append(...nodes(children));
    return element;
}

/**
 * @param {(Child | Child[])[]} children
 * @returns {(string | Node)[]}
 */
function nodes(children) {
    /** @type {(string | Node)[]} */
    const list = [];
    for (const child of children.flat()) {
        if (child === null || child === undefined || child === false) continue;
        list.push(child instanceof Node ? child : String(child));
    }
    return list;
}

/**
 * Replaces the children of an element, if they differ in text or number: so a reader's place and the focus stay.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function put(element, ...children) {
    element.replaceChildren(...nodes(children));
}

/**
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

/** Paths of icons, 24 by 24. */
const icons = {
    cameras: "M3 7h12v10H3zM15 11l6-4v10l-6-4",
    events: "M6 17V11a6 6 0 0 1 12 0v6l2 2H4zM10 21h4",
    calls: "M5 4h4l2 5-3 2a12 12 0 0 0 5 5l2-3 5 2v4a2 2 0 0 1-2 2A16 16 0 0 1 3 6a2 2 0 0 1 2-2z",
    messages: "M4 5h16v12H9l-5 4z",
    account: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21a8 8 0 0 1 16 0",
    nodes: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
    shards: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
    channels: "M12 13a1 1 0 1 0 0-2 1 1 0 0 0 0 2zM8 16a6 6 0 0 1 0-8M16 8a6 6 0 0 1 0 8M5 19a10 10 0 0 1 0-14M19 5a10 10 0 0 1 0 14",
    sessions: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2 20a7 7 0 0 1 14 0M16 4a3.5 3.5 0 0 1 0 7M22 20a7 7 0 0 0-4-6",
    back: "M15 5l-7 7 7 7",
};

/** @param {keyof typeof icons} name */
export function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("class", "icon");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", icons[name]);
    svg.append(path);
    return svg;
}

/** The most updates a second of one list. */
export const updatesPerSecond = 5;

/**
 * Calls a function soon, and at most five times a second however often it is asked for.
 * @param {() => void} body
 */
export function paced(body) {
    let last = -Infinity;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    return () => {
        if (timer !== undefined) return;
        const wait = Math.max(0, last + 1000 / updatesPerSecond - performance.now());
        timer = setTimeout(() => {
            timer = undefined;
            last = performance.now();
            body();
        }, wait);
    };
}

/**
 * Asks a question in a dialog. The way that changes nothing has the focus.
 *
 * @param {{title: string, text: string, confirm: string, cancel: string, isDangerous?: boolean}} question
 * @returns {Promise<boolean>}
 */
export function ask(question) {
    return new Promise(resolve => {
        const cancel = h("button", { type: "button", class: "button", autofocus: true, onclick: () =>
            dialog.close("no") }, question.cancel);
        const confirm = h("button", {
            type: "button", class: question.isDangerous ? "button danger" : "button primary", onclick: () =>
                dialog.close("yes"),
        }, question.confirm);
        const dialog = h("dialog", { role: "alertdialog", "aria-labelledby": "ask-title", "aria-describedby": "ask-text" },
            h("h2", { id: "ask-title" }, question.title), h("p", { id: "ask-text" }, question.text),
            h("div", { class: "row end" }, cancel, confirm));
        dialog.addEventListener("close", () => {
            resolve(dialog.returnValue === "yes");
            dialog.remove();
        });
        (document.querySelector("main") ?? document.body).append(dialog);
        dialog.showModal();
    });
}

/** @type {HTMLElement | null} */
let toaster = null;

/**
 * Says something at the edge of the page, for a while.
 * @param {string} text
 * @param {boolean} [isError]
 */
export function say(text, isError = false) {
    const place = toaster ?? h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    // All of a page is within a landmark.
    if (!toaster) document.body.append(h("section", { "aria-label": t("notices") }, place));
    toaster = place;
    const toast = h("p", { class: isError ? "toast error" : "toast" }, text);
    place.append(toast);
    while (place.children.length > 3) place.firstElementChild?.remove();
    setTimeout(() => toast.remove(), isError ? 8000 : 4000);
}

/**
 * A table that becomes a list of cards where the page is narrow.
 *
 * @param {string} caption
 * @param {string[]} heads
 */
export function table(caption, heads) {
    const body = h("tbody");
    const element = h("table", { class: "table" }, h("caption", { class: "unseen" }, caption),
        h("thead", {}, h("tr", {}, heads.map(head => h("th", { scope: "col" }, head)))), body);
    /** @type {Map<string, {row: HTMLElement, shown: string}>} */
    const known = new Map();
    return {
        element,
        /**
         * Shows rows, and changes only those that differ.
         * @param {{key: string, cells: (Child | Child[])[], sign?: string}[]} rows `sign`: what the row depends on
         */
        show(rows) {
            const keys = new Set(rows.map(row => row.key));
            for (const [key, { row }] of known) {
                if (keys.has(key)) continue;
                row.remove();
                known.delete(key);
            }
            rows.forEach((row, index) => {
                const shown = row.sign ?? JSON.stringify(row.cells.map(cell => (cell instanceof Node ? cell.textContent
                    : cell)));
                let entry = known.get(row.key);
                if (!entry || entry.shown !== shown) {
                    const cells = row.cells.map((cell, column) => h(column === 0 ? "th" : "td",
                        { "data-head": heads[column], scope: column === 0 ? "row" : null }, cell));
                    if (entry) put(entry.row, cells);
                    entry = { row: entry?.row ?? h("tr", {}, cells), shown };
                    known.set(row.key, entry);
                }
                if (body.children[index] !== entry.row) body.insertBefore(entry.row, body.children[index] ?? null);
            });
        },
    };
}
