// The audit log, and whether it holds.

import { chatPath, get } from "./service.js";
import { asTime, button, made, stateOf, table } from "./shown.js";

const SHOWN = 200;

class ChatAudit extends HTMLElement {
  connectedCallback() {
    this.verdict = made("p", { role: "status", className: "verdict" });
    this.log = made("div");
    this.append(
      made("div", { className: "head" }, made("h3", { textContent: "Audit" }), this.may.has("verify") ? button("Verify", () => this.verify()) : null),
      this.verdict, this.log);
  }

  async verify() {
    this.verdict.textContent = "checking";
    delete this.verdict.dataset.ok;
    const { ok, problem, position } = await get(chatPath(this.chatId, "verify"));
    this.verdict.dataset.ok = ok;
    this.verdict.textContent = ok ? "✓ The log holds: every record, and every row against it." : `✗ At ${position}: ${problem}`;
  }

  show(records) {
    const rows = records.slice(-SHOWN).reverse().map((record) => [
      String(record.version), record.trigger, way(record), record.actor, record.reason ?? "", asTime(record.at),
    ]);
    const caption = records.length > SHOWN ? `The last ${SHOWN} of ${records.length} transitions` : "Transitions, the last first";
    this.log.replaceChildren(table(caption, ["version", "trigger", "way", "actor", "reason", "at"], rows));
  }
}

function way({ source, target }) {
  if (source === target) return made("span", { className: "way" }, "stays ", stateOf(target));
  return made("span", { className: "way" }, source ? stateOf(source) : "new", " → ", stateOf(target));
}

customElements.define("chat-audit", ChatAudit);
