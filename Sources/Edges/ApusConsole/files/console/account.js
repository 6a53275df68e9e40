// Who is signed in, invitations, the language, and the way out.

import { h, put, setText } from "./dom.js";
import { attempt } from "./cameras.js";
import { language, setLanguage, t } from "./texts.js";

/** @type {import("./app.js").Page} */
export function accountPage(context) {
    const { who } = context;
    const node = h("dd", {}, context.session.node || location.host);
    context.session.addEventListener("welcome", () => setText(node, context.session.node), { signal: context.signal });
    const choice = h("select", {
        id: "language", onchange: () => {
            setLanguage(choice.value);
            context.changed();
        },
    }, h("option", { value: "en", lang: "en", selected: language === "en" }, "English"),
        h("option", { value: "zh-Hans", lang: "zh-Hans", selected: language !== "en" }, "简体中文"));
    const invitations = h("ul", { class: "list" });
    const card = h("section", { class: "card" }, h("h2", {}, t("invitations")), invitations);
    const load = async () => {
        const answer = await attempt(context.session.request("devices.invitations", { pageSize: 100 }));
        if (context.signal.aborted || !answer) return;
        const list = answer.invitations ?? [];
        put(invitations, list.length === 0 && h("li", { class: "quiet" }, t("invitationsNone")),
            list.map((/** @type {any} */ invitation) => h("li", {},
            h("span", { class: "grow" }, t("invitation", { account: invitation.account, device: invitation.device }),
                " ",
                h("span", { class: "quiet small" }, t(invitation.control ? "mayControl" : "mayView"))),
            h("button", { type: "button", class: "button", "aria-label": `${t("decline")}: ${invitation.device}`,
                onclick: () => attempt(context.session.request("devices.unshare", { device: invitation.device,
                account: who.account })).then(load) }, t("decline")),
            h("button", { type: "button", class: "button primary",
                "aria-label": `${t("acceptShare")}: ${invitation.device}`, onclick: () =>
                attempt(context.session.request("devices.accept", { device: invitation.device })).then(load) },
                t("acceptShare")))));
    };
    load();
    context.events.addEventListener("share", load, { signal: context.signal });
    return {
        title: t("account"),
        element: h("div", {}, h("div", { class: "head" }, h("h1", { class: "grow" }, t("account"))),
            h("div", { class: "columns" },
            h("div", { class: "stack" },
                h("section", { class: "card" }, h("dl", { class: "pair" },
                    h("dt", {}, t("signedInAs")), h("dd", {}, who.account || who.access), h("dt", {}, t("role")),
                        h("dd", {}, t(who.role)),
                    h("dt", {}, t("connectedTo")), node)),
                h("section", { class: "card stack" },
                    h("div", { class: "field" }, h("label", { for: "language" }, t("language")), choice),
                    h("div", {}, h("button", { type: "button", class: "button danger", onclick: () => context.leave() },
                        t("signOut"))))),
            card)),
    };
}
