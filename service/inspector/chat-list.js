// The chats: filters, search, and a list that draws only the rows in sight.

import { get } from "./service.js";
import { age, button, made, tell } from "./shown.js";

const ROW = 56;
const PAGE = 1000;
const STUCK_AFTER = 60_000;
const WORKING = new Set(["pending", "streaming", "executing_tools", "compacting"]);
const STATES = [...WORKING, "waiting", "requires_action", "interrupted", "error"].sort();
const AGES = { "": "any age", 3600: "changed within 1 h", 86400: "changed within 1 d", 604800: "changed within 7 d" };

/** Whether a chat should move, and has not for a while. */
export function isStuck(chat, now = Date.now()) {
  const wants = WORKING.has(chat.state) || (chat.state === "interrupted" && !chat.settled) || chat.unreadable;
  return Boolean(wants) && now - new Date(chat.updated_at) > STUCK_AFTER;
}

/** Yield all chats, a page at a time. */
export async function* pages(signal) {
  let after = null;
  do {
    const page = await get(`chats?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`, { signal });
    yield page.items;
    after = page.next;
  } while (after);
}

class ChatList extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.chats = [];
    this.filters = made("form", { role: "search", className: "filters", on: { submit: (e) => e.preventDefault() } },
      this.field("search", "Search", made("input", { type: "search", name: "search" })),
      this.field("state", "State", choice("state", Object.fromEntries([["", "any state"], ...STATES.map((s) => [s, s])]))),
      this.field("agent", "Agent", made("input", { name: "agent" })),
      this.field("owner", "Owner", made("input", { name: "owner" })),
      this.field("age", "Age", choice("age", AGES)),
      this.field("stuck", "Stuck", made("input", { type: "checkbox", name: "stuck" })),
      button("Refresh", () => this.load()));
    this.filters.addEventListener("input", () => this.filter());
    this.count = made("p", { role: "status" });
    this.rows = made("ul", { className: "rows" });
    this.frame = made("div", { className: "frame", tabIndex: 0, role: "region", "aria-label": "Chats" }, this.rows);
    this.frame.addEventListener("scroll", () => this.draw());
    addEventListener("resize", () => this.draw(), { signal: this.leaving.signal });
    this.append(made("h2", { textContent: "Chats" }), this.filters, this.count, this.frame);
    this.load();
  }

  disconnectedCallback() {
    this.leaving.abort();
  }

  field(name, words, input) {
    input.id = `filter-${name}`;
    return made("div", {}, made("label", { for: input.id, textContent: words }), input);
  }

  async load() {
    const found = [];
    try {
      for await (const page of pages(this.leaving.signal)) {
        found.push(...page);
        this.chats = found;
        this.filter();
      }
    } catch (error) {
      if (!this.leaving.signal.aborted) tell(this, error);
    }
  }

  filter() {
    const { search, state, agent, owner, age: within, stuck } = this.filters.elements;
    const words = search.value.trim().toLowerCase();
    const now = Date.now();
    this.shown = this.chats.filter((chat) =>
      (!state.value || chat.state === state.value)
      && (!agent.value || chat.agent.includes(agent.value))
      && (!owner.value || (chat.owner ?? "").includes(owner.value))
      && (!within.value || now - new Date(chat.updated_at) <= within.value * 1000)
      && (!stuck.checked || isStuck(chat, now))
      && (!words || `${chat.id} ${chat.title ?? ""} ${chat.owner ?? ""}`.toLowerCase().includes(words)));
    this.count.textContent = `${this.shown.length} of ${this.chats.length} chats`;
    this.rows.style.height = `${this.shown.length * ROW}px`;
    this.draw();
  }

  /** Draw the rows in sight, and a few around them. */
  draw() {
    const first = Math.max(0, Math.floor(this.frame.scrollTop / ROW) - 10);
    const last = Math.min(this.shown?.length ?? 0, Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / ROW) + 10);
    const drawn = [];
    for (let place = first; place < last; place += 1) drawn.push(this.row(place));
    this.rows.replaceChildren(...drawn);
  }

  row(place) {
    const chat = this.shown[place];
    const item = made("li", { "aria-setsize": this.shown.length, "aria-posinset": place + 1 },
      made("a", { href: `#/chats/${encodeURIComponent(chat.id)}` },
        made("span", { className: "state", data: { state: chat.state }, textContent: chat.state }),
        made("strong", { textContent: chat.title ?? chat.id }),
        made("span", { textContent: `${chat.agent} · ${chat.owner ?? "nobody's"} · ${age(chat.updated_at)}${isStuck(chat) ? " · stuck" : ""}` })));
    item.style.top = `${place * ROW}px`;
    return item;
  }
}

function choice(name, options) {
  return made("select", { name }, ...Object.entries(options).map(([value, words]) => made("option", { value, textContent: words })));
}

customElements.define("chat-list", ChatList);
