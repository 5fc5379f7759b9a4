// The chat's family: its parent, its helpers, and theirs.

import { chatPath, get } from "./service.js";
import { made, tell } from "./shown.js";

const DEEPEST = 10;

class FamilyTree extends HTMLElement {
  async show(chat) {
    try {
      const root = await this.first(chat);
      this.replaceChildren(made("ul", { className: "tree" }, await this.branch(root, chat.id, 0)));
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
    const helpers = depth < DEEPEST ? await get(chatPath(chat.id, "helpers")) : [];
    const branches = await Promise.all(helpers.map((helper) => this.branch(helper, here, depth + 1)));
    return made("li", {},
      made("a", { href: `#/chats/${encodeURIComponent(chat.id)}`, textContent: chat.title ?? chat.id,
        "aria-current": chat.id === here ? "page" : null }),
      ` ${chat.agent}, `, made("span", { className: "state", data: { state: chat.state }, textContent: chat.state }),
      branches.length ? made("ul", {}, ...branches) : null);
  }
}

customElements.define("family-tree", FamilyTree);
