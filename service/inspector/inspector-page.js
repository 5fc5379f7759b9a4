// The page: who looks, and at what.

import "./chat-list.js";
import "./chat-view.js";
import "./fleet-view.js";
import { get, hasToken, keepToken, takeToken } from "./service.js";
import { button, made } from "./shown.js";

const VIEWS = { fleet: "fleet-view" };

class InspectorPage extends HTMLElement {
  connectedCallback() {
    this.told = made("p", { role: "alert", className: "told" });
    this.nav = made("nav", { "aria-label": "Views" });
    this.main = made("main", { id: "main", tabIndex: -1 });
    this.append(made("header", {}, made("h1", { textContent: "turnwise" }), this.nav), this.told, this.main);
    this.addEventListener("failed", (event) => {
      this.told.textContent = event.detail;
    });
    addEventListener("hashchange", () => this.enter());
    this.enter();
  }

  /** Show what the address names. */
  async enter() {
    takeToken();
    this.told.textContent = "";
    if (!hasToken()) return this.ask("");
    try {
      this.principal ??= await get("principal");
    } catch (error) {
      if (error.status === 401) keepToken(null);
      return this.ask(error.message);
    }
    this.nav.replaceChildren(
      made("a", { href: "#/", textContent: "Chats" }),
      made("a", { href: "#/fleet", textContent: "Fleet" }),
      made("span", { textContent: `${this.principal.role} ${this.principal.name}` }),
      button("Leave", () => this.leave()));
    const [, kind, id] = location.hash.slice(1).split("/");
    const tag = kind === "chats" ? "chat-view" : VIEWS[kind] ?? "chat-list";
    const view = made(tag, { mayWrite: this.principal.role !== "auditor", chatId: id && decodeURIComponent(id) });
    this.main.replaceChildren(view);
  }

  ask(problem) {
    const input = made("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const form = made("form", { className: "asked" },
      made("label", { for: "token", textContent: "Token" }), input, made("button", { textContent: "Look" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepToken(input.value.trim());
      this.enter();
    });
    this.told.textContent = problem;
    this.nav.replaceChildren();
    this.main.replaceChildren(form);
  }

  leave() {
    keepToken(null);
    this.principal = undefined;
    this.ask("");
  }
}

customElements.define("inspector-page", InspectorPage);
