// The diagram of the machine: it highlights the state of the chat, animates the last transitions and counts them on arrows.

import { chatPath, text } from "./service.js";
import { made, stateData, tell } from "./shown.js";

const SVG = "http://www.w3.org/2000/svg";
const WALKED = 3;
const HEAD = 12;
const HEIGHT = 26;
let number = 0;

class ChatDiagram extends HTMLElement {
  connectedCallback() {
    this.all = made("input", { type: "checkbox", on: { change: () => this.begin() } });
    this.frame = made("div", { className: "picture", tabIndex: 0, role: "region", "aria-label": "Diagram" });
    this.others = made("p", { className: "muted others" });
    this.append(
      made("div", { className: "head" }, made("h3", { textContent: "Diagram" }), made("label", { className: "check" }, this.all, "Every transition")),
      this.frame, this.others);
    this.begin();
  }

  begin() {
    this.drawing = this.draw().catch((error) => tell(this, error));
  }

  async draw() {
    const isWhole = this.all.checked;
    const found = await text(chatPath(this.chatId, `diagram.svg?rows=false&simple=${!isWhole}`));
    const drawn = found.replaceAll("turnwise-", `turnwise-${number += 1}-`); // its arrowheads, if there are two on a page
    this.picture = document.importNode(new DOMParser().parseFromString(drawn, "image/svg+xml").documentElement, true);
    this.picture.classList.toggle("whole", isWhole);
    if (!isWhole) this.picture.setAttribute("viewBox", this.picture.dataset.graph); // without its heading
    for (const node of this.picture.querySelectorAll("[data-state]")) Object.assign(node.dataset, stateData(node.dataset.state));
    this.frame.replaceChildren(this.picture);
    this.light(this.lit);
    if (this.records) this.count(this.records);
  }

  /** Light a state. */
  light(state) {
    this.lit = state;
    for (const node of this.picture?.querySelectorAll("[data-state]") ?? []) {
      const isLit = node.dataset.state === state;
      if (isLit && !node.classList.contains("current")) this.centre(node);
      node.classList.toggle("current", isLit);
    }
    this.picture?.setAttribute("aria-label", `The life of a chat. It stands in ${state}.`);
  }

  /** Bring a node into sight where the picture is wider than its frame. */
  centre(node) {
    const { frame } = this;
    const [outer, inner] = [frame.getBoundingClientRect(), node.getBoundingClientRect()];
    frame.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
    frame.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
  }

  /** Let the arrow of a transition walk. */
  walk(source, target) {
    for (const edge of this.arrows(source, target)) {
      edge.classList.remove("walking");
      edge.getBoundingClientRect();
      edge.classList.add("walking");
    }
  }

  /** Let the arrows of the last transitions walk, and no others; one that does already goes on. */
  walkLast(records) {
    const last = new Set(records.filter(({ source, target }) => source !== target).slice(-WALKED)
      .flatMap(({ source, target, trigger }) => this.arrows(source ?? "new", target, trigger)));
    for (const edge of this.picture.querySelectorAll("[data-target]")) edge.classList.toggle("walking", last.has(edge));
  }

  arrows(source, target, trigger) {
    return [...this.picture?.querySelectorAll("[data-target]") ?? []].filter((edge) =>
      edge.dataset.target === target && edge.dataset.source.split(" ").includes(source)
      && (!trigger || !edge.dataset.triggers || edge.dataset.triggers.split(" ").includes(trigger)));
  }

  /** Write the count of each transition on its arrow, and list transitions without an arrow below, once visible. */
  count(records) {
    this.records = records;
    if (!this.picture || !this.checkVisibility()) return; // what is not drawn has no lengths
    for (const edge of this.picture.querySelectorAll(".gone")) {
      edge.classList.remove("gone");
      edge.querySelector(".count")?.remove();
    }
    const counts = new Map();
    const others = [];
    for (const [key, count] of counted(records)) {
      const [source, target, trigger] = key.split(" ");
      const [edge] = this.arrows(source, target, trigger);
      if (edge) counts.set(edge, (counts.get(edge) ?? 0) + count);
      else if (source !== target) others.push(`${trigger} from ${source} to ${target} ${count}×`);
    }
    for (const [edge, count] of counts) mark(edge, count);
    this.others.textContent = others.length ? `Not drawn here: ${others.join(", ")}` : "";
    this.walkLast(records);
  }
}

/** Count transitions by source, target and trigger. */
function counted(records) {
  const counts = new Map();
  for (const { source, target, trigger } of records) {
    const key = `${source ?? "new"} ${target} ${trigger}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

/** Put a badge with a count on an arrow, near its head, away from its label. */
function mark(edge, count) {
  edge.classList.add("gone");
  if (edge.dataset.source === "new") return; // once, for every chat
  const badge = edge.appendChild(document.createElementNS(SVG, "g"));
  badge.setAttribute("class", "count");
  badge.append(document.createElementNS(SVG, "rect"), document.createElementNS(SVG, "text"));
  const words = `${count}×`;
  const width = 12 + 11 * words.length;
  const path = edge.querySelector("path");
  const [head, before] = [1, 2].map((back) => path.getPointAtLength(path.getTotalLength() - back));
  const isLevel = Math.abs(head.x - before.x) > Math.abs(head.y - before.y);
  const at = path.getPointAtLength(path.getTotalLength() - HEAD - (isLevel ? width : HEIGHT) / 2);
  const [box, label] = badge.children;
  for (const [name, value] of Object.entries({ x: at.x - width / 2, y: at.y - HEIGHT / 2, width, height: HEIGHT, rx: HEIGHT / 2 })) box.setAttribute(name, value);
  label.setAttribute("x", at.x);
  label.setAttribute("y", at.y + 6);
  label.textContent = words;
}

customElements.define("chat-diagram", ChatDiagram);
