// One chat: follows the chat's events and passes them to its parts.

import "./chat-audit.js";
import "./chat-diagram.js";
import "./chat-facts.js";
import "./chat-messages.js";
import "./chat-queue.js";
import "./chat-timeline.js";
import "./family-tree.js";
import "./message-sender.js";
import "./open-calls.js";
import "./time-travel.js";
import { fold } from "../client/index.js";
import { chatPath, events, get, post } from "./service.js";
import { button, isResting, made, showState, stateOf, tell, tellAnswer } from "./shown.js";

const PAUSE = 1000;
const SOON = 100;
const AT_WORK = 3000;
const ASKED_ANEW = new Set(["status", "queue", "turn_finished", "error", "action_required", "compaction", "retry", "tool_result"]);
const COMMANDS = [
  ["Stop", "interrupt", "interrupt"], ["Resume", "resume", "resume"],
  ["Compact", "request_compaction", "compact"], ["Clear context", "clear_context", "clear"],
];
/** The operations without which a section has nothing to show. */
const NEEDED = [["timeline", "read_audit"], ["past", "read_audit"], ["audit", "read_audit"], ["family", "list_subagents"]];
/** Requests for data that events do not contain: the operation, its path, and the value if this person may not read it. */
const ASKED = [["get_chat", "", { usage: {} }], ["explain", "/explain", { legal_triggers: [], broken_invariants: [], reason: "" }], ["read_usage", "/usage", []], ["read_audit", "/audit", []]];

class ChatView extends HTMLElement {
  connectedCallback() {
    const { chatId, may, isOwner } = this;
    this.leaving = new AbortController();
    this.heading = made("h2", { textContent: chatId });
    this.state = stateOf("", { role: "status" });
    this.reason = made("p", { className: "reason" });
    this.connection = made("p", { className: "connection", role: "status" });
    this.buttons = made("div", { className: "buttons", role: "group", "aria-label": "Commands" });
    this.messages = made("chat-messages");
    this.calls = made("open-calls", { chatId, may, isOwner });
    this.queue = made("chat-queue", { chatId, may });
    this.diagram = made("chat-diagram", { chatId, className: "card" });
    this.facts = made("chat-facts");
    this.sections = {
      now: ["Now", made("div", { className: "columns" },
        made("div", { className: "card" }, this.messages, this.calls, this.queue, may.has("send_message") ? made("message-sender", { chatId }) : null),
        made("div", {}, this.diagram, this.facts)), () => this.drawNow()],
      timeline: ["Timeline", made("chat-timeline", { chatId, className: "card" }), (part) => part.show(this.records)],
      past: ["Time travel", made("time-travel", { chatId, may }), (part) => part.show(this.records)],
      audit: ["Audit", made("chat-audit", { chatId, may, className: "card" }), (part) => part.show(this.records)],
      family: ["Family", made("family-tree", { className: "card" }), (part) => part.show(this.chat)],
    };
    for (const [name, operation] of NEEDED) if (!may.has(operation)) delete this.sections[name];
    this.tabs = made("nav", { className: "tabs", "aria-label": "Sections" }, ...Object.entries(this.sections).map(([name, [words]]) =>
      made("a", { href: `#/chats/${encodeURIComponent(chatId)}${name === "now" ? "" : `/${name}`}`, textContent: words, data: { section: name } })));
    this.shown = made("div", { className: "section" });
    this.append(made("div", { className: "title" }, this.heading, this.state, this.buttons), this.reason, this.connection, this.tabs, this.shown);
    this.open(this.section);
    this.follow();
  }

  disconnectedCallback() {
    this.leaving.abort();
    clearTimeout(this.due);
  }

  get path() {
    return chatPath(this.chatId);
  }

