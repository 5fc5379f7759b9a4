// The machine's picture: the state of the chat is lit, the last transition walks, counts stand on arrows.

import { chatPath, text } from "./service.js";
import { made, tell } from "./shown.js";

const SVG = "http://www.w3.org/2000/svg";

class ChatDiagram extends HTMLElement {
  connectedCallback() {
    this.frame = made("div", { className: "scrolled picture", tabIndex: 0, role: "region", "aria-label": "Diagram" });
    this.append(made("h3", { textContent: "Diagram" }), this.frame);
    this.drawing = this.draw().catch((error) => tell(this, error));
  }

  async draw() {
    const drawn = new DOMParser().parseFromString(await text(chatPath(this.chatId, "diagram.svg?rows=false")), "image/svg+xml");
    this.picture = document.importNode(drawn.documentElement, true);
    this.frame.replaceChildren(this.picture);
    this.light(this.lit);
    if (this.records) this.count(this.records);
  }

  /** Light a state. */
  light(state) {
    this.lit = state;
    for (const node of this.picture?.querySelectorAll("[data-state]") ?? []) {
      node.classList.toggle("current", node.dataset.state === state);
    }
    this.picture?.setAttribute("aria-label", `The life of a chat. It stands in ${state}.`);
  }

  /** Let the arrow of a transition walk for a moment. */
  walk(source, target) {
    for (const edge of this.arrows(source, target)) {
      edge.classList.remove("walking");
      edge.getBoundingClientRect();
      edge.classList.add("walking");
    }
  }

  arrows(source, target, trigger) {
    return [...this.picture?.querySelectorAll("[data-target]") ?? []].filter((edge) =>
      edge.dataset.target === target && edge.dataset.source.split(" ").includes(source)
      && (!trigger || edge.dataset.triggers.split(" ").includes(trigger)));
  }

  /** Write on each arrow how often the chat went along it. */
  count(records) {
    this.records = records;
    const counts = new Map();
    for (const record of records) {
      const [edge] = this.arrows(record.source ?? "new", record.target, record.trigger);
      if (edge) counts.set(edge, (counts.get(edge) ?? 0) + 1);
    }
    for (const [edge, count] of counts) {
      const path = edge.querySelector("path");
      const at = path.getPointAtLength(path.getTotalLength() / 2);
      const label = edge.querySelector(".count") ?? edge.appendChild(document.createElementNS(SVG, "text"));
      label.setAttribute("class", "count");
      label.setAttribute("x", at.x);
      label.setAttribute("y", at.y + 5);
      label.textContent = `${count}×`;
    }
  }
}

customElements.define("chat-diagram", ChatDiagram);
