// Sign-in, and the REST requests of the page's own node.

import { ApusError } from "../apus.js";

/** @typedef {{access: string, account: string, role: string, devices?: string[]}} SignIn */

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 * @throws {ApusError}
 */
export async function rest(method, path, body) {
    /** @type {Record<string, string>} */
    const headers = { Accept: "application/json" };
    // No form and no foreign page can send this header.
    if (method !== "GET") headers["X-Apus"] = "1";
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
        answer = await fetch(path, {
            method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
            signal: /** @type {any} */ (AbortSignal).timeout(10_000),
        });
    } catch {
        throw new ApusError(21025, "");
    }
    const text = await answer.text();
    let value;
    try {
        value = text === "" ? {} : JSON.parse(text);
    } catch {
        value = {};
    }
    if (!answer.ok) throw value.code === undefined ? new ApusError(answer.status === 401 ? 12001 : 10018, value.title
        ?? `HTTP ${answer.status}`) : ApusError.of(value);
    return value;
}

/**
 * The account of the page's cookie; null if nobody is signed in.
 * @returns {Promise<SignIn | null>}
 */
export async function currentSignIn() {
    try {
        const who = await rest("GET", "/v1/sign-in");
        return who.role ? who : null;
    } catch (error) {
        if (/** @type {ApusError} */ (error).code === 21025) throw error;
        return null;
    }
}

/**
 * @param {{code: string} | {token: string}} secret
 * @returns {Promise<SignIn>}
 */
export const signIn = secret => rest("POST", "/v1/sign-in", secret);

/** Ends the sign-in everywhere. */
export const signOut = () => rest("POST", "/v1/sign-out", {});

/**
 * All pages of a list over the session.
 *
 * @param {import("../apus.js").Session} session
 * @param {string} name
 * @param {string} member the list in the answer
 * @param {object} body
 * @param {(found: any[], areAll: boolean) => void} onPage called for each page, with all that was found so far
 * @returns {Promise<any[]>}
 */
export async function all(session, name, member, body, onPage) {
    const found = [];
    let pageToken = "";
    do {
        const answer = await session.request(name, { ...body, pageSize: 500, ...(pageToken ? { pageToken } : {}) });
        found.push(...(answer[member] ?? []));
        pageToken = answer.nextPageToken ?? "";
        onPage(found, pageToken === "" || found.length >= foundMax);
    } while (pageToken !== "" && found.length < foundMax);
    return found;
}
const foundMax = 10_000;
