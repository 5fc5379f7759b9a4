// The chat as it stood at a version: the events up to that version, folded. A fork begins there.

import "./chat-diagram.js";
import "./chat-messages.js";
import { chatPath, events, post } from "./service.js";
import { asTime, button, made, table, tell } from "./shown.js";
import { begun, fold } from "./transcript.js";

/** Return the number of the last event that a version had told. Versions of one commit are told with its last. */
export function seqAt(records, version) {
  let seq = 0;
  for (const record of records) {
    const told = record.writes.find((write) => write.kind === "events");
    if (told) seq = Number(told.id.split("-")[1]);
    if (record.version >= version && (told || record.writes.some((write) => write.kind === "facts"))) break;
  }
  return seq;
}

class TimeTravel extends HTMLElement {
  connectedCallback() {
    this.slider = made("input", { type: "range", min: 1, id: "version" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.at = made("p", { role: "status", className: "at" });
    this.messages = made("chat-messages");
    this.calls = made("div");
    this.diagram = made("chat-diagram", { chatId: this.chatId });
    this.append(made("label", { for: "version", textContent: "Version" }), this.slider, this.at,
      ...(this.mayWrite ? [button("Fork here", () => this.fork())] : []), this.messages, this.calls, this.diagram);
  }

  async show(records) {
    try {
      this.records = records;
      this.told = [];
      for await (const event of events(this.chatId, 0, { follow: false })) this.told.push(event);
      this.slider.max = records.length;
      this.slider.value = records.length;
      this.go(records.length);
    } catch (error) {
      tell(this, error);
    }
  }

  go(version) {
    const record = this.records[version - 1];
    const last = seqAt(this.records, version);
    const then = begun();
    for (const event of this.told) {
      if (event.seq > last) break;
      fold(then, event);
    }
    this.slider.setAttribute("aria-valuetext", `version ${version}, ${record.target}`);
    this.at.textContent = `version ${version}: ${record.trigger} by ${record.actor}, ${record.target}, ${asTime(record.at)}`;
    this.messages.show(then);
    this.diagram.light(record.target);
    const open = openCalls(then.messages);
    this.calls.replaceChildren(table(`${open.length} calls without a result`, ["call", "arguments"],
      open.map((call) => [call.name, JSON.stringify(call.arguments)])));
  }

  async fork() {
    const forked = await post(chatPath(this.chatId, "fork"), { at_version: Number(this.slider.value) });
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
