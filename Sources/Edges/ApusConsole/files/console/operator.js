// The pages of operators: nodes, shards, channels and sessions. They ask the page's own node over REST.

import { rest } from "./api.js";
import { attempt } from "./cameras.js";
import { ask, h, paced, put, setText, table } from "./dom.js";
import { errorText, lengthText, t, timeText } from "./texts.js";

/** @typedef {import("./app.js").Context} Context */

const intervalMs = 2000;
/** Colours that differ in lightness too, for nodes in their order. */
const colours = ["#0b5cad", "#e6a100", "#2e8b57", "#a23b72", "#6b7f8f", "#7bc8f6", "#c0d860", "#5b3a9e", "#d9603b",
    "#3b3b3b"];

/**
 * Calls a function now and every two seconds, while the page is seen.
 * @param {Context} context
 * @param {() => Promise<void>} body
 */
function repeat(context, body) {
    const problem = h("p", { class: "problem", role: "alert" });
    const stamp = h("p", { class: "quiet small" });
    let isBusy = false;
    const run = async () => {
        if (isBusy || document.visibilityState !== "visible") return;
        isBusy = true;
        try {
            await body();
            setText(problem, "");
            setText(stamp, t("updated", { time: timeText(Date.now()) }));
        } catch (error) {
            setText(problem, errorText(error));
            if (/** @type {any} */ (error).code === 12001) location.reload();
        }
        isBusy = false;
    };
    const timer = setInterval(run, intervalMs);
    context.signal.addEventListener("abort", () => clearInterval(timer));
    run();
    return { problem, stamp, run };
}

/** @param {any} node */
function nodeState(node) {
    const key = node.drained ? "drained" : node.cordoned && node.state === "up" ? "cordoned" : node.state;
    const look = node.state === "up" ? (key === "up" ? "good" : "warn") : node.state === "draining" ? "warn" : "bad";
    return h("span", { class: `state ${look}` }, t(key));
}

/** @type {import("./app.js").Page} */
export function nodesPage(context) {
    const nodes = table(t("nodes"), [t("node"), t("state"), t("owned"), t("standbyShards"), t("weight"), t("address"),
        t("actionsOf")]);
    const revision = h("p", { class: "quiet small" });
    const conditions = h("ul", { class: "list" });
    const own = h("dl", { class: "pair" });
    const ownTitle = h("h2", {}, t("node"));
    /**
     * @param {string} node
     * @param {"drain" | "undrain" | "cordon" | "uncordon"} verb
     */
    const act = async (node, verb) => {
        const isSure = await ask({ title: t(`${verb}Title`, { node }), text: t(`${verb}Text`), confirm: t(verb),
            cancel: t("cancel"), isDangerous: verb === "drain" });
        if (!isSure) return;
        await attempt(rest("POST", `/v1/nodes/${encodeURIComponent(node)}/${verb}`, {}),
            t("done", { what: `${t(verb)} ${node}` }));
        updates.run();
    };
    /** @param {any} node */
    const actions = node => {
        const isDrained = node.drained || node.state === "draining";
        const verbs = node.state === "dead" || node.state === "left" ? [] : [isDrained ? "undrain" : "drain",
            node.cordoned ? "uncordon" : "cordon"];
        return h("div", { class: "row" }, verbs.map(verb => h("button", {
            type: "button", class: "button", "aria-label": `${t(verb)}: ${node.name}`, onclick: () =>
                act(node.name, /** @type {any} */ (verb)),
        }, t(verb))));
    };
    const updates = repeat(context, async () => {
        const [list, status] = await Promise.all([rest("GET", "/v1/nodes"), rest("GET", "/v1/status")]);
        if (context.signal.aborted) return;
        setText(revision, `${list.cluster ?? ""} · ${t("revision", { value: list.revision ?? 0 })}`);
        const byName = (list.nodes ?? []).sort((/** @type {any} */ left, /** @type {any} */ right) =>
            left.name.localeCompare(right.name, undefined, { numeric: true }));
        nodes.show(byName.map((/** @type {any} */ node) => ({
            key: node.name, sign: JSON.stringify(node),
            cells: [node.name, nodeState(node), node.ownedShards ?? 0, node.standbyShards ?? 0, node.weight ?? 0,
                node.clients ?? "", actions(node)],
        })));
        setText(ownTitle, `${t("node")} ${status.name}`);
        put(own, /** @type {[string, string | number][]} */ ([
            ["state", t(status.state)], ["uptime", lengthText(status.uptime_s)], ["viewers", status.viewers ?? 0],
            ["sessions", (status.sessions?.devices ?? 0) + (status.sessions?.apps ?? 0)],
                ["shardsMisplaced", status.shards?.misplaced ?? 0],
            ["wireVersion", status.program?.wire ?? "–"],
        ]).flatMap(([key, value]) => [h("dt", {}, t(key)), h("dd", {}, value)]));
        const found = status.conditions ?? [];
        put(conditions, found.length === 0 && h("li", {}, h("span", { class: "state good" }, t("conditionsNone"))),
            found.map((/** @type {any} */ condition) => h("li", {},
            h("span", { class: `state ${condition.unhealthy ? "bad" : "warn"}` }, t(condition.unhealthy ? "unhealthy"
                : "warning")),
            h("code", {}, condition.type), h("span", { class: "grow" }, condition.message),
                h("span", { class: "quiet small" }, t("since", { time: timeText(condition.since * 1000) })))));
    });
    return {
        title: t("nodes"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("nodes")), updates.stamp),
            h("div", { class: "stack" }, updates.problem,
            h("section", { class: "card" }, nodes.element, revision),
            h("div", { class: "columns" }, h("section", { class: "card" }, h("h2", {}, t("conditions")), conditions),
                h("section", { class: "card" }, ownTitle, own)))),
    };
}

