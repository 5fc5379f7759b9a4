// The service's own routes, with the token that the person gave.

import { follow, watch } from "../client/index.js";
import { parse, stringify } from "./exact-json.js";

const ROOT = new URL("../", import.meta.url);
const KEPT = "turnwise-token";

/** The chat cannot be read until an operator repairs it. */
const UNREADABLE = "urn:turnwise:problem:chat-unreadable";

/** What the service says is wrong. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The service answered ${status}.`);
    this.status = status;
    this.passes = (status === 0 || status === 429 || status >= 500) && problem.type !== UNREADABLE;
  }
}

/** Keep the token that came in the address for this tab, and take it out of the address; return whether there was one. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found === null) return false;
  keepToken(found);
  history.replaceState(null, "", location.pathname + location.search + "#/");
  return true;
}

export function keepToken(token) {
  if (token) sessionStorage.setItem(KEPT, token);
  else sessionStorage.removeItem(KEPT);
}

export function hasToken() {
  return sessionStorage.getItem(KEPT) !== null;
}

/** Fetch; repeat a read once: the server may have closed an idle connection. */
const fetched = (path, asked) => fetch(new URL(path, ROOT), asked).catch((error) => {
  if (asked.method !== "GET" || asked.signal?.aborted) throw error;
  return fetch(new URL(path, ROOT), asked);
});

async function answered(path, { method = "GET", body, headers = {}, signal } = {}) {
  const token = sessionStorage.getItem(KEPT);
  if (/[^\x20-\x7e]/.test(token)) throw new Problem(401, { detail: "No service gives out a token with such characters. Was it copied whole?" });
  const sent = { Authorization: `Bearer ${token}`, ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const asked = { method, signal, headers: sent, body: body === undefined ? undefined : stringify(body), cache: "no-store" };
  const response = await fetched(path, asked).catch((error) => {
    if (signal?.aborted) throw error;
    throw new Problem(0, { detail: "The service does not answer. Is it running? Look again before you do it again." });
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Problem(response.status, problem);
  }
  return response;
}

export const text = async (path, options) => (await answered(path, options)).text();
/** Return the answer; of a list, of which the service gives a page at a time, all of it. */
export const get = async (path, options) => {
  const response = await answered(path, options);
  const answer = parse(await response.text());
  const next = /<\?([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "");
  return next ? [...answer, ...await get(`${path.split("?")[0]}?${next[1]}`, options)] : answer;
};
export const post = (path, body, headers) => get(path, { method: "POST", body, headers });
export const patch = (path, body) => get(path, { method: "PATCH", body });
export const remove = (path) => get(path, { method: "DELETE" });
/** Return the path of a chat, or of something of it. */
export const chatPath = (id, rest = "") => `chats/${encodeURIComponent(id)}${rest && `/${rest}`}`;

/** Yield a chat's events after a number; `options` are those of the client. */
export const events = (id, after, { goesOn = true, ...options } = {}) =>
  follow(new URL(chatPath(id, `events?follow=${goesOn}`), ROOT), { ...asked(), after, ...options });

/** Yield the current chats, then every change. */
export const changes = (options) => watch(new URL("events", ROOT), { ...asked(), ...options });

const asked = () => ({ token: sessionStorage.getItem(KEPT), parse });

/** Append a chat's stored events to those that were read before, each once although another reading may be under way. */
export async function readOn(known, id, isWanted = () => true) {
  const last = () => known.at(-1)?.seq ?? 0;
  for await (const event of events(id, last(), { goesOn: false })) {
    if (event.seq > last() && isWanted(event)) known.push(event);
  }
}
