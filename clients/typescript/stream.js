// Reads a stream of numbered server-sent events, and connects again after whatever cuts the connection.

import { Parser } from "./sse.js";

/** @import { ProblemFields, StreamOptions } from "./index.js" */
/** @typedef {import("./sse.js").ServerSentEvent} ServerSentEvent */
/** @typedef {{ url: URL, token: StreamOptions["token"], fetch: typeof globalThis.fetch, silence: number }} Service */
/** @typedef {(service: Service, cursor: number, signal?: AbortSignal) => Promise<boolean>} IsOver */

const FIRST_DELAY = 1000;
const SHORTEST_DELAY = 100;
const MOST_DOUBLINGS = 20;
/** The longest pause that a service may ask for, by `Retry-After`. */
const LONGEST_ASKED = 60_000;
/** The milliseconds that `setTimeout` can wait, 24 days; whoever asks for more, or for no end, is called at once. */
const LONGEST_TIMER = 2 ** 31 - 1;
/** The chat cannot be read, whoever asks and how often, until somebody repairs it. */
const UNREADABLE = "urn:turnwise:problem:chat-unreadable";
/** What the service answers instead of events, or ends a stream with: RFC 9457. */
export class Problem extends Error {
  /** @param {ProblemFields} fields */
  constructor(fields) {
    super(`${fields.title} (${fields.status}): ${fields.detail}`);
    this.name = "Problem";
    this.type = fields.type;
    this.title = fields.title;
    this.status = fields.status;
    this.detail = fields.detail;
    this.fields = fields;
  }
}

/** The connection is gone, or was never there; whoever waits a while may come back. */
class Dropped extends Error {
  /**
   * @param {string} message
   * @param {{ cause?: unknown, atLeast?: number }} [more] `atLeast`: the milliseconds that the service asked to wait
   */
  constructor(message, { cause, atLeast = 0 } = {}) {
    super(message, { cause });
    this.name = "Dropped";
    this.atLeast = atLeast;
  }
}

/**
 * Yield the data of numbered events after number `after`, in order, and go on with new ones.
 *
 * @param {URL} url
 * @param {StreamOptions} options
 * @param {IsOver} [isOver] whether nothing is left of a stream that ended without saying so; it never is by default
 * @returns {AsyncGenerator<any, void, undefined>}
 */
export async function* read(url, options, isOver) {
  const { token, after = 0, signal, fetch = globalThis.fetch, parse = JSON.parse } = options;
  const { silence = 45_000, maxDelay = 3_000, onConnect, onDrop } = options;
  const service = { url, token, fetch, silence };
  let cursor = after;
  let firstDelay = FIRST_DELAY;
  let failures = 0;
  for (;;) {
    const began = performance.now();
    try {
      for await (const told of connected(service, cursor, { signal, onConnect })) {
        firstDelay = Math.max(SHORTEST_DELAY, told.retry ?? firstDelay);
        if (told.id !== undefined) {
          const event = parse(told.data);
          cursor = Number(told.id);
          failures = 0;
          yield event;
        } else if (told.event === "reconnect") {
          throw new Dropped("the service stops");
        } else if (told.event === "end") {
          return;
        } else if (told.event === "problem") {
          throw refusal(JSON.parse(told.data), 0);
        }
      }
      if (await isOver?.(service, cursor, signal)) {
        return;
      }
      throw new Dropped("the connection was closed");
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof Dropped)) {
        throw error;
      }
      if (performance.now() - began > maxDelay) {
        failures = 0; // a quiet stream was none the less there
      }
      const grown = jittered(firstDelay * 2 ** Math.min(failures, MOST_DOUBLINGS));
      const delay = Math.max(Math.min(error.atLeast, LONGEST_ASKED), Math.min(maxDelay, grown));
      failures += 1;
      onDrop?.(error, delay);
      await pause(delay, signal);
    }
  }
}

/**
 * Return the JSON at another address of the service; `undefined` if it is none, or an error is answered.
 *
 * @param {Service} service
 * @param {URL} url
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function asked(service, url, signal) {
  const { connection, close } = connectionUntil(signal);
  try {
    const response = await answered({ ...service, url }, { Accept: "application/json" }, connection);
    const text = await heard(() => response.text(), service.silence, connection);
    return response.ok ? JSON.parse(text) : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) {
      return undefined;
    }
    throw error;
  } finally {
    close();
  }
}

/**
 * Yield what one connection tells, until it ends.
 *
 * @param {Service} service
 * @param {number} cursor
 * @param {Pick<StreamOptions, "signal" | "onConnect">} options
 * @returns {AsyncGenerator<ServerSentEvent, void, undefined>}
 */
