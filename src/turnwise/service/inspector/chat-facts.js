// Where a chat stands and why, and what it has used.

import { asTime, made, pairs, table } from "./shown.js";

const SHOWN = 20;

class ChatFacts extends HTMLElement {
  show(chat, told, entries) {
    this.replaceChildren(
      made("section", { className: "card", "aria-label": "Explanation" }, made("h3", { textContent: "Explanation" }), pairs([
        ["since", asTime(told.since)], ["agent", told.agent], ["worker", told.lease_worker ?? "none"],
        ["next timer", asTime(told.next_timer) || "none"], ["accepts", told.legal_triggers.join(", ")],
        ...(told.schedules?.length ? [["scheduled", told.schedules.map((one) => `${one.id} at ${asTime(one.due)}`).join(", ")]] : []),
        ["broken invariants", told.broken_invariants.join(", ") || "none"], ["last error", told.last_error?.message ?? "none"],
        ...(told.last_error?.detail ? [["in detail", told.last_error.detail]] : []),
      ])),
      made("section", { className: "card", "aria-label": "Usage" }, made("h3", { textContent: "Usage and cost" }),
        table("Usage and cost", ["call", "tokens in", "tokens out", "cost"],
          [row("all", chat.usage), ...entries.slice(-SHOWN).map((one) => row(`${one.purpose} ${one.step}`, one.usage))])));
  }
}

function row(name, { input_tokens: input, output_tokens: output, cost }) {
  return [name, input ?? "?", output ?? "?", cost === null || cost === undefined ? "?" : `$${cost}`].map(String);
}

customElements.define("chat-facts", ChatFacts);
