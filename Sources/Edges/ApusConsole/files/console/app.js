// The console: sign-in, the frame of the page, and the way from an address to a page.

import { Session } from "../apus.js";
import { currentSignIn, signIn, signOut } from "./api.js";
import { CallCenter } from "./calls.js";
import { EventLog } from "./events.js";
import { ask, h, icon, put, say, setText } from "./dom.js";
import { errorText, language, setLanguage, t } from "./texts.js";
import { accountPage } from "./account.js";
import { callPage, callsPage } from "./calls.js";
import { cameraPage } from "./camera.js";
import { eventsPage } from "./events.js";
import { camerasPage } from "./cameras.js";
import { messagesPage } from "./messages.js";
import { channelsPage, nodesPage, sessionsPage, shardsPage } from "./operator.js";

/**
 * What pages share.
 * @typedef {object} Context
 * @property {import("./api.js").SignIn} who
 * @property {Session} session
 * @property {EventLog} events
 * @property {CallCenter} calls
 * @property {Map<string, string>} names of devices
 * @property {AbortSignal} signal ends with the page
 * @property {() => void} changed the frame is shown again
 * @property {() => void} leave signs out
 *
 * @typedef {(context: Context, argument: string) => {title: string, element: HTMLElement}} Page
 * @typedef {import("./dom.js").Child} Child
 */

/** @type {Record<string, {page: Page, area: "home" | "cluster" | "", icon?: Parameters<typeof icon>[0]}>} */
const pages = {
    cameras: { page: camerasPage, area: "home", icon: "cameras" },
    events: { page: eventsPage, area: "home", icon: "events" },
    calls: { page: callsPage, area: "home", icon: "calls" },
    messages: { page: messagesPage, area: "home", icon: "messages" },
    nodes: { page: nodesPage, area: "cluster", icon: "nodes" },
    shards: { page: shardsPage, area: "cluster", icon: "shards" },
    channels: { page: channelsPage, area: "cluster", icon: "channels" },
    sessions: { page: sessionsPage, area: "cluster", icon: "sessions" },
    account: { page: accountPage, area: "", icon: "account" },
    camera: { page: cameraPage, area: "home" },
    call: { page: callPage, area: "home" },
};

const app = /** @type {HTMLElement} */ (document.getElementById("app"));

class Console {
    /** @param {import("./api.js").SignIn} who */
    constructor(who) {
        this.who = who;
        // An operator's browser is an app of its account too.
        this.isOperator = who.role === "ROLE_ADMIN";
        this.session = new Session({ agent: "console" });
        this.names = new Map();
        this.events = new EventLog(this.session, who.account);
        this.calls = new CallCenter(this.session, this.names);
        this.ended = new AbortController();
        this.notice = h("div", { class: "notice", role: "alert", hidden: true });
        this.ring = h("div");
        this.main = h("main", { id: "main", tabindex: "-1" });
        this.menu = h("ul", { class: "menu" });
        this.who_ = h("p", { class: "who" });
        this.badge = h("span", { class: "badge", hidden: true });
        put(app,
            h("a", { class: "skip", href: "#main",
                onclick: (/** @type {Event} */ event) => { event.preventDefault(); this.main.focus(); } }, t("skip")),
            h("div", { class: "shell" },
                h("header", { class: "side" },
                    h("div", { class: "brand" }, h("img", { src: "/console/icon.svg", alt: "" }), "Apus"),
                    h("nav", { "aria-label": t("menu") }, this.menu), this.who_),
                h("div", {}, this.notice, this.main)),
            this.ring);
        this.onHash = () => this.show();
        addEventListener("hashchange", this.onHash);
        this.calls.addEventListener("change", () => this.frame());
        this.events.addEventListener("change", () => this.frame());
        this.session.addEventListener("state", () => this.linkChanged());
        this.session.start();
        this.events.start();
        this.calls.start();
        this.show();
    }

    linkChanged() {
        const { state } = this.session;
        this.notice.hidden = state !== "offline" && state !== "replaced";
        setText(this.notice, this.notice.hidden ? "" : t(state === "replaced" ? "linkReplaced" : "linkOffline"));
        if (state === "signed-out") this.over();
        this.frame();
    }

    /** The menu, and a call that rings. */
    frame() {
        const current = this.place()[0];
        const shown = current === "camera" ? "cameras" : current === "call" ? "calls" : current;
        const area = pages[current]?.area || this.area;
        this.area = area;
        // Where the page is narrow, the menu has one area and a way to the other one.
        this.menu.dataset.area = area;
        const sign = `${area} ${shown}`;
        if (this.menu.dataset.shown !== sign) {
            this.menu.dataset.shown = sign;
            put(this.menu, this.entries(area, shown));
        }
        setText(this.badge, String(this.events.unseen));
        this.badge.hidden = this.events.unseen === 0;
        setText(this.who_, this.session.node ? `${this.who.account} · ${this.session.node}` : this.who.account);
        const ringing = this.calls.ringing;
        const key = ringing?.id ?? "";
        if (this.ring.dataset.call !== key) {
            this.ring.dataset.call = key;
            put(this.ring, ringing && this.banner(ringing));
        }
        document.title = ringing ? t("ringing", { name: this.calls.nameOf(ringing) }) : `${this.title} – Apus`;
    }

