// A chat's log and events as bars along time.

import { Instants } from "./instants.js";

/**
 * @typedef {object} Bar
 * @property {string} lane
 * @property {string} name
 * @property {number} from where it is drawn, in milliseconds
 * @property {number} to
 * @property {object[]} records what the log and the events say of it
 * @property {string} [state] whose colour it has
 * @property {string} [chatId] the subagent that it represents
 */

export const LANES = ["state", "step", "attempt", "call", "compaction", "interrupt", "subagent"];

/** Return the bars of a log and its events, each with its records, and the instants by which they are drawn. */
export function barsOf(records, events, subagents, present) {
  const instants = new Instants(records, events, present);
  const bars = [...stays(records, instants), ...stepsOf(records, instants), ...callsOf(events, instants), ...compactionsOf(events, instants),
    ...records.filter((one) => one.trigger === "interrupt").map((one) => bar("interrupt", one.actor, instants.of(one), instants.of(one), [one])),
    ...subagents.map((one) => ({ ...bar("subagent", one.title ?? one.id, instants.at(one.created_at), instants.at(one.updated_at), [one]), state: one.state, chatId: one.id }))];
  return { bars, instants };
}

function bar(lane, name, from, to, records) {
  return { lane, name, from, to: Math.max(to, from), records };
}

/** One bar for each stay in a state. */
function stays(records, instants) {
  const found = [];
  for (const record of records) {
    const open = found.at(-1);
    if (open?.name === record.target) {
      open.records.push(record);
    } else {
      if (open) open.to = instants.of(record);
      found.push({ ...bar("state", record.target, instants.of(record), instants.now, [record]), state: record.target });
    }
  }
  return found;
}

/** One bar for each step, and for each attempt: from its first record to its last. */
function stepsOf(records, instants) {
  const found = new Map();
  records.forEach((record, place) => {
    if (!record.step) return;
    const ends = place + 1 < records.length ? instants.of(records[place + 1]) : instants.now;
    for (const [lane, name] of [["step", `step ${record.step}`], ["attempt", `attempt ${record.step}.${record.attempt}`]]) {
      if (lane === "attempt" && record.target !== "streaming") continue;
      const known = found.get(name) ?? bar(lane, name, instants.of(record), ends, []);
      known.to = Math.max(known.to, lane === "step" ? instants.of(record) : ends);
      known.records.push(record);
      found.set(name, known);
    }
  });
  return [...found.values()];
}

/** One bar for each call that the provider did not run itself: until it is answered, or cut away with what asked for it. */
function callsOf(events, instants) {
  const calls = new Map();
  const open = new Set();
  const end = (id, event, record) => {
    if (!open.delete(id)) return;
    const call = calls.get(id);
    call.to = instants.of(event);
    call.records.push(record);
  };
  for (const event of events) {
    if (event.kind === "tool_result") end(event.call_id, event, event);
    if (event.kind === "history_reset") for (const id of open) end(id, event, event);
    if (event.kind !== "message") continue;
    for (const part of event.message.parts) {
      if (part.type === "tool_result") end(part.call_id, event, { ...part, at: event.at });
      if (part.type !== "tool_call" || part.executor === "provider" || calls.has(part.call_id)) continue; // repeated once it is erased
      calls.set(part.call_id, bar("call", part.name, instants.of(event), instants.now, [{ ...part, at: event.at }]));
      open.add(part.call_id);
    }
  }
  return [...calls.values()];
}

/** One bar for each compaction, however often it was tried: until it is over, or the chat does something else. */
function compactionsOf(events, instants) {
  const found = [];
  let open = null;
  for (const event of events) {
    const { kind } = event;
    if (kind === "compaction") {
      if (event.phase === "started" && !open) {
        open = bar("compaction", `step ${event.step}`, instants.of(event), instants.now, []);
        found.push(open);
      }
      found.at(-1)?.records.push(event); // that it was unproductive is known later
    }
    const isOver = kind === "compaction" ? ["finished", "failed", "declined"].includes(event.phase) : kind === "status" && event.state !== "compacting";
    if (open && isOver) {
      open.to = instants.of(event);
      open = null;
    }
  }
  return found;
}

/**
 * Return bars of one lane in rows, so that none hides another: bars without room of their own are merged into one.
 *
 * @param {Bar[]} bars
 * @param {(time: number) => number} pixel where a time is drawn
 * @param {{ rows: number, least: number }} limits how many rows there may be, and how narrow a bar
 * @returns {{ bars: Bar[], left: number, right: number, row: number }[]}
 */
export function packed(bars, pixel, { rows, least }) {
  const found = [];
  const last = [];
  for (const one of bars.toSorted((a, b) => a.from - b.from)) {
    const begins = pixel(one.from);
    const right = Math.max(pixel(one.to), begins + least);
    const free = (row) => Math.max(begins, last[row]?.right ?? 0); // a narrow bar may push the next one a little
    let row = 0;
    while (row < rows && (free(row) > begins + least || right < free(row) + least)) row += 1; // sums alone: a difference is rounded
    if (row === rows) {
      last[rows - 1].bars.push(one);
      last[rows - 1].right = Math.max(last[rows - 1].right, right);
    } else {
      last[row] = { bars: [one], left: free(row), right, row };
      found.push(last[row]);
    }
  }
  return found;
}
