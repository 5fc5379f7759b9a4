// What a person says to the chat: Enter sends, Shift+Enter begins a line.

import { chatPath, post } from "./service.js";
import { made, tell } from "./shown.js";

class MessageSender extends HTMLElement {
  connectedCallback() {
    const input = made("textarea", { id: "said", rows: 2, required: true, placeholder: "Say something", "aria-describedby": "said-hint" });
    const form = made("form", { className: "sender" },
      made("label", { for: "said", className: "unseen", textContent: "Message" }), input,
      made("button", { className: "main", textContent: "Send" }),
      made("p", { id: "said-hint", className: "hint", textContent: "Enter sends, Shift+Enter begins a line. A busy chat queues it." }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(input).catch((error) => tell(this, error));
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.append(form);
  }

  async send(input) {
    await post(chatPath(this.chatId, "messages"), { content: input.value });
    input.value = "";
  }
}

customElements.define("message-sender", MessageSender);
