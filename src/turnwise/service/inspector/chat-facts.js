// The state of a chat and the reason, its usage, and the rest of its budgets.

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
          [row("all", chat.usage), ...entries.slice(-SHOWN).map((one) => row(`${one.purpose} ${one.step}`, one.usage))])),
      ...(told.budgets?.length ? [made("section", { className: "card", "aria-label": "Budgets" }, made("h3", { textContent: "Budgets" }),
        table("Budgets", ["of", "limit", "spent", "reserved", "left", "until"], told.budgets.flatMap(budgetRows)))] : []));
  }
}

/** Return a row for each limit of a budget. */
function budgetRows(budget) {
  const whose = budget.owner === null ? "this chat" : budget.owner;
  const until = asTime(budget.until) || "for good";
  const unpriced = budget.unpriced ? `, ${budget.unpriced} of unknown price` : "";
  const { spent, reserved, left } = budget;
  return [
    budget.tokens === null ? null : [whose, `${budget.tokens} tokens`, spent.tokens, reserved.tokens, left.tokens, until],
    budget.cost === null ? null : [whose, `$${budget.cost}`, `$${spent.cost}${unpriced}`, `$${reserved.cost}`, `$${left.cost}`, until],
  ].filter(Boolean).map((cells) => cells.map(String));
}

function row(name, { input_tokens: input, output_tokens: output, cost }) {
  return [name, input ?? "?", output ?? "?", cost === null || cost === undefined ? "?" : `$${cost}`].map(String);
}

customElements.define("chat-facts", ChatFacts);
