// The chat as it stood at a version: the events up to that version, folded. A fork begins there.

import "./chat-diagram.js";
import "./chat-messages.js";
import { stringify } from "./exact-json.js";
import { fold } from "../client/index.js";
import { seqAt } from "./instants.js";
import { chatPath, post, readOn } from "./service.js";
import { asTime, button, made, showState, stateOf, table, tell } from "./shown.js";

class TimeTravel extends HTMLElement {
  connectedCallback() {
    this.slider = made("input", { type: "range", min: 1, max: 1, id: "version" });
    this.slider.addEventListener("input", () => this.go(this.slider.valueAsNumber));
    const step = (by) => () => {
      this.slider.valueAsNumber += by;
      this.go(this.slider.valueAsNumber);
    };
    this.state = stateOf("");
    this.at = made("span", { role: "status", className: "at" });
    this.messages = made("chat-messages", { isPast: true });
    this.calls = made("div", { className: "card" });
    this.diagram = made("chat-diagram", { chatId: this.chatId, className: "card" });
    const fork = button("Fork here", () => this.fork(), { className: "main", title: "Begin another chat with what was said until then" });
    this.append(
      made("div", { className: "travel card" },
        made("label", { for: "version", textContent: "Version" }), button("‹", step(-1), { "aria-label": "One version back" }),
        this.slider, button("›", step(1), { "aria-label": "One version on" }), this.state, this.at, this.may.has("fork") ? fork : null),
      made("div", { className: "columns" },
        made("div", { className: "card" }, this.messages), made("div", {}, this.diagram, this.calls)));
  }

  /** Show a log. If the last version was shown, show the new last one. */
  async show(records) {
    try {
      const wasLast = !this.records || this.slider.valueAsNumber === this.records.length;
      this.events ??= [];
      await readOn(this.events, this.chatId);
      if (records.length < (this.records?.length ?? 0)) return; // a later question was answered sooner
      this.records = records;
      this.slider.max = records.length;
      if (wasLast) this.slider.valueAsNumber = records.length;
      this.go(this.slider.valueAsNumber);
    } catch (error) {
      tell(this, error);
    }
  }

  go(version) {
    const record = this.records?.[version - 1];
    if (!record) return;
    const last = seqAt(this.records, version);
    const known = this.then && this.then.last_seq <= last ? this.then : fold([]);
    this.then = fold(this.events.filter((event) => event.seq <= last), known);
    this.slider.setAttribute("aria-valuetext", `version ${version}, ${record.target}`);
    showState(this.state, record.target);
    this.at.textContent = `version ${version}: ${record.trigger} by ${record.actor}, ${asTime(record.at)}`;
    this.messages.show(this.then);
    this.diagram.light(record.target);
    this.diagram.count(this.records.slice(0, version));
    const open = openCalls(this.then.messages);
    this.calls.replaceChildren(made("h3", { textContent: "Calls" }), table(`${open.length} ${open.length === 1 ? "call" : "calls"} without a result`, ["call", "arguments"],
      open.map((call) => [call.name, stringify(call.arguments)]), "Every call has its result."));
  }

  async fork() {
    const forked = await post(chatPath(this.chatId, "fork"), { at_version: this.slider.valueAsNumber });
    location.hash = `/chats/${encodeURIComponent(forked.id)}`;
  }
}

/** Return the calls of messages that have no result among them. */
function openCalls(messages) {
  const parts = messages.flatMap((message) => message.parts);
  const answered = new Set(parts.filter((part) => part.type === "tool_result").map((part) => part.call_id));
  return parts.filter((part) => part.type === "tool_call" && !answered.has(part.call_id));
}

customElements.define("time-travel", TimeTravel);
