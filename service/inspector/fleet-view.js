// The fleet: who works, where chats stand, what goes through, what waits, what fails, and what nobody can run.

import { isStuck, pages } from "./chat-list.js";
import { chatPath, get } from "./service.js";
import { age, made, table, tell } from "./shown.js";

const EVERY = 5000;
const ASKED = 50;
const LEASED = new Set(["streaming", "executing_tools", "compacting"]);

/** Count things by what they are called. */
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([name, count]) => [name, String(count)]);
}

class FleetView extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.shown = made("div", { className: "fleet" });
    this.append(made("h2", { textContent: "Fleet" }), this.shown);
    this.look();
  }

  disconnectedCallback() {
    this.leaving.abort();
    clearTimeout(this.due);
  }

  async look() {
    const { signal } = this.leaving;
    try {
      const agents = await get("agents", { signal });
      const chats = [];
      for await (const page of pages(signal)) chats.push(...page);
      const workers = await this.workers(chats.filter((chat) => LEASED.has(chat.state)).slice(0, ASKED), signal);
      this.draw(chats, agents, workers);
    } catch (error) {
      if (!signal.aborted) tell(this, error);
    }
    if (!signal.aborted) this.due = setTimeout(() => this.look(), EVERY);
  }

  async workers(leased, signal) {
    const told = await Promise.all(leased.map((chat) =>
      get(chatPath(chat.id, "explain"), { signal }).catch((error) => (signal.aborted ? Promise.reject(error) : null))));
    return counted(told.map((one) => one?.lease_worker).filter(Boolean));
  }

  draw(chats, agents, workers) {
    const now = Date.now();
    const turns = chats.reduce((sum, chat) => sum + chat.turn, 0);
    const since = this.before ? (now - this.before.now) / 1000 : 0;
    const rate = since ? `${((turns - this.before.turns) / since).toFixed(2)} turns begun per s` : "is being measured";
    this.before = { now, turns };
    const pending = chats.filter((chat) => chat.state === "pending");
    const oldest = pending.map((chat) => chat.updated_at).sort()[0];
    const orphans = pending.filter((chat) => !(chat.agent in agents));
    const link = (chat) => made("a", { href: `#/chats/${encodeURIComponent(chat.id)}`, textContent: chat.title ?? chat.id });
    this.shown.replaceChildren(
      table("Now", ["what", "is"], [
        ["throughput", rate], ["longest wait for a worker", oldest ? age(oldest) : "none waits"],
        ["stuck", String(chats.filter((chat) => isStuck(chat)).length)], ["chats", String(chats.length)]]),
      table("Chats by state", ["state", "chats"], counted(chats.map((chat) => chat.state))),
      table("Workers, by chats they hold", ["worker", "chats"], workers),
      table("Errors by kind", ["kind", "chats"], counted(chats.map((chat) => chat.last_error?.kind).filter(Boolean))),
      table("Chats that no agent of this service can run", ["chat", "agent", "for"],
        orphans.slice(0, ASKED).map((chat) => [link(chat), chat.agent, age(chat.updated_at)])));
  }
}

customElements.define("fleet-view", FleetView);