  /** Open a section: `now` if there is none of that name. All stay as they are while another is shown. */
  open(section) {
    this.section = Object.hasOwn(this.sections, section) ? section : "now";
    for (const tab of this.tabs.children) {
      if (tab.dataset.section === this.section) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    const [, part] = this.sections[this.section];
    for (const known of this.shown.children) known.hidden = known !== part;
    if (!part.isConnected) this.shown.append(part);
    this.showSection();
  }

  showSection() {
    const [, part, show] = this.sections[this.section];
    if (this.records) show?.(part);
  }

  /** Follow the chat until the page leaves it. */
  async follow() {
    const { signal } = this.leaving;
    const options = { signal, onConnect: () => this.connect(""), onDrop: ({ cause }) => this.lose(cause) };
    while (!signal.aborted) {
      try {
        await this.begin();
        for await (const event of events(this.chatId, this.transcript.last_seq, options)) this.take(event);
      } catch (error) {
        if (signal.aborted) return;
        if (!error.passes) return tell(this, error); // asked again, it is refused again
        this.lose(error);
      }
      await new Promise((go) => setTimeout(go, PAUSE));
    }
  }

  lose(error) {
    const what = error?.status ? `The service answers ${error.status}.` : "The connection is gone.";
    this.connect(`${what} The page asks again; nothing is lost.`);
  }

  async begin() {
    this.forgetWork();
    this.transcript = await get(`${this.path}/transcript`, { signal: this.leaving.signal });
    this.draw();
    await this.ask();
  }

  /** Show the state of the connection; after a reconnection, request the missed events. */
  connect(words) {
    if (this.connection.textContent && !words) this.askSoon();
    this.connection.textContent = words;
  }

  /** Forget the work under way that no transcript holds: what running calls report, and the retry that is announced. */
  forgetWork() {
    this.progress = {};
    this.retry = null;
  }

  take(event) {
    const { last_seq: before } = this.transcript;
    this.transcript = fold([event], this.transcript);
    if (this.transcript.last_seq === before) return;
    if (!event.seq) this.forgetWork();
    if (event.kind === "tool_progress") this.progress[event.call_id] = event.progress;
    if (event.kind === "tool_result") delete this.progress[event.call_id];
    if (event.kind === "retry") this.retry = event;
    if (event.kind === "status") {
      this.retry = null;
      this.diagram.walk(event.previous, event.state);
    }
    if (ASKED_ANEW.has(event.kind)) this.askSoon();
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  askSoon(delay = SOON) {
    clearTimeout(this.due);
    this.due = setTimeout(() => this.ask().catch((error) => {
      if (this.leaving.signal.aborted) return;
      tell(this, error);
      if (error.passes) this.askSoon(AT_WORK);
    }), delay);
  }

  /** Draw the events. */
  draw() {
    const { retry } = this;
    const { state, queue, open_calls: calls, error } = this.transcript;
    if (this.state.textContent !== state) showState(this.state, state);
    if (this.messages.isConnected) this.messages.show(this.transcript, this.progress);
    this.calls.show(state === "requires_action" ? calls : []).catch((error) => tell(this, error));
    if (this.diagram.lit !== state) this.diagram.light(state);
    this.queue.show(queue);
    const next = retry?.next_model ? `${retry.next_model} is asked instead` : `Another follows at ${new Date(retry?.retry_at).toLocaleTimeString()}`;
    const wrong = retry ? `Attempt ${retry.attempt} failed: ${retry.error.message}. ${next}.` : error?.message;
    if (wrong) this.reason.textContent = wrong;
  }

  drawNow() {
    this.draw();
    this.diagram.count(this.records);
  }

  /** Request the data that events do not contain: the chat, its explanation, usage and audit log. */
  async ask() {
    const { signal } = this.leaving;
    const [chat, explanation, usage, audit] = await Promise.all(
      ASKED.map(([operation, rest, nothing]) => (this.may.has(operation) ? get(this.path + rest, { signal }) : nothing)));
    tellAnswer(this);
    if (audit.length < (this.records?.length ?? 0)) return; // a later question was answered sooner
    this.chat = chat;
    this.records = audit;
    this.heading.textContent = chat.title ?? chat.id;
    if (!this.retry) this.reason.textContent = explanation.reason;
    this.drawButtons(explanation.legal_triggers);
    this.facts.show(chat, explanation, usage);
    this.showSection();
    if (!isResting(chat.state) || !chat.settled) this.askSoon(AT_WORK); // no event tells that a worker is dead
  }

  drawButtons(legal) {
    if (!this.buttons.children.length) {
      this.buttons.append(...COMMANDS.filter(([, , path]) => this.may.has(path)).map(([words, trigger, path]) =>
        button(words, () => post(`${this.path}/${path}`), { data: { trigger } })));
    }
    for (const one of this.buttons.children) one.disabled = !legal.includes(one.dataset.trigger);
  }
}

customElements.define("chat-view", ChatView);
