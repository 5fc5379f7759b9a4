// The streams of a service: the events of one chat, and the changes of all chats.

import { asked, read } from "./stream.js";

/** @import { ChatChange, ChatEvent, FollowOptions, WatchOptions } from "./index.js" */
/** @import { IsOver } from "./stream.js" */

/** The states in which a chat stays until someone or a deadline moves it. */
const RESTING = ["waiting", "requires_action", "interrupted", "error"];

/**
 * Yield a chat's events after number `after`, each once, in order, and go on with new ones.
 *
 * @param {string | URL} url
 * @param {FollowOptions} [options]
 * @returns {AsyncGenerator<ChatEvent, void, undefined>}
 */
export async function* follow(url, options = {}) {
  const { untilRest = false } = options;
  yield* read(addressOf(url, untilRest ? { until_rest: true } : {}), options, untilRest ? isAtRest : undefined);
}

/**
 * Yield the chats that changed after number `after`, each as it stands, then every chat that changes.
 *
 * @param {string | URL} url
 * @param {WatchOptions} [options]
 * @returns {AsyncGenerator<ChatChange, void, undefined>}
 */
export async function* watch(url, options = {}) {
  const { owner, agent, follow: goesOn } = options;
  yield* read(addressOf(url, { owner, agent, follow: goesOn }), options);
}

/**
 * @param {string | URL} url
 * @param {{ [name: string]: string | boolean | undefined }} query
 */
function addressOf(url, query) {
  const address = new URL(url, globalThis.location?.href);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined) {
      address.searchParams.set(name, String(value));
    }
  }
  return address;
}

/**
 * Return whether a chat whose stream ended without saying so rests, and all was read. Whatever stands before the service may
 * leave the end out; or the stream was cut off, and a proxy has made a clean end of that.
 *
 * @type {IsOver}
 */
async function isAtRest(service, cursor, signal) {
  const url = new URL(service.url);
  url.pathname = url.pathname.replace(/\/events$/, "");
  // An address of its own has no chat's above it. Where no chat is answered the next connection tells whether it is gone.
  return url.pathname !== service.url.pathname && restsAt(cursor, await asked(service, url, signal));
}

/**
 * @param {number} cursor
 * @param {any} chat or whatever else was answered
 */
function restsAt(cursor, chat) {
  const { state, settled, awaits, unreadable, last_seq: last } = chat ?? {};
  const rests = RESTING.includes(state) && (settled || state !== "interrupted") && awaits !== "subagents";
  return rests && !unreadable && last <= cursor;
}
