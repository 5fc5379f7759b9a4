// The twin of Python's turnwise.fold: folds a chat's events into what a person sees.

/** @import { ChatEvent, Message, PartEvent, QueuedMessage, QueueEvent, Transcript } from "./index.js" */
/** @typedef {Partial<Transcript>} Change */

/** @type {Transcript} */
const EMPTY = {
  state: null,
  messages: [],
  live: {},
  live_step: null,
  live_attempt: null,
  queue: [],
  open_calls: [],
  stop_reason: null,
  error: null,
  last_seq: 0,
};

/** @type {Change} */
const NOTHING_LIVE = { live: {}, live_step: null, live_attempt: null };

/**
 * What each kind of event changes. The others tell of work under way.
 *
 * @type {{ [Kind in ChatEvent["kind"]]?: (transcript: Transcript, event: Extract<ChatEvent, { kind: Kind }>) => Change }}
 */
const CHANGES = {
  status: (transcript, { state }) => ({
    state,
    open_calls: state === "requires_action" ? transcript.open_calls : [],
    error: state === "error" ? transcript.error : null,
  }),
  message: (transcript, { message }) => put(transcript, message),
  part: extend,
  attempt_discarded: (transcript, event) => (isLive(transcript, event) ? NOTHING_LIVE : {}),
  history_reset: (transcript, { first_removed }) => {
    const cut = transcript.messages.findIndex((message) => message.id === first_removed);
    return cut < 0 ? NOTHING_LIVE : { ...NOTHING_LIVE, messages: transcript.messages.slice(0, cut) };
  },
  queue: (transcript, event) => ({ queue: changedQueue(transcript.queue, event) }),
  action_required: (_transcript, { calls }) => ({ open_calls: calls }),
  tool_result: (transcript, { call_id }) => ({
    open_calls: transcript.open_calls.filter((call) => call.call_id !== call_id),
  }),
  turn_finished: (_transcript, { stop_reason }) => ({ ...NOTHING_LIVE, stop_reason }),
  error: (_transcript, { error }) => ({ error }),
};

/**
 * Return the transcript that `events` make, continuing from `transcript` if one is given. Neither is changed.
 *
 * @param {Iterable<ChatEvent>} events
 * @param {Transcript} [transcript]
 * @returns {Transcript}
 */
export function fold(events, transcript = EMPTY) {
  let folded = transcript;
  for (const event of events) {
    if (event?.kind === "history_reset" && !event.seq) {
      folded = EMPTY; // the database went back: all events follow anew
      continue;
    }
    if (typeof event?.kind !== "string" || !Number.isSafeInteger(event.seq)) {
      throw new TypeError(`events must be events, with a kind and a seq; one was ${JSON.stringify(event)}`);
    }
    if (event.seq > folded.last_seq) {
      folded = { ...folded, ...changeOf(folded, event), last_seq: event.seq };
    }
  }
  return folded.messages === transcript.messages ? folded : { ...folded, messages: inCallOrder(folded.messages) };
}

/**
 * @param {Transcript} transcript
 * @param {ChatEvent} event of a kind that a newer service may have, too
 * @returns {Change}
 */
function changeOf(transcript, event) {
  if (!Object.hasOwn(CHANGES, event.kind)) {
    return {};
  }
  const change = /** @type {(transcript: Transcript, event: ChatEvent) => Change} */ (CHANGES[event.kind]);
  return change(transcript, event);
}

/**
 * Return the text of the reply under way.
 *
 * @param {Transcript} transcript
 * @returns {string}
 */
export function liveText(transcript) {
  const parts = Object.entries(transcript.live).sort(([left], [right]) => Number(left) - Number(right));
  return parts.map(([, part]) => (part.type === "text" ? part.text : "")).join("");
}

/**
 * @param {Transcript} transcript
 * @param {{ step: number, attempt: number }} event
 */
function isLive(transcript, event) {
  return transcript.live_step === event.step && transcript.live_attempt === event.attempt;
}

/**
 * @param {Transcript} transcript
 * @param {Message} message
 * @returns {Change}
 */
function put(transcript, message) {
  const { messages } = transcript;
  const place = messages.findIndex((known) => known.id === message.id);
  if (place >= 0) {
    return { messages: [...messages.slice(0, place), message, ...messages.slice(place + 1)] };
  }
  const endsLive = message.role === "assistant" && message.step === transcript.live_step;
  return { ...(endsLive ? NOTHING_LIVE : {}), messages: [...messages, message] };
}

/**
 * @param {Transcript} transcript
 * @param {PartEvent} event
 * @returns {Change}
 */
function extend(transcript, event) {
  const { index, part, step, attempt } = event;
  const live = isLive(transcript, event) ? transcript.live : {};
  const { type, text } = live[index] ?? { type: part.type, text: "" };
  return { live: { ...live, [index]: { type, text: text + (part.delta ?? "") } }, live_step: step, live_attempt: attempt };
}

/**
 * Return the queue after a change. Ids that do not wait in it are passed over.
 *
 * @param {QueuedMessage[]} queue
 * @param {QueueEvent} event
 * @returns {QueuedMessage[]}
 */
function changedQueue(queue, { change, ids, message, before }) {
  const named = new Map(queue.filter((queued) => ids.includes(queued.id)).map((queued) => [queued.id, queued]));
  if (message) {
    named.set(message.id, message);
  }
  if (change === "edited") {
    return queue.map((queued) => named.get(queued.id) ?? queued);
  }
  if (change === "kept") {
    return ids.flatMap((id) => named.get(id) ?? []);
  }
  const left = queue.filter((queued) => !named.has(queued.id));
  if (change === "added" || change === "moved") {
    const place = left.findIndex((queued) => queued.id === before);
    left.splice(place < 0 ? left.length : place, 0, ...named.values());
  }
  return left;
}

/**
 * Return the messages in their order, but all results of one step, on their places, in the order of their calls: results
 * are told as they finish, and the marker of a compaction may stand among them.
 *
 * @param {Message[]} messages
 * @returns {Message[]}
 */
function inCallOrder(messages) {
  /** @type {Map<number, Message[]>} */
  const results = new Map();
  for (const message of messages.filter(isResult)) {
    results.set(message.step, [...(results.get(message.step) ?? []), message]);
  }
  for (const ofStep of results.values()) {
    ofStep.sort((left, right) => placeOf(left) - placeOf(right));
  }
  const ordered = messages.map((message) => (isResult(message) && results.get(message.step)?.shift()) || message);
  // The same array if it was ordered, so that a page sees that nothing has changed.
  return ordered.every((message, place) => message === messages[place]) ? messages : ordered;
}

/** @param {Message} message */
function isResult(message) {
  return message.role === "tool";
}

/** @param {Message} message */
function placeOf(message) {
  return message.call_index ?? 0;
}
