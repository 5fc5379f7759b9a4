// The reader of events: what `turnwise.fold` does, in the browser.

/** A transcript as the service gives it, or an empty one. */
export function begun(given = {}) {
  return {
    state: null, messages: [], live: {}, live_step: null, live_attempt: null, queue: [], open_calls: [], error: null,
    last_seq: 0, progress: {}, retry: null, ...given,
  };
}

/** Fold one event into a transcript, and say whether it told something new. */
export function fold(transcript, event) {
  if (event.kind === "history_reset" && !event.seq) {
    Object.assign(transcript, begun());
    return true;
  }
  if (event.seq <= transcript.last_seq) return false;
  const said = event.data;
  transcript.last_seq = event.seq;
  switch (event.kind) {
    case "status":
      transcript.state = said.state;
      transcript.retry = null;
      if (said.state !== "requires_action") transcript.open_calls = [];
      if (said.state !== "error") transcript.error = null;
      break;
    case "message":
      put(transcript, said.message);
      break;
    case "part":
      extend(transcript, said);
      break;
    case "attempt_discarded":
      if (transcript.live_step === said.step && transcript.live_attempt === said.attempt) drop(transcript);
      break;
    case "history_reset": {
      drop(transcript);
      const first = transcript.messages.findIndex((message) => message.id === said.first_removed);
      if (first >= 0) transcript.messages.splice(first);
      break;
    }
    case "queue":
      transcript.queue = changedQueue(transcript.queue, said);
      break;
    case "action_required":
      transcript.open_calls = said.calls;
      break;
    case "tool_result":
      transcript.open_calls = transcript.open_calls.filter((call) => call.call_id !== said.call_id);
      delete transcript.progress[said.call_id];
      break;
    case "tool_progress":
      transcript.progress[said.call_id] = said.progress;
      break;
    case "retry":
      transcript.retry = said;
      break;
    case "turn_finished":
      drop(transcript);
      break;
    case "error":
      transcript.error = said.error;
      break;
  }
  return true;
}

/** Return the queue after a change, as `fold` of the TypeScript reader does. */
function changedQueue(queue, { change, ids, message, before }) {
  const named = new Map(queue.filter((one) => ids.includes(one.id)).map((one) => [one.id, one]));
  if (message) named.set(message.id, message);
  if (change === "edited") return queue.map((one) => named.get(one.id) ?? one);
  if (change === "kept") return ids.flatMap((id) => named.get(id) ?? []);
  const left = queue.filter((one) => !named.has(one.id));
  if (change === "added" || change === "moved") {
    const place = left.findIndex((one) => one.id === before);
    left.splice(place < 0 ? left.length : place, 0, ...named.values());
  }
  return left;
}

function put(transcript, message) {
  const known = transcript.messages.findLastIndex((one) => one.id === message.id);
  if (known >= 0) {
    transcript.messages[known] = message;
    return;
  }
  transcript.messages.push(message);
  if (message.role === "tool") sortResults(transcript.messages, message.step);
  if (message.role === "assistant" && message.step === transcript.live_step) drop(transcript);
}

/** Put the results of a step in the order of their calls, on the places that they have: a marker may stand among them. */
function sortResults(messages, step) {
  const places = [...messages.keys()].filter((place) => messages[place].role === "tool" && messages[place].step === step);
  const results = places.map((place) => messages[place]);
  results.sort((left, right) => (left.call_index ?? 0) - (right.call_index ?? 0));
  places.forEach((place, nth) => { messages[place] = results[nth]; });
}

function extend(transcript, said) {
  if (transcript.live_step !== said.step || transcript.live_attempt !== said.attempt) {
    drop(transcript);
    transcript.live_step = said.step;
    transcript.live_attempt = said.attempt;
  }
  const part = (transcript.live[said.index] ??= { type: said.part.type, text: "" });
  part.text += said.part.delta ?? "";
}

function drop(transcript) {
  transcript.live = {};
  transcript.live_step = transcript.live_attempt = null;
}
