// The chats: filters, search, and a list that draws only the rows in sight.

import { changes, get } from "./service.js";
import { age, button, empty, isResting, made, onResize, stateOf, tell } from "./shown.js";
import { KINDS } from "./states.js";

const PAGE = 1000;
const GATHER = 200;
const AROUND = 10;
const STUCK_AFTER = 60_000;
const STATES = Object.keys(KINDS).sort();
const AGES = [
  ["", "any"], [3600, "changed within 1 h"], [86400, "changed within 1 d"], [604800, "changed within 7 d"],
  [-3600, "unchanged for 1 h"], [-86400, "unchanged for 1 d"], [-604800, "unchanged for 7 d"],
];

/** Whether a chat should move, and has not for a while. */
export function isStuck(chat, now = Date.now()) {
  const wants = !isResting(chat.state) || (chat.state === "interrupted" && !chat.settled) || chat.unreadable;
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

/** Whether a chat changed within so many seconds; if they are negative, whether it did not. */
function isOfAge(chat, seconds, now) {
  const isYoung = now - new Date(chat.updated_at) <= Math.abs(seconds) * 1000;
  return seconds < 0 ? !isYoung : isYoung;
}

class ChatList extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.chats = [];
    this.drawn = new Map();
    this.agents = made("datalist", { id: "agents" });
    this.filters = made("form", { role: "search", className: "filters", on: { submit: (e) => e.preventDefault() } },
      field("Search", made("input", { type: "search", name: "search", placeholder: "title, id or owner" }), "wide"),
      field("State", choice("state", [["", "any"], ...STATES.map((one) => [one, one])])),
      field("Agent", made("input", { name: "agent", list: "agents", placeholder: "any" })),
      field("Owner", made("input", { name: "owner", placeholder: "any" })),
      field("Age", choice("age", AGES)),
      made("label", { className: "check" }, made("input", { type: "checkbox", name: "stuck" }), "Stuck"), this.agents);
    this.filters.addEventListener("input", () => this.filter());
    this.count = made("p", { role: "status", className: "muted" });
    this.rows = made("ul", { className: "rows" });
    this.frame = made("div", { className: "frame card", tabIndex: 0, role: "region", "aria-label": "Chats" }, this.rows);
    this.frame.addEventListener("scroll", () => this.draw());
    this.nothing = made("div", { className: "nothing" });
    onResize([this.frame], () => this.draw());
    this.append(
      made("div", { className: "title" }, made("h2", { textContent: "Chats" }), this.count, this.may?.has("watch_chats") ? null : button("Refresh", () => this.load(), { className: "quiet" })),
      this.filters, this.nothing, this.frame);
    if (this.may?.has("watch_chats")) this.watch();
    else this.load();
  }

  disconnectedCallback() {
    this.leaving.abort();
    clearTimeout(this.due);
  }

  /** Keep the list as the chats are. */
  async watch() {
    const { signal } = this.leaving;
    const known = new Map();
    const soon = () => (this.due ??= setTimeout(() => this.take(known), GATHER));
    try {
      for await (const { chat_id: id, chat } of changes({ signal, onConnect: soon })) {
        if (!id) known.clear(); // the database went back: all chats follow
        else if (chat) known.set(id, chat);
        else known.delete(id);
        soon();
      }
    } catch (error) {
      if (!signal.aborted) tell(this, error);
    }
  }

  take(known) {
    this.due = undefined;
    this.chats = [...known.values()].sort((one, other) => other.created_at.localeCompare(one.created_at));
    this.nameAgents();
    const focused = document.activeElement?.closest("chat-list a")?.hash;
    this.filter();
    if (focused) this.rows.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  nameAgents() {
    this.agents.replaceChildren(...[...new Set(this.chats.map((chat) => chat.agent))].map((value) => made("option", { value })));
  }

  async load() {
    const found = [];
    try {
      for await (const page of pages(this.leaving.signal)) {
        found.push(...page);
        this.chats = found;
        this.filter();
      }
      this.nameAgents();
    } catch (error) {
      if (!this.leaving.signal.aborted) tell(this, error);
    }
  }

  filter() {
    const { search, state, agent, owner, age: seconds, stuck } = this.filters.elements;
    const words = search.value.trim().toLowerCase();
    const now = Date.now();
    this.shown = this.chats.filter((chat) =>
      (!state.value || chat.state === state.value)
      && (!agent.value || chat.agent.includes(agent.value))
      && (!owner.value || (chat.owner ?? "").includes(owner.value))
      && (!seconds.value || isOfAge(chat, Number(seconds.value), now))
      && (!stuck.checked || isStuck(chat, now))
      && (!words || `${chat.id} ${chat.title ?? ""} ${chat.owner ?? ""}`.toLowerCase().includes(words)));
    this.count.textContent = `${this.shown.length} of ${this.chats.length} chats`;
    this.frame.hidden = !this.shown.length;
    this.nothing.replaceChildren(...this.shown.length ? [] : [empty(this.chats.length
      ? "No chat fits these filters. Take one back to see more."
      : "There is no chat yet. It will stand here once one is created.")]);
    for (const item of this.drawn.values()) item.remove();
    this.drawn.clear();
    this.draw();
  }

  /** Draw the rows in sight, and a few around them. A row that stays is not made again: the focus may be in it. */
  draw() {
    const { frame, rows, drawn, shown = [] } = this;
    const height = parseFloat(getComputedStyle(rows).getPropertyValue("--row")) || 60;
    rows.style.height = `${shown.length * height}px`;
    const first = Math.max(0, Math.floor(frame.scrollTop / height) - AROUND);
    const last = Math.min(shown.length, Math.ceil((frame.scrollTop + frame.clientHeight) / height) + AROUND);
    for (const [place, item] of drawn) {
      if ((place < first || place >= last) && !item.contains(document.activeElement)) {
        item.remove();
        drawn.delete(place);
      }
    }
    for (let place = first; place < last; place += 1) {
      if (drawn.has(place)) continue;
      const item = this.row(place);
      item.style.top = `${place * height}px`;
      rows.insertBefore(item, drawn.get(place + 1) ?? null);
      drawn.set(place, item);
    }
  }

  row(place) {
    const chat = this.shown[place];
    const stuck = isStuck(chat) ? made("span", { className: "badge bad", textContent: "stuck" }) : null;
    const unread = chat.unread ? made("span", { className: "badge", textContent: "unread" }) : null;
    const isAsking = ["client", "both"].includes(chat.awaits);
    const open = isAsking ? made("span", { className: "badge", textContent: "waits for you" }) : null;
    return made("li", { "aria-setsize": this.shown.length, "aria-posinset": place + 1 },
      made("a", { href: `#/chats/${encodeURIComponent(chat.id)}` },
        stateOf(chat.state),
        made("span", { className: "name" }, made("strong", { textContent: chat.title ?? chat.id }), stuck, open, unread),
        made("span", { className: "muted", textContent: `${chat.agent} · ${chat.owner ?? "no owner"}` }),
        made("time", { className: "muted", dateTime: chat.updated_at, textContent: age(chat.updated_at) })));
  }
}

function field(words, input, className = "") {
  input.id = `filter-${input.name}`;
  return made("div", { className }, made("label", { for: input.id, textContent: words }), input);
}

function choice(name, options) {
  return made("select", { name }, ...options.map(([value, words]) => made("option", { value, textContent: words })));
}

customElements.define("chat-list", ChatList);
