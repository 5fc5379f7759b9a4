// The page: the signed-in person and the current view.

import "./chat-list.js";
import "./chat-view.js";
import "./fleet-view.js";
import { get, hasToken, keepToken, takeToken } from "./service.js";
import { button, made } from "./shown.js";

const VIEWS = new Map([["chats", "chat-view"], ["fleet", "fleet-view"]]);

class InspectorPage extends HTMLElement {
  connectedCallback() {
    this.told = made("p", { role: "alert", className: "told" });
    this.nav = made("nav", { "aria-label": "Views" });
    this.who = made("div", { className: "who" });
    this.main = made("main", { id: "main", tabIndex: -1 });
    const skip = button("Skip to the content", () => this.main.focus(), { className: "skip" });
    this.append(skip, made("header", {}, made("h1", {}, "turnwise ", made("span", { textContent: "inspector" })), this.nav, this.who), this.told, this.main);
    this.addEventListener("failed", ({ target, detail: error }) => {
      this.told.textContent = error.message;
      if (error.status === 401 && target !== this) this.leave(error.message); // or it was asked with a token before
      this.isUnanswered = error.status === 0;
    });
    this.addEventListener("answered", () => {
      if (this.isUnanswered) this.told.textContent = "";
      this.isUnanswered = false;
    });
    addEventListener("hashchange", () => this.enter());
    this.enter();
  }

  /** Show what the address names: `#/`, `#/fleet`, `#/chats/ID` or `#/chats/ID/SECTION`. */
  async enter() {
    if (takeToken()) {
      this.principal = undefined;
      this.main.replaceChildren(); // what the token before was shown
    }
    if (!hasToken()) return this.ask(this.told.textContent); // which says why, if one was refused
    this.told.textContent = "";
    try {
      this.principal ??= await get("principal");
    } catch (error) {
      return error.status === 401 ? this.leave(error.message) : this.ask(error.message);
    }
    const [, kind = "", id = "", section] = location.hash.slice(1).split("/").map(decoded);
    this.drawHead(kind);
    const view = this.main.firstElementChild;
    if (kind === "chats" && view?.localName === "chat-view" && view.chatId === id) return view.open(section);
    const tag = VIEWS.get(kind) ?? "chat-list";
    const may = new Set(this.principal.may);
    this.main.replaceChildren(made(tag, { may, isOwner: this.principal.role === "owner", chatId: id, section }));
    if (view) this.main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  drawHead(kind) {
    const link = (words, where, current) =>
      made("a", { href: `#/${where}`, textContent: words, "aria-current": current ? "page" : null });
    this.nav.replaceChildren(link("Chats", "", kind !== "fleet"), link("Fleet", "fleet", kind === "fleet"));
    this.who.replaceChildren(
      made("span", {}, made("span", { className: "role", textContent: `${this.principal.role} ` }), this.principal.name),
      button("Leave", () => this.leave(), { className: "quiet" }));
  }

  /** Ask for a token. */
  ask(problem) {
    const input = made("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const form = made("form", { className: "asked card" },
      made("h2", { textContent: "Who are you?" }),
      made("p", { className: "muted", textContent: "The service knows you by a token. `turnwise serve` prints one unless it is given tokens, and `turnwise inspect` an address that has it in it." }),
      made("label", { for: "token", textContent: "Token" }), input, made("button", { className: "main", textContent: "Look" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepToken(input.value.trim());
      this.enter();
    });
    this.told.textContent = problem;
    this.nav.replaceChildren();
    this.who.replaceChildren();
    this.main.replaceChildren(form);
    input.focus();
  }

  leave(problem = "") {
    keepToken(null);
    this.principal = undefined;
    this.ask(problem);
  }
}

/** Return a piece of the address as it was before it was put there; one that is broken as it is. */
function decoded(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

customElements.define("inspector-page", InspectorPage);
