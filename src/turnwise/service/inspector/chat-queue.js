// The queued messages of a busy chat, which a person can promote, edit or delete.

import { stringify } from "./exact-json.js";
import { chatPath, post, remove, patch } from "./service.js";
import { button, made, tell } from "./shown.js";

class ChatQueue extends HTMLElement {
  /** Show the queue; nothing is drawn again while it stays as it is. */
  show(queue) {
    const key = stringify(queue);
    if (key === this.key) return;
    this.key = key;
    this.replaceChildren(...queue.length
      ? [made("h3", { textContent: "Queue" }), made("ol", { className: "queue", "aria-label": "Queue" }, ...queue.map((one) => this.item(one)))] : []);
  }

  item(queued) {
    const words = queued.parts.map((part) => part.text ?? part.type).join("");
    const item = made("li", {}, made("span", { className: "text", textContent: words }),
      queued.steers ? made("span", { className: "badge", textContent: "steers" }) : null);
    const path = chatPath(this.chatId, `queue/${encodeURIComponent(queued.id)}`);
    const isText = queued.parts.every((part) => part.type === "text");
    item.append(made("div", { className: "buttons" },
      this.may.has("promote_queued") ? button("Promote", () => post(`${path}/promote`), { title: "Stop the turn, and answer this at once" }) : null,
      isText && this.may.has("edit_queued") ? button("Edit", () => this.edit(item, path, words)) : null,
      this.may.has("delete_queued") ? button("Delete", () => remove(path)) : null));
    return item;
  }

  /** Edit a queued message in place. */
  edit(item, path, words) {
    const input = made("textarea", { rows: 2, value: words, "aria-label": "Queued message" });
    const before = [...item.childNodes];
    const form = made("form", { className: "editing" }, input, made("div", { className: "buttons" },
      made("button", { className: "main", textContent: "Save" }), button("Cancel", () => item.replaceChildren(...before))));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      patch(path, { content: input.value }).catch((error) => tell(this, error));
    });
    item.replaceChildren(form);
    input.focus();
  }
}

customElements.define("chat-queue", ChatQueue);
