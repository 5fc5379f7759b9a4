// What a person says to the chat: Enter sends, Shift+Enter begins a line.

import { chatPath, post } from "./service.js";
import { made, tell } from "./shown.js";

class MessageSender extends HTMLElement {
  connectedCallback() {
    const input = made("textarea", { id: "said", rows: 2, required: true, placeholder: "Say something", "aria-describedby": "said-hint" });
    this.steer = made("input", { type: "checkbox", title: "Enter the next request of the turn under way" });
    const form = made("form", { className: "sender" },
      made("label", { for: "said", className: "unseen", textContent: "Message" }), input,
      made("button", { className: "main", textContent: "Send" }),
      made("p", { id: "said-hint", className: "hint", textContent: "Enter sends, Shift+Enter begins a line. A busy chat queues it, or lets it steer its turn." }),
      made("label", { className: "hint" }, this.steer, " Steer"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(input).catch((error) => tell(this, error));
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!event.repeat) form.requestSubmit(); // it is held
    });
    this.append(form);
  }

  /** Send the text. If the outcome is unknown, put the text back; sending it again uses the same key. */
  async send(input) {
    const content = input.value;
    const key = this.failed?.content === content ? this.failed.key : newKey();
    input.value = "";
    this.failed = null;
    try {
      await post(chatPath(this.chatId, "messages"), { content, when_busy: this.steer.checked ? "steer" : "queue" }, { "Idempotency-Key": key });
    } catch (error) {
      this.failed = { content, key };
      input.value = [content, input.value].filter(Boolean).join("\n");
      throw error;
    }
  }
}

/** Return a key that no other message has; `randomUUID` is not there where the page came without TLS. */
const newKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

customElements.define("message-sender", MessageSender);