async function* connected(service, cursor, { signal, onConnect }) {
  const { connection, close } = connectionUntil(signal);
  try {
    const body = await opened(service, cursor, connection);
    onConnect?.();
    const parser = new Parser();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await heard(() => body.read(), service.silence, connection);
      if (done) {
        return;
      }
      yield* parser.take(decoder.decode(value, { stream: true }));
    }
  } finally {
    close();
  }
}

/**
 * Return what aborts a connection, which whoever leaves does, too; and how to close it.
 *
 * @param {AbortSignal} [signal]
 */
function connectionUntil(signal) {
  const connection = new AbortController();
  const leave = () => connection.abort(signal?.reason);
  signal?.throwIfAborted();
  signal?.addEventListener("abort", leave);
  const close = () => {
    signal?.removeEventListener("abort", leave);
    connection.abort();
  };
  return { connection, close };
}

/**
 * Return a reader of the response's body.
 *
 * @param {Service} service
 * @param {number} cursor
 * @param {AbortController} connection
 */
async function opened(service, cursor, connection) {
  const { silence, url } = service;
  const accepted = { Accept: "text/event-stream", "Last-Event-ID": String(cursor) };
  const response = await answered(service, accepted, connection);
  if (!response.ok) {
    const text = await heard(() => response.text(), silence, connection);
    throw refusal(problemIn(text, response), Number(response.headers.get("Retry-After")) || 0);
  }
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream") || response.body === null) {
    throw new TypeError(`${url} must answer with server-sent events; it is no stream of turnwise's`);
  }
  return response.body.getReader();
}

/**
 * Return what the service answers.
 *
 * @param {Service} service
 * @param {Record<string, string>} asked the headers, without the token
 * @param {AbortController} connection
 */
async function answered(service, asked, connection) {
  const { fetch, silence, url } = service;
  const token = await heard(() => tokenOf(service, connection.signal), silence, connection);
  const headers = new Headers(asked);
  if (token !== undefined) {
    headers.set("Authorization", `Bearer ${token}`);
  }
  const request = { headers, signal: connection.signal, cache: /** @type {const} */ ("no-store") };
  return heard(() => fetch(url, request), silence, connection);
}

/**
 * Return the token, for whose fresh one a function may ask the network. It is not waited for once the signal is aborted.
 *
 * @param {Service} service
 * @param {AbortSignal} signal
 * @returns {Promise<string | undefined>}
 */
async function tokenOf({ token }, signal) {
  /** @type {Promise<never>} */
  const aborted = new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  const asked = async () => (typeof token === "function" ? token() : token);
  return Promise.race([asked(), aborted]);
}

/**
 * Return what the network gives. What it does not give within `silence` milliseconds, it will never give.
 *
 * @template T
 * @param {() => Promise<T>} ask
 * @param {number} silence
 * @param {AbortController} connection
 * @returns {Promise<T>}
 */
async function heard(ask, silence, connection) {
  const timer = setTimeout(() => connection.abort(), Math.min(silence, LONGEST_TIMER));
  try {
    return await ask();
  } catch (error) {
    throw new Dropped(connection.signal.aborted ? `nothing was heard for ${silence} ms` : "the network failed", {
      cause: error,
    });
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Return the error for a problem: those of the service, and requests that came too fast, pass; a chat that cannot be read does not.
 *
 * @param {ProblemFields} fields
 * @param {number} retryAfter seconds
 */
function refusal(fields, retryAfter) {
  const problem = new Problem(fields);
  const passes = (problem.status >= 500 || problem.status === 429) && problem.type !== UNREADABLE;
  return passes ? new Dropped(problem.message, { cause: problem, atLeast: retryAfter * 1000 }) : problem;
}

/**
 * @param {string} text
 * @param {Response} response
 * @returns {ProblemFields}
 */
function problemIn(text, response) {
  const other = { type: "about:blank", title: response.statusText || "Error", status: response.status, detail: "" };
  try {
    return { ...other, ...JSON.parse(text), status: response.status };
  } catch {
    return other; // whatever stands before the service has answered for it
  }
}

/**
 * Return a delay somewhat shorter, so that the readers of a service that has stopped do not come back all at once.
 *
 * @param {number} delay
 */
function jittered(delay) {
  return delay * (0.5 + Math.random() / 2);
}

/**
 * @param {number} milliseconds
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted(); // a signal that is aborted already tells no listener
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.min(milliseconds, LONGEST_TIMER));
    signal?.addEventListener("abort", stop, { once: true });
  });
}