    /**
     * @param {string} area
     * @param {string} shown
     */
    entries(area, shown) {
        /** @type {(name: string, look: string, text: string, className: string) => HTMLElement} */
        const entry = (name, look, text, className) => h("li", { class: className }, h("a", {
            href: `#/${name}`, "aria-current": name === shown && className !== "switch" ? "page" : null,
        }, icon(/** @type {any} */ (look)), h("span", {}, text), name === "events" && this.badge));
        const other = area === "home" ? { name: "nodes", text: t("cluster") } : { name: "cameras", text: t("home") };
        return Object.entries(pages).filter(([, page]) => page.icon && this.mayShow(page)).flatMap(([name, page]) => [
            this.isOperator && (name === "cameras" || name === "nodes") && h("li", { class: "area" }, t(page.area)),
            this.isOperator && name === "account" && entry(other.name, other.name, other.text, "switch"),
            entry(name, /** @type {string} */ (page.icon), t(name), page.area),
        ]);
    }

    /** @param {import("./calls.js").Call} call */
    banner(call) {
        const decline = h("button", { type: "button", class: "button danger", onclick: () => this.calls.decline(call) },
            t("decline"));
        const accept = h("button", {
            type: "button", class: "button primary", onclick: () => {
                location.hash = `#/call/${encodeURIComponent(call.id)}`;
                this.calls.accept(call);
            },
        }, t("accept"));
        return h("section", { class: "ring", role: "alertdialog", "aria-label": t("ringing",
            { name: this.calls.nameOf(call) }) },
            h("h2", {}, t("ringing", { name: this.calls.nameOf(call) })), h("div", { class: "row" }, decline, accept));
    }

    /** @returns {[name: string, argument: string]} */
    place() {
        const [, name = "", argument = ""] = location.hash.split("/");
        let decoded = argument;
        try {
            decoded = decodeURIComponent(argument);
        } catch {
            // An address that somebody has changed by hand.
        }
        return [name || "cameras", decoded];
    }

    /** @param {{area: string}} page */
    mayShow(page) { return page.area !== "cluster" || this.isOperator; }

    show() {
        this.ended.abort();
        this.ended = new AbortController();
        const [name, argument] = this.place();
        const entry = pages[name];
        const isFirst = this.main.childElementCount === 0;
        if (!entry || !this.mayShow(entry)) {
            this.title = "Apus";
            put(this.main, h("div", { class: "empty" }, h("h1", {}, t("notFound"))));
        } else {
            const { title, element } = entry.page({
                who: this.who, session: this.session, events: this.events, calls: this.calls, names: this.names,
                    signal: this.ended.signal,
                changed: () => this.again(), leave: () => this.leave(),
            }, argument);
            this.title = title;
            put(this.main, element);
        }
        this.frame();
        scrollTo(0, 0);
        if (!isFirst) this.main.focus({ preventScroll: true });
    }

    /** Everything is shown in another language. */
    again() {
        this.close();
        begin(this.who);
    }

    async leave() {
        if (!(await ask({ title: t("signOut"), text: t("signOutText"), confirm: t("signOut"),
            cancel: t("cancel") }))) return;
        await signOut().catch(error => say(errorText(error), true));
        this.over();
    }

    over() {
        this.close();
        history.replaceState(null, "", location.pathname);
        signInPage("");
    }

    close() {
        removeEventListener("hashchange", this.onHash);
        this.ended.abort();
        this.calls.stop();
        this.session.stop();
    }

    title = "Apus";
    /** The area of the newest page. */
    area = "home";
}

/** @param {import("./api.js").SignIn} who */
function begin(who) {
    new Console(who);
}

/** @param {string} problem */
function signInPage(problem) {
    const field = h("input", {
        id: "token", name: "token", type: "password", autocomplete: "current-password", spellcheck: "false",
            autocapitalize: "off", required: true,
        "aria-describedby": "token-help token-problem",
    });
    const message = h("p", { id: "token-problem", class: "problem", role: "alert" }, problem);
    const button = h("button", { class: "button primary" }, t("signIn"));
    const other = language === "en" ? "zh-Hans" : "en";
    const form = h("form", {
        class: "card", onsubmit: async (/** @type {Event} */ event) => {
            event.preventDefault();
            const token = field.value.trim();
            if (!token) return field.focus();
            button.disabled = true;
            setText(message, "");
            try {
                begin(await signIn({ token }));
            } catch (error) {
                setText(message, refusal(error, "tokenRefused"));
                button.disabled = false;
                field.focus();
            }
        },
    },
        h("img", { src: "/console/icon.svg", alt: "" }), h("h1", {}, t("signInTitle")), h("p", { class: "quiet" },
            t("signInLead")),
        h("div", { class: "field" }, h("label", { for: "token" }, t("token")), field,
            h("p", { id: "token-help", class: "quiet small" }, t("tokenHelp"))),
        message, button,
        h("button", {
            type: "button", class: "button plain", lang: other, onclick: () => {
                setLanguage(other);
                signInPage("");
            },
        }, other === "en" ? "English" : "简体中文"));
    document.title = `${t("signInTitle")} – Apus`;
    put(app, h("main", { class: "lone" }, form));
}

/**
 * @param {any} error
 * @param {string} key
 */
function refusal(error, key) {
    if (error.code === 10007) return t("tooMany");
    return error.code === 12001 || error.code === 12002 || error.code === 8002 ? t(key) : errorText(error);
}

async function start() {
    setLanguage(language);
    const code = /^#code=([^&]+)/.exec(location.hash)?.[1];
    if (code !== undefined) {
        // The code is used once, and does not stay in the address or the history.
        history.replaceState(null, "", location.pathname);
        try {
            return begin(await signIn({ code: decodeURIComponent(code) }));
        } catch (error) {
            const who = await currentSignIn().catch(() => null);
            if (who) return begin(who);
            return signInPage(refusal(error, "codeRefused"));
        }
    }
    try {
        const who = await currentSignIn();
        if (who) begin(who);
        else signInPage("");
    } catch {
        put(app, h("main", { class: "lone" }, h("p", { role: "alert" }, t("linkOffline"))));
        setTimeout(start, 2000);
    }
}

start();