/** @type {import("./app.js").Page} */
export function shardsPage(context) {
    const canvas = h("canvas", { width: 64, height: 64, role: "img" });
    const owners = table(t("mapTitle"), [t("node"), t("owned"), t("standbyShards")]);
    const alone = h("p", { class: "quiet small" });
    const changes = table(t("changes"), [t("time"), t("change"), t("changeNodes"), t("changeShards"),
        t("changeMaker")]);
    const changesNote = h("p", { class: "quiet" });
    let drawn = "";
    /** @param {any[]} shards */
    const show = shards => {
        const names = [...new Set(shards.map(shard => shard.owner).filter(Boolean))].sort();
        const side = Math.max(1, Math.ceil(Math.sqrt(shards.length)));
        const sign = shards.map(shard => names.indexOf(shard.owner)).join();
        if (sign !== drawn) {
            drawn = sign;
            canvas.width = side;
            canvas.height = Math.max(1, Math.ceil(shards.length / side));
            const pen = canvas.getContext("2d");
            shards.forEach((shard, index) => {
                pen.fillStyle = shard.owner ? colours[names.indexOf(shard.owner) % colours.length] : "#fff";
                pen.fillRect(index % side, Math.floor(index / side), 1, 1);
            });
            canvas.setAttribute("aria-label", t("mapLabel", { count: shards.length }));
        }
        const rows = names.map((name, index) => ({
            key: name, name, colour: colours[index % colours.length],
                owned: shards.filter(shard => shard.owner === name).length,
            standby: shards.filter(shard => shard.standby === name || shard.secondStandby === name).length,
        }));
        const lost = shards.filter(shard => !shard.owner).length;
        if (lost > 0) rows.push({ key: "", name: t("noOwner"), colour: "#fff", owned: lost, standby: 0 });
        owners.show(rows.map(row => {
            const swatch = h("span", { class: "swatch" });
            swatch.style.background = row.colour;
            return { key: row.key, sign: JSON.stringify(row), cells: [h("span", { class: "row" }, swatch, row.name),
                row.owned, row.standby] };
        }));
        setText(alone, t("alone", { count: shards.filter(shard => !shard.standby).length }));
    };
    const updates = repeat(context, async () => {
        const [list, log] = await Promise.all([rest("GET", "/v1/shards?pageSize=4096"),
            rest("GET", "/v1/map/changes")]);
        if (context.signal.aborted) return;
        show(list.shards ?? []);
        const rows = (log.changes ?? []).slice(0, 40);
        setText(changesNote, rows.length === 0 ? t("changesNone") : "");
        changes.show(rows.map((/** @type {any} */ change) => ({
            key: `${change.firstRevision}-${change.kind}`,
            cells: [timeText(Number(change.lastMs || change.firstMs || 0)), t(change.kind) + (change.reason
                ? `: ${t(change.reason)}` : ""),
                (change.nodes ?? []).join(", "), change.shards ?? 0, change.maker || t("operator")],
        })));
    });
    const answer = h("div", { role: "status" });
    const field = h("input", { id: "why", autocomplete: "off", spellcheck: "false", required: true });
    const form = h("form", {
        class: "stack", onsubmit: async (/** @type {Event} */ event) => {
            event.preventDefault();
            const text = field.value.trim();
            const path = /^\d{1,4}$/.test(text) ? `/v1/shards/${text}`
                : `/v1/devices/${encodeURIComponent(text)}/shard`;
            const found = await attempt(rest("GET", path));
            if (!found) return put(answer);
            const shard = found.shard ?? {};
            put(answer, h("dl", { class: "pair" }, h("dt", {}, t("shard")), h("dd", {}, shard.shard ?? 0),
                h("dt", {}, t("owner")), h("dd", {}, shard.owner || t("noOwner")),
                h("dt", {}, t("standby")), h("dd", {}, shard.standby || t("none")), h("dt", {}, t("term")),
                    h("dd", {}, shard.term ?? 0)),
            h("p", {}, found.ownerReason), h("p", {}, found.standbyReason));
        },
    }, h("div", { class: "field" }, h("label", { for: "why" }, t("whyLabel")), h("div", { class: "row" },
        h("div", { class: "grow" }, field), h("button", { class: "button" }, t("ask")))), answer);
    return {
        title: t("shards"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("shards")), updates.stamp),
            h("div", { class: "stack" }, updates.problem,
            h("div", { class: "map" }, h("section", { class: "card" }, h("h2", {}, t("mapTitle")), canvas),
                h("div", { class: "stack" }, h("section", { class: "card" }, owners.element, alone),
                    h("section", { class: "card" }, h("h2", {}, t("why")), form))),
            h("section", { class: "card" }, h("h2", {}, t("changes")), changes.element, changesNote))),
    };
}

