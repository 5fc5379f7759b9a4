// What a screen reader says of a reply: each sentence once, when it is whole, and the rest when the reply ends.

import { made } from "./shown.js";

const KEPT = 50;
const SENTENCE = /[^]*?(?:[.!?…:]["')\]]*\s|\n)/y;

class ReplySpeaker extends HTMLElement {
  connectedCallback() {
    this.className = "unseen";
    this.lines = made("div", { role: "log", "aria-live": "polite", "aria-label": "Reply, as it comes" });
    this.append(this.lines);
  }

  /** Hear of the parts of the reply under way, and of all messages. */
  hear(parts, messages) {
    const text = parts.filter((part) => part.type === "text").map((part) => part.text).join("\n");
    if (text) {
      if (!text.startsWith(this.text ?? "")) this.place = 0; // another attempt
      this.text = text;
      this.saySentences();
    } else if (this.text) {
      const last = messages.findLast((message) => message.role === "assistant");
      const whole = last?.parts.filter((part) => part.type === "text").map((part) => part.text).join("\n") ?? "";
      if (whole.startsWith(this.text.slice(0, this.place))) this.text = whole;
      this.saySentences();
      this.say(this.text.slice(this.place));
      this.text = this.place = undefined;
    }
  }

  saySentences() {
    SENTENCE.lastIndex = this.place ?? 0;
    for (let found = SENTENCE.exec(this.text); found; found = SENTENCE.exec(this.text)) {
      this.say(found[0]);
      this.place = SENTENCE.lastIndex;
    }
  }

  say(words) {
    if (!words.trim()) return;
    this.lines.append(made("p", { textContent: words }));
    if (this.lines.childElementCount > KEPT) this.lines.firstElementChild.remove();
  }
}

customElements.define("reply-speaker", ReplySpeaker);
