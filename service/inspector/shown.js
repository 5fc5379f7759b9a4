// Elements, made without HTML: whatever a chat, a tool or a person says is only ever text.

/** Return an element. `props` are properties, but `on` (handlers), `data`, and those with a dash or `role` (attributes). */
export function made(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "on") {
      for (const [kind, handler] of Object.entries(value)) element.addEventListener(kind, handler);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name.includes("-") || name === "role" || name === "for" || name === "list") {
      element.setAttribute(name, value);
    } else {
      element[name] = value;
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a button that tells what went wrong, if something did, to the page. */
export function button(words, act, props = {}) {
  const press = async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    try {
      await act();
    } catch (error) {
      tell(pressed, error);
    } finally {
      pressed.disabled = false;
    }
  };
  return made("button", { type: "button", textContent: words, on: { click: press }, ...props });
}

/** Tell the page what went wrong. */
export function tell(element, error) {
  element.dispatchEvent(new CustomEvent("failed", { bubbles: true, detail: error.message }));
}

/** Return a value as text: text as it is, anything else as JSON. */
export function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Return what was typed as JSON if it is JSON, otherwise as text. */
export function asValue(typed) {
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}

/** Return a time as a person of this browser writes it. */
export function asTime(text) {
  return text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : "";
}

/** Return how long ago a time was, in its largest unit. */
export function age(text, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(text)) / 1000));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

/** Return a table: its head, and rows of text or nodes. */
export function table(caption, heads, rows) {
  return made("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": caption },
    made("table", {},
      made("caption", { textContent: caption }),
      made("thead", {}, made("tr", {}, ...heads.map((head) => made("th", { scope: "col", textContent: head })))),
      made("tbody", {}, ...rows.map((row) => made("tr", {}, ...row.map((cell) => made("td", {}, cell ?? "")))))));
}