/** @type {import("./app.js").Page} */
export function channelsPage(context) {
    const channels = table(t("channels"), [t("channel"), t("primary"), t("standby"), t("protection"), t("viewers"),
        t("newest")]);
    const card = h("section", { class: "card", hidden: true }, channels.element);
    const note = h("div");
    const updates = repeat(context, async () => {
        const { channels: list = [] } = await rest("GET", "/v1/channels");
        if (context.signal.aborted) return;
        /** @type {Map<string, any>} */
        const byName = new Map();
        for (const row of list) {
            const known = byName.get(row.channel) ?? { viewers: 0, primary: row.primary, standby: row.standby,
                sequence: 0, epoch: 0, isProtected: false, hasPrimary: false };
            known.viewers += row.viewers ?? 0;
            if (row.role === "primary") Object.assign(known, { hasPrimary: true, primary: row.primary || row.node,
                standby: row.standby, isProtected: row.protected === true });
            known.sequence = Math.max(known.sequence, Number(row.sequence ?? 0));
            known.epoch = Math.max(known.epoch, row.epoch ?? 0);
            byName.set(row.channel, known);
        }
        card.hidden = byName.size === 0;
        put(note, byName.size === 0 && h("p", { class: "card empty" }, t("channelsNone")));
        channels.show([...byName].sort(([left], [right]) => left.localeCompare(right)).map(([name, row]) => ({
            key: name, sign: JSON.stringify(row),
            cells: [name, row.primary || t("none"), row.standby || t("none"),
                h("span", { class: `state ${row.isProtected ? "good" : "warn"}` }, t(row.isProtected ? "protected"
                    : "unprotected")), row.viewers, `${row.epoch} / ${row.sequence}`],
        })));
    });
    return { title: t("channels"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("channels")), updates.stamp),
        h("div", { class: "stack" }, updates.problem, card, note)) };
}

/** @type {import("./app.js").Page} */
export function sessionsPage(context) {
    const sessions = table(t("sessions"), [t("client"), t("role"), t("accountOf"), t("node"), t("sinceHead"),
        t("actionsOf")]);
    const card = h("section", { class: "card", hidden: true }, sessions.element);
    const note = h("div");
    const field = h("input", { type: "search", "aria-label": t("filterAccount"), placeholder: t("filterAccount"),
        spellcheck: "false" });
    /** @param {any} session */
    const end = async session => {
        if (!(await ask({ title: t("endSessionTitle"), text: t("endSessionText", { access: session.access }),
            confirm: t("endSession"), cancel: t("cancel"), isDangerous: true }))) return;
        await attempt(rest("DELETE", `/v1/sessions/${encodeURIComponent(session.session)}`),
            t("done", { what: t("endSession") }));
        updates.run();
    };
    const updates = repeat(context, async () => {
        const account = field.value.trim();
        const answer = await rest("GET", `/v1/sessions?pageSize=200${account ? `&account=${encodeURIComponent(account)}`
            : ""}`);
        if (context.signal.aborted) return;
        const list = answer.sessions ?? [];
        card.hidden = list.length === 0;
        put(note, list.length === 0 && h("p", { class: "card empty" }, t("sessionsNone")), answer.hasMore
            && h("p", { class: "quiet" }, t("hasMore")));
        sessions.show(list.map((/** @type {any} */ session) => ({
            key: `${session.session} ${session.node}`, sign: JSON.stringify(session),
            cells: [session.device || session.access, session.role, session.account, session.node,
                timeText(Number(session.sinceMs ?? 0)),
                h("button", { type: "button", class: "button", "aria-label": `${t("endSession")}: ${session.access}`,
                    onclick: () => end(session) }, t("endSession"))],
        })));
    });
    field.addEventListener("input", paced(() => updates.run()));
    return {
        title: t("sessions"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("sessions")),
            h("div", {}, field), updates.stamp), h("div", { class: "stack" }, updates.problem, card, note)),
    };
}
