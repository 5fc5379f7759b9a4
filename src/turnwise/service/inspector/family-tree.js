// The chat's family: its parent, its subagents, and theirs.

import { chatPath, get } from "./service.js";
import { age, made, stateOf, tell } from "./shown.js";

const DEEPEST = 10;

class FamilyTree extends HTMLElement {
  async show(chat) {
    try {
      const root = await this.first(chat);
      const tree = made("ul", { className: "tree" }, await this.branch(root, chat.id, 0));
      const isAlone = tree.querySelectorAll("li").length === 1;
      this.replaceChildren(made("h3", { textContent: "Family" }), tree, isAlone
        ? made("p", { className: "empty", textContent: "This chat has no parent, and no subagents. A call of a tool that delegates, or a fork, makes one." }) : "");
    } catch (error) {
      tell(this, error);
    }
  }

  /** The first of the family that may be seen. */
  async first(chat) {
    let found = chat;
    for (let depth = 0; found.parent && depth < DEEPEST; depth += 1) {
      try {
        found = await get(chatPath(found.parent));
      } catch {
        return found;
      }
    }
    return found;
  }

  async branch(chat, here, depth) {
    const subagents = depth < DEEPEST ? await get(chatPath(chat.id, "subagents")) : [];
    const isFork = chat.parent && !chat.parent_call;
    const branches = await Promise.all(subagents.map((subagent) => this.branch(subagent, here, depth + 1)));
    return made("li", {},
      made("a", { href: `#/chats/${encodeURIComponent(chat.id)}`, "aria-current": chat.id === here ? "page" : null },
        stateOf(chat.state), made("strong", { textContent: chat.title ?? chat.id }),
        made("span", { className: "muted", textContent: `${chat.agent} · turn ${chat.turn}, step ${chat.step} · ${age(chat.updated_at)}${isFork ? " · a fork" : ""}` })),
      branches.length ? made("ul", {}, ...branches) : null);
  }
}

customElements.define("family-tree", FamilyTree);
