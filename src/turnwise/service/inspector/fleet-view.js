// The fleet: workers, states of chats, throughput, waiting times, failures, and chats that no worker can run.

import { isStuck, pages } from "./chat-list.js";
import { TurnCount, counted, quantile, spellsOf } from "./fleet-figures.js";
import { chatPath, get } from "./service.js";
import { age, duration, empty, isResting, made, stateData, stateOf, table, tell } from "./shown.js";
import { KINDS } from "./states.js";

const EVERY = 5000;
const SHARE = 10; // of the time, at most one part of so many is spent looking
const ASKED = 50;
const SAMPLE = 20;
const LONGEST_LOG = 2000;
const WINDOW = 60_000;

class FleetView extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.looks = [];
    this.turns = new TurnCount();
    this.logs = new Map();
    this.at = made("p", { role: "status", className: "muted", textContent: "looking" });
    this.tiles = made("div", { className: "tiles" });
    this.states = made("section", { className: "card", "aria-label": "Chats by state" });
    this.tables = made("div", { className: "fleet" });
    this.append(made("div", { className: "title" }, made("h2", { textContent: "Fleet" }), this.at), this.tiles, this.states, this.tables);
    this.look();
  }

  disconnectedCallback() {
    this.leaving.abort();
    clearTimeout(this.due);
  }

  async look() {
    const { signal } = this.leaving;
    const begun = performance.now();
    try {
      const agents = await get("agents", { signal });
      const chats = [];
      for await (const page of pages(signal)) chats.push(...page);
      const [workers, spells] = await Promise.all([this.workers(chats, signal), this.sampled(chats, signal)]);
      this.draw(chats, agents, workers, spells);
    } catch (error) {
      if (!signal.aborted) tell(this, error);
    }
    const rest = Math.max(EVERY, SHARE * (performance.now() - begun));
    if (!signal.aborted) this.due = setTimeout(() => this.look(), rest);
  }

  /** Count the chats that each worker holds. */
  async workers(chats, signal) {
    const leased = chats.filter((chat) => KINDS[chat.state] === "leased").slice(0, ASKED);
    const told = await Promise.all(leased.map((chat) => get(chatPath(chat.id, "explain"), { signal }).catch(unless(signal))));
    return counted(told.map((one) => one?.lease_worker).filter(Boolean));
  }

  /** Return how long the chats that changed last were at work. A log is asked for again when its chat has changed. */
  async sampled(chats, signal) {
    const latest = chats.filter((chat) => chat.turn && chat.version < LONGEST_LOG)
      .sort((a, b) => Date.parse(b.updated_at) - Date.parse(a.updated_at)).slice(0, SAMPLE);
    const logs = await Promise.all(latest.map(async ({ id, version }) => {
      const known = this.logs.get(id);
      if (known?.version === version) return [id, known];
      const records = await get(chatPath(id, "audit"), { signal }).catch(unless(signal));
      return [id, { version, spells: spellsOf(records ?? [], isResting) }];
    }));
    this.logs = new Map(logs);
    return [...this.logs.values()].flatMap((one) => one.spells);
  }

  /** Return the turns per minute, from the last minute. */
  throughput(chats) {
    const now = Date.now();
    this.looks.push({ now, turns: this.turns.look(chats) });
    while (this.looks.length > 2 && now - this.looks[0].now > WINDOW) this.looks.shift();
    const [first, last] = [this.looks[0], this.looks.at(-1)];
    if (first === last) return null;
    return ((last.turns - first.turns) * 60_000) / (last.now - first.now);
  }

  draw(chats, agents, workers, spells) {
    const rate = this.throughput(chats);
    const pending = chats.filter((chat) => chat.state === "pending");
    const oldest = pending.map((chat) => chat.updated_at).sort()[0];
    const lost = pending.filter((chat) => !Object.hasOwn(agents, chat.agent));
    const stuck = chats.filter((chat) => isStuck(chat));
    const [took, waited] = [spells.map((one) => one.took), spells.map((one) => one.waited)];
    const time = (values, share) => (values.length ? duration(quantile(values, share)) : "–");
    const link = (chat) => made("a", { href: `#/chats/${encodeURIComponent(chat.id)}`, textContent: chat.title ?? chat.id });
    this.at.textContent = `as of ${new Date().toLocaleTimeString()}`;
    this.tiles.replaceChildren(
      tile("Chats", String(chats.length), `${chats.filter((chat) => KINDS[chat.state] === "leased").length} at work`),
      tile("Throughput", rate === null ? "…" : `${rate.toFixed(1)}/min`, rate === null ? "counting begun turns" : "turns begun, last minute"),
      tile("Latency", time(took, 0.5), `half of the turns; 95 %: ${time(took, 0.95)}`),
      tile("Wait for a worker", time(waited, 0.5), oldest ? `longest now: ${age(oldest)}` : "no chat waits now"),
      tile("Stuck", String(stuck.length), stuck.length ? "should move, and do not" : "everything moves", stuck.length > 0));
    this.drawStates(chats);
    const rows = (pairs) => pairs.map(([name, count]) => [name, String(count)]);
    this.tables.replaceChildren(
      table("Workers, by chats they hold", ["worker", "chats"], rows(workers), "No worker holds a chat now."),
      table("Errors by kind", ["kind", "chats"], rows(counted(chats.map((chat) => chat.last_error?.kind).filter(Boolean))), "No chat has failed."),
      table("Stuck chats", ["chat", "state", "for"],
        stuck.slice(0, ASKED).map((chat) => [link(chat), stateOf(chat.state), age(chat.updated_at)]), "No chat is stuck."),
      table("Chats that no agent of this service can run", ["chat", "agent", "for"],
        lost.slice(0, ASKED).map((chat) => [link(chat), chat.agent, age(chat.updated_at)]), "Every waiting chat has its agent here."));
  }

  drawStates(chats) {
    const counts = counted(chats.map((chat) => chat.state));
    const bar = made("div", { className: "shares", "aria-hidden": "true" }, ...counts.map(([state, count]) => {
      const share = made("span", { data: stateData(state), title: `${state}: ${count}` });
      share.style.flexGrow = count;
      return share;
    }));
    const names = counts.map(([state, count]) => made("li", {}, stateOf(state), String(count)));
    this.states.replaceChildren(made("h3", { textContent: "Chats by state" }), bar,
      names.length ? made("ul", { className: "names" }, ...names) : empty("There is no chat yet."));
  }
}

function tile(name, figure, words, isBad = false) {
  return made("section", { className: `tile card${isBad ? " bad" : ""}`, "aria-label": name },
    made("h3", { textContent: name }), made("p", { className: "figure", textContent: figure }), made("p", { className: "muted", textContent: words }));
}

/** Return what handles an error of one of many questions: it counts only if the page was left. */
const unless = (signal) => (error) => (signal.aborted ? Promise.reject(error) : null);

customElements.define("fleet-view", FleetView);
