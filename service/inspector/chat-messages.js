// What was said, and the reply under way. Only messages that are new or have changed are drawn.

import { asText, made } from "./shown.js";

class ChatMessages extends HTMLElement {
  connectedCallback() {
    this.drawn = new Map();
    this.said = made("div", { className: "said", role: "log", "aria-label": "Messages" });
    this.live = made("article", { className: "message live", hidden: true, "aria-label": "Reply under way" });
    this.frame = made("div", { className: "scrolled talk", tabIndex: 0, role: "region", "aria-label": "Conversation" },
      this.said, this.live);
    this.append(made("h3", { textContent: "Conversation" }), this.frame);
  }

  show({ messages, live, progress }) {
    const { frame } = this;
    const atEnd = frame.scrollHeight - frame.scrollTop - frame.clientHeight < 40;
    const kept = new Set(messages.map((message) => message.id));
    for (const [id, [, element]] of this.drawn) {
      if (!kept.has(id)) {
        element.remove();
        this.drawn.delete(id);
      }
    }
    for (const message of messages) {
      const [known, element] = this.drawn.get(message.id) ?? [];
      if (known === message) continue;
      const fresh = drawnOf(message);
      if (element) element.replaceWith(fresh);
      else this.said.append(fresh);
      this.drawn.set(message.id, [message, fresh]);
    }
    const parts = Object.keys(live).sort((a, b) => a - b).map((index) => live[index]);
    const reports = Object.entries(progress).map(([id, told]) => ({ type: `progress of ${id}`, text: asText(told) }));
    this.live.hidden = !parts.length && !reports.length;
    this.live.replaceChildren(made("h4", { textContent: "assistant, now" }), ...[...parts, ...reports].map(drawnPart));
    if (atEnd) frame.scrollTop = frame.scrollHeight;
  }
}

function drawnOf(message) {
  const notes = [message.role, message.partial && "partial", message.synthetic && "synthetic"].filter(Boolean).join(", ");
  return made("article", { className: `message ${message.role}`, data: { id: message.id }, "aria-label": notes },
    made("h4", { textContent: notes }), ...message.parts.map(drawnPart));
}

function drawnPart(part) {
  switch (part.type) {
    case "text":
      return made("p", { className: "text", textContent: part.text ?? "" });
    case "reasoning":
      return made("p", { className: "text reasoning", textContent: part.text ?? "" });
    case "tool_call":
      return folded(`call ${part.name ?? ""}`, part.arguments ?? part.text);
    case "tool_result":
      return folded(`${part.is_error ? "error" : "result"} of ${part.name}`, part.output);
    default:
      return folded(part.type, part.text ?? part.title ?? part.url ?? part);
  }
}

function folded(words, value) {
  return made("details", { open: true },
    made("summary", { textContent: words }), made("pre", { textContent: asText(value) ?? "" }));
}

customElements.define("chat-messages", ChatMessages);
