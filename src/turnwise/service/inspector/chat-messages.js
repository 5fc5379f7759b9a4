// The messages and the streaming reply. Only new or changed ones are drawn.

import { stringify } from "./exact-json.js";
import "./reply-speaker.js";
import { asText, asTime, empty, made, onResize } from "./shown.js";

const NEAR = 60;

class ChatMessages extends HTMLElement {
  connectedCallback() {
    this.drawn = new Map();
    this.parts = [];
    this.said = made("div", { className: "said" });
    this.nothing = empty("Nothing has been said yet.");
    this.live = made("article", { className: "message assistant live", hidden: true, "aria-label": "Reply under way" },
      made("h4", {}, "assistant", made("span", { className: "badge lit", textContent: "now" })));
    this.frame = made("div", { className: "talk", tabIndex: 0, role: "region", "aria-label": "Conversation" },
      this.nothing, this.said, this.live);
    this.isAtEnd = true;
    this.frame.addEventListener("scroll", () => this.look());
    onResize([this.frame, this.said, this.live], () => this.stay());
    this.speaker = this.isPast ? null : made("reply-speaker");
    this.append(made("h3", { textContent: "Conversation" }), this.frame, ...[this.speaker].filter(Boolean));
  }

  /** See whether a person reads at the end: what grows below does not move them away from it, going up does. */
  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.frame;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR;
    this.isAtEnd = isNear || (this.isAtEnd && scrollTop >= this.top);
    this.top = scrollTop;
  }

  /** Keep the view at the end if it was there; do not scroll otherwise. */
  stay() {
    if (!this.isAtEnd) return;
    this.frame.scrollTop = this.frame.scrollHeight;
    this.top = this.frame.scrollTop;
  }

  /** Show a transcript, and what running calls report. */
  show({ messages, live }, progress = {}) {
    const kept = new Set(messages.map((message) => message.id));
    for (const [id, [, element]] of this.drawn) {
      if (!kept.has(id)) {
        element.remove();
        this.drawn.delete(id);
      }
    }
    let next = null;
    for (const message of messages.toReversed()) {
      const [known, element] = this.drawn.get(message.id) ?? [];
      const shown = known === message ? element : drawnOf(message);
      if (element && shown !== element) element.replaceWith(shown);
      if (!element || shown.nextSibling !== next) this.said.insertBefore(shown, next);
      this.drawn.set(message.id, [message, shown]);
      next = shown;
    }
    this.nothing.hidden = messages.length > 0;
    const parts = Object.keys(live).sort((a, b) => a - b).map((index) => live[index]);
    const reports = Object.entries(progress).map(([id, report]) => ({ type: `progress of ${id}`, text: asText(report) }));
    this.grow([...parts, ...reports]);
    this.stay();
    this.speaker?.hear(parts, messages);
  }

  /** Append to the streaming reply. */
  grow(parts) {
    this.live.hidden = !parts.length;
    parts.forEach((part, place) => {
      const known = this.parts[place];
      if (known?.type === part.type && known.node && part.text.startsWith(known.node.data)) {
        if (part.text.length > known.node.data.length) known.node.appendData(part.text.slice(known.node.data.length));
        return;
      }
      const element = drawnPart(part);
      const node = ["text", "reasoning"].includes(part.type) ? element.firstChild ?? element.appendChild(new Text()) : null;
      if (known) known.element.replaceWith(element);
      else this.live.append(element);
      this.parts[place] = { type: part.type, element, node };
    });
    for (const { element } of this.parts.splice(parts.length)) element.remove();
  }
}

function drawnOf(message) {
  const notes = ["partial", "synthetic", "steered"].filter((note) => message[note]);
  if (message.wakeup) notes.push(`scheduled by ${message.wakeup.by}`);
  const label = [message.role, ...notes].join(", ");
  return made("article", { className: `message ${message.role}`, data: { id: message.id }, "aria-label": label },
    made("h4", {}, message.role, ...notes.map((note) => made("span", { className: "badge", textContent: note })),
      made("time", { dateTime: message.created_at ?? "", textContent: asTime(message.created_at) })),
    ...message.parts.map(drawnPart));
}

function drawnPart(part) {
  switch (part.type) {
    case "text":
      return made("p", { className: "text", textContent: part.text ?? "" });
    case "reasoning":
      return made("p", { className: "text reasoning", textContent: part.text ?? "" });
    case "tool_call":
      return folded("call ", part.name ?? "", part.arguments ?? part.text);
    case "tool_result":
      return folded(part.is_error ? "error of " : "result of ", part.name, part.output, part.is_error ? "bad" : "");
    default:
      return folded("", part.type, part.text ?? part.title ?? part.url ?? part);
  }
}

/** Return a value, folded to its first line. */
function folded(before, name, value, className = "") {
  const whole = asText(value) ?? "";
  const line = typeof value === "string" ? value : stringify(value) ?? "";
  return made("details", { className },
    made("summary", {}, before, made("code", { textContent: name }), made("span", { className: "muted line", textContent: ` ${line.slice(0, 200)}` })),
    made("pre", { textContent: whole }));
}

customElements.define("chat-messages", ChatMessages);
