// One chat: it follows the chat's events, and hands what they tell to its parts.

import "./chat-audit.js";
import "./chat-diagram.js";
import "./chat-messages.js";
import "./chat-timeline.js";
import "./family-tree.js";
import "./open-calls.js";
import "./time-travel.js";
import { chatPath, events, get, post } from "./service.js";
import { button, made, table, tell } from "./shown.js";
import { begun, fold } from "./transcript.js";

const PAUSE = 1000;
const TOLD = { status: 1, queue: 1, turn_finished: 1, error: 1, action_required: 1, compaction: 1, retry: 1, tool_result: 1 };

class ChatView extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.heading = made("h2", { textContent: this.chatId });
    this.state = made("span", { className: "state", role: "status" });
    this.reason = made("p", { className: "reason" });
    this.buttons = made("div", { className: "buttons", role: "group", "aria-label": "Commands" });
    this.messages = made("chat-messages");
    this.calls = made("open-calls", { chatId: this.chatId, mayWrite: this.mayWrite });
    this.queue = made("section", { "aria-label": "Queue" });
    this.usage = made("section", { "aria-label": "Usage" });
    this.explained = made("section", { "aria-label": "Explanation" });
    this.diagram = made("chat-diagram", { chatId: this.chatId });
    this.audit = made("chat-audit", { chatId: this.chatId, mayWrite: this.mayWrite });
    this.append(
      made("div", { className: "title" }, this.heading, this.state), this.reason, this.buttons,
      made("div", { className: "columns" },
        made("div", {}, this.messages, this.calls, this.queue, this.mayWrite ? this.sender() : null),
        made("div", {}, this.diagram, this.explained, this.usage, this.audit)),
      this.opened("Timeline", made("chat-timeline", { chatId: this.chatId }), (part) => part.show(this.records)),
      this.opened("Time travel", made("time-travel", { chatId: this.chatId, mayWrite: this.mayWrite }), (part) => part.show(this.records)),
      this.opened("Family", made("family-tree"), (part) => part.show(this.chat)));
    this.follow();
  }

  disconnectedCallback() {
    this.leaving.abort();
    clearTimeout(this.due);
  }

  /** A part that asks for what it shows when it is opened, each time. */
  opened(words, part, show) {
    const folded = made("details", { className: "part" }, made("summary", {}, made("h3", { textContent: words })), part);
    const showIfOpen = () => folded.open && this.records && show(part);
    folded.addEventListener("toggle", showIfOpen);
    this.addEventListener("records", showIfOpen, { once: true }); // opened before there was anything to show
    return folded;
  }

  get path() {
    return chatPath(this.chatId);
  }

  /** Follow the chat until the page leaves it; a connection that ends is made again. */
  async follow() {
    const { signal } = this.leaving;
    try {
      this.transcript = begun(await get(`${this.path}/transcript`, { signal }));
      this.draw();
      await this.ask();
    } catch (error) {
      if (!signal.aborted) tell(this, error);
      return;
    }
    while (!signal.aborted) {
      try {
        for await (const event of events(this.chatId, this.transcript.last_seq, { signal })) {
          if (event.kind === "problem") return tell(this, new Error(event.data.detail));
          if (fold(this.transcript, event)) this.hear(event);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404 || error.status === 401) return tell(this, error);
      }
      await new Promise((go) => setTimeout(go, PAUSE));
    }
  }

  hear(event) {
    if (event.kind === "status") this.diagram.walk(event.data.previous, event.data.state);
    if (event.kind in TOLD) {
      clearTimeout(this.due);
      this.due = setTimeout(() => this.ask().catch((error) => this.leaving.signal.aborted || tell(this, error)), 100);
    }
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  /** Draw what the events have told. */
  draw() {
    const { state, queue, open_calls: calls, retry, error } = this.transcript;
    this.state.textContent = state;
    this.state.dataset.state = state;
    this.messages.show(this.transcript);
    this.calls.show(state === "requires_action" ? calls : []);
    this.diagram.light(state);
    this.drawQueue(queue);
    const wrong = retry ? `attempt ${retry.attempt} failed: ${retry.error.message}` : error?.message;
    if (wrong) this.reason.textContent = wrong;
  }

  /** Ask for what no event tells whole: the chat, its explanation, usage and audit log. */
  async ask() {
    const { signal } = this.leaving;
    const [chat, explanation, usage, audit] = await Promise.all(
      ["", "/explain", "/usage", "/audit"].map((rest) => get(this.path + rest, { signal })));
    this.chat = chat;
    this.heading.textContent = chat.title ?? chat.id;
    this.reason.textContent = explanation.reason;
    this.drawButtons(explanation.legal_triggers);
    this.drawExplanation(explanation);
    this.drawUsage(chat, usage);
    this.diagram.count(audit);
    this.audit.show(audit);
    this.records = audit;
    this.dispatchEvent(new Event("records"));
  }

  drawButtons(legal) {
    if (!this.mayWrite) return;
    const command = (words, trigger, path) =>
      button(words, () => post(`${this.path}/${path}`), { disabled: !legal.includes(trigger) });
    this.buttons.replaceChildren(
      command("Stop", "interrupt", "interrupt"), command("Resume", "resume", "resume"),
      command("Compact", "request_compaction", "compact"), command("Clear context", "clear_context", "clear"));
  }

  drawExplanation(told) {
    const rows = [
      ["agent", told.agent], ["worker", told.lease_worker ?? "none"], ["next timer", told.next_timer ?? "none"],
      ["accepts", told.legal_triggers.join(", ")], ["broken promises", told.broken_promises.join(", ") || "none"],
      ["last error", told.last_error?.message ?? "none"],
    ];
    this.explained.replaceChildren(made("h3", { textContent: "Explanation" }), table("Where it stands", ["what", "is"], rows));
  }

  drawUsage(chat, entries) {
    const row = (name, used) => [name, used.input_tokens ?? "?", used.output_tokens ?? "?", used.cost ?? "?"].map(String);
    const rows = [row("all", chat.usage), ...entries.slice(-20).map((one) => row(`${one.purpose} ${one.step}`, one.usage))];
    this.usage.replaceChildren(
      made("h3", { textContent: "Usage" }), table("Usage and cost", ["call", "tokens in", "tokens out", "cost"], rows));
  }

  drawQueue(queue) {
    const key = JSON.stringify(queue);
    if (key === this.queueKey) return;
    this.queueKey = key;
    const one = (said) => made("li", {},
      made("span", { textContent: said.parts?.map((part) => part.text ?? part.type).join("") ?? "" }),
      this.mayWrite ? button("Promote", () => post(`${this.path}/queue/${encodeURIComponent(said.id)}/promote`)) : null);
    this.queue.replaceChildren(...queue.length ? [made("h3", { textContent: "Queue" }), made("ol", {}, ...queue.map(one))] : []);
  }

  sender() {
    const input = made("textarea", { id: "said", rows: 2, required: true });
    const form = made("form", { className: "sender" },
      made("label", { for: "said", textContent: "Message" }), input, made("button", { textContent: "Send" }));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await post(`${this.path}/messages`, { content: input.value });
        input.value = "";
      } catch (error) {
        tell(form, error);
      }
    });
    return form;
  }
}

customElements.define("chat-view", ChatView);
