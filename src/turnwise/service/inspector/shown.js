// Creates elements without HTML: the text of chats, tools and people stays text.

import { parse, stringify } from "./exact-json.js";
import { KINDS } from "./states.js";

/** Return an element. `props` are properties, but `on` (handlers), `data`, and those with a dash or of `ATTRIBUTES`. */
export function made(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "on") {
      for (const [kind, handler] of Object.entries(value)) element.addEventListener(kind, handler);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name.includes("-") || ATTRIBUTES.has(name)) {
      element.setAttribute(name, value);
    } else {
      element[name] = value;
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const ATTRIBUTES = new Set(["role", "for", "list", "scope"]);

/** Return a button that reports errors to the page. It ignores clicks while its action runs. */
export function button(words, act, props = {}) {
  const press = async (event) => {
    const pressed = event.currentTarget;
    if (pressed.hasAttribute("aria-busy")) return;
    pressed.setAttribute("aria-busy", "true");
    try {
      await act();
    } catch (error) {
      tell(pressed, error);
    } finally {
      pressed.removeAttribute("aria-busy");
    }
  };
  return made("button", { type: "button", textContent: words, on: { click: press }, ...props });
}

/** Report an error to the page. */
export function tell(element, error) {
  const target = element.isConnected ? element : document.querySelector("inspector-page");
  target?.dispatchEvent(new CustomEvent("failed", { bubbles: true, detail: error }));
}

/** Report to the page that the service answers again. */
export function tellAnswer(element) {
  element.dispatchEvent(new CustomEvent("answered", { bubbles: true }));
}

/** Whether a chat stays in a state until someone or a deadline moves it; `interrupted` counts once settled. */
export const isResting = (state) => KINDS[state] === "resting";

/** Return the data of an element that has the colour of a state. */
export const stateData = (state) => ({ state, kind: KINDS[state] });

/** Return a state in the colour that it has in the diagram. */
export function stateOf(state, props = {}) {
  return showState(made("span", { className: "state", ...props }), state);
}

/** Let an element of `stateOf` show another state. */
export function showState(element, state) {
  Object.assign(element.dataset, stateData(state));
  element.textContent = state;
  return element;
}

/** Return a placeholder for an empty list. */
export function empty(words) {
  return made("p", { className: "empty", textContent: words });
}

/** Return a value as text: text as it is, anything else as JSON. */
export function asText(value) {
  return typeof value === "string" ? value : stringify(value, 2);
}

/** Return typed text as JSON if it is JSON, otherwise as text. */
export function asValue(typed) {
  try {
    return parse(typed);
  } catch {
    return typed;
  }
}

/** Return a time as a person of this browser writes it. */
export function asTime(text) {
  return text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : "";
}

/** Return a length of time in milliseconds, in the unit that suits it. */
export function duration(milliseconds) {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

/** Return how long ago a time was, in its largest unit. */
export function age(text, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(text)) / 1000));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

/** Call a function, in the next frame, whenever an element has another size. */
export function onResize(elements, act) {
  const sizes = new ResizeObserver(() => requestAnimationFrame(act));
  for (const element of elements) sizes.observe(element);
}

/** Return a table: its head, and rows of text or nodes. */
export function table(caption, heads, rows, nothing = "Nothing yet.") {
  return made("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": caption },
    made("table", {},
      made("caption", { textContent: caption }),
      made("thead", {}, made("tr", {}, ...heads.map((head) => made("th", { scope: "col", textContent: head })))),
      made("tbody", {}, ...rows.map((row) => made("tr", {}, ...row.map((cell) => made("td", {}, cell ?? "")))))),
    rows.length ? null : empty(nothing));
}

/** Return a list of names and values. */
export function pairs(rows) {
  return made("dl", { className: "pairs" }, ...rows.map(([name, value]) =>
    made("div", {}, made("dt", { textContent: name }), made("dd", {}, value))));
}
