// What the chat did, as bars along time: states, steps, calls, compactions and helpers. A bar opens its records.

import { events, chatPath, get } from "./service.js";
import { asTime, made, table, tell } from "./shown.js";

const LANES = ["state", "step", "attempt", "call", "compaction", "interrupt", "helper"];
const MOST = 600;

/** Return the bars that a log and the events tell: each with its lane, name, beginning, end and records. */
export function barsOf(records, told, helpers, now) {
  return [...spells(records, now), ...stepsOf(records, now), ...callsOf(told, now), ...compactionsOf(told, now),
    ...records.filter((one) => one.trigger === "interrupt").map((one) => bar("interrupt", one.actor, one.at, one.at, [one])),
    ...helpers.map((one) => bar("helper", one.title ?? one.id, one.created_at, one.updated_at, [], one.id))];
}

function bar(lane, name, from, to, records, chatId) {
  return { lane, name, from: Date.parse(from), to: Math.max(Date.parse(to), Date.parse(from)), records, chatId };
}

/** One bar for each stay in a state. */
function spells(records, now) {
  const found = [];
  for (const record of records) {
    const open = found.at(-1);
    if (open?.name === record.target) {
      open.records.push(record);
    } else {
      if (open) open.to = Date.parse(record.at);
      found.push(bar("state", record.target, record.at, now, [record]));
    }
  }
  return found;
}

/** One bar for each step, and for each attempt: from its first record to its last. */
function stepsOf(records, now) {
  const found = new Map();
  records.forEach((record, place) => {
    if (!record.step) return;
    const ends = records[place + 1]?.at ?? now;
    for (const [lane, name] of [["step", `step ${record.step}`], ["attempt", `attempt ${record.step}.${record.attempt}`]]) {
      if (lane === "attempt" && record.target !== "streaming") continue;
      const known = found.get(name) ?? bar(lane, name, record.at, ends, []);
      known.to = Math.max(known.to, lane === "step" ? Date.parse(record.at) : Date.parse(ends));
      known.records.push(record);
      found.set(name, known);
    }
  });
  return [...found.values()];
}

function callsOf(told, now) {
  const found = new Map();
  for (const { kind, data } of told) {
    if (kind === "message") {
      for (const part of data.message.parts) {
        if (part.type === "tool_call") found.set(part.call_id, bar("call", part.name, data.at, now, [part]));
      }
    } else if (kind === "tool_result" && found.has(data.call_id)) {
      const call = found.get(data.call_id);
      call.to = Date.parse(data.at);
      call.records.push(data);
    }
  }
  return [...found.values()];
}

function compactionsOf(told, now) {
  const found = [];
  for (const { kind, data } of told) {
    if (kind !== "compaction") continue;
    if (data.phase === "started") found.push(bar("compaction", `step ${data.step}`, data.at, now, []));
    const open = found.at(-1);
    if (!open) continue;
    open.records.push(data);
    if (["finished", "failed", "unproductive"].includes(data.phase)) open.to = Date.parse(data.at);
  }
  return found;
}

class ChatTimeline extends HTMLElement {
  connectedCallback() {
    this.zoom = made("input", { type: "range", min: 1, max: 50, value: 1, id: "zoom" });
    this.zoom.addEventListener("input", () => this.draw());
    this.lanes = made("div", { className: "lanes" });
    this.frame = made("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": "Timeline" }, this.lanes);
    this.records = made("div", { "aria-live": "polite" });
    this.append(made("label", { for: "zoom", textContent: "Zoom" }), this.zoom, this.frame, this.records);
  }

  async show(records) {
    try {
      const [told, helpers] = await Promise.all([this.stored(), get(chatPath(this.chatId, "helpers"))]);
      this.bars = barsOf(records, told, helpers, new Date().toISOString());
      this.draw();
    } catch (error) {
      tell(this, error);
    }
  }

  async stored() {
    const found = [];
    for await (const event of events(this.chatId, 0, { follow: false })) found.push(event);
    return found;
  }

  draw() {
    const begins = Math.min(...this.bars.map((one) => one.from));
    const lasts = Math.max(1, Math.max(...this.bars.map((one) => one.to)) - begins);
    this.lanes.style.width = `${this.zoom.value * 100}%`;
    this.lanes.replaceChildren(...LANES.map((lane) => {
      const bars = this.bars.filter((one) => one.lane === lane).slice(-MOST);
      return made("div", { className: "lane", role: "group", "aria-label": `${lane} bars` },
        made("span", { className: "name", textContent: lane }),
        made("div", { className: "track" }, ...bars.map((one) => this.drawn(one, begins, lasts))));
    }));
  }

  drawn(one, begins, lasts) {
    const took = `${((one.to - one.from) / 1000).toFixed(3)} s`;
    const element = made("button", {
      type: "button", textContent: one.name, title: `${one.name}: ${took}`, "aria-label": `${one.lane} ${one.name}, ${took}`,
      data: { state: one.name }, on: { click: () => this.open(one, took) },
    });
    element.style.left = `${((one.from - begins) / lasts) * 100}%`;
    element.style.width = `${((one.to - one.from) / lasts) * 100}%`;
    return element;
  }

  open(one, took) {
    const rows = one.records.map((record) => [
      record.version ?? record.seq ?? record.call_id ?? "", record.trigger ?? record.phase ?? record.outcome ?? record.type ?? "",
      asTime(record.at), made("pre", { textContent: JSON.stringify(record, null, 1) }),
    ].map((cell) => (cell instanceof Node ? cell : String(cell))));
    const link = one.chatId ? made("a", { href: `#/chats/${encodeURIComponent(one.chatId)}`, textContent: one.chatId }) : null;
    this.records.replaceChildren(table(`Records of ${one.lane} ${one.name}, ${took}`, ["number", "what", "at", "record"], rows));
    if (link) this.records.prepend(link);
  }
}

customElements.define("chat-timeline", ChatTimeline);
