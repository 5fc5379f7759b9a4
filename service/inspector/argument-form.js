// The arguments of a call, each in a field of its kind.

import { asText, made } from "./shown.js";

class ArgumentForm extends HTMLElement {
  /** The arguments, as they were typed. */
  get value() {
    return Object.fromEntries([...this.fields].map(([name, read]) => [name, read()]));
  }

  set value(given) {
    this.fields = new Map();
    this.replaceChildren(...Object.entries(given).map(([name, value]) => this.field(name, value)));
  }

  field(name, value) {
    const [input, read] = inputFor(value);
    input.dataset.argument = name;
    this.fields.set(name, read);
    return made("label", { className: "line" }, `${name} `, input);
  }
}

function inputFor(value) {
  if (typeof value === "boolean") {
    const input = made("input", { type: "checkbox", checked: value });
    return [input, () => input.checked];
  }
  if (typeof value === "number") {
    const input = made("input", { type: "number", step: "any", value, required: true });
    return [input, () => input.valueAsNumber];
  }
  const input = made("textarea", { rows: 2, value: asText(value) });
  if (typeof value === "string") return [input, () => input.value];
  input.addEventListener("input", () => input.setCustomValidity(isJson(input.value) ? "" : "This must be JSON."));
  return [input, () => JSON.parse(input.value)];
}

function isJson(typed) {
  try {
    JSON.parse(typed);
    return true;
  } catch {
    return false;
  }
}

customElements.define("argument-form", ArgumentForm);
