// A form for the arguments of a call: each field follows the argument's JSON schema and shows its own errors.
// Unchanged arguments keep their original value, also one that a field cannot show: a missing argument, a null.

import { numberOf, parse, stringify } from "./exact-json.js";
import { button, made } from "./shown.js";

/**
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {() => boolean} isChanged whether the value differs from the drawn one
 * @property {() => unknown} read the typed value, or else the original one; `undefined` leaves the argument out
 * @property {() => HTMLElement | null} check show errors, and return the first invalid input
 */

let lastId = 0;

class ArgumentForm extends HTMLElement {
  /** Show arguments; without a schema they are laid out by their own kinds. */
  show(schema, value) {
    const known = schema?.properties ? schema : { type: "object", ...schemaOf(value) };
    this.given = value;
    this.field = objectField(known, value, new Reader(known));
    this.replaceChildren(this.field.element);
    this.addEventListener("input", () => this.hasFailed && this.check()); // at a change the layout would move under a click
  }

  /** Whether a person has changed an argument. */
  get isChanged() {
    return this.field.isChanged();
  }

  /** The arguments, as they were typed. */
  get value() {
    return this.isChanged ? this.field.read() : this.given;
  }

  /** Show the errors at their fields; return the first invalid field, or null. */
  check() {
    const wrong = this.field.check();
    this.hasFailed = wrong !== null;
    return wrong;
  }
}

/** Resolves the references of a schema. */
class Reader {
  constructor(root) {
    this.root = root;
  }

  /** Return a schema without reference or choice of null, and whether null is one. After so many steps it may be one without an end. */
  read(schema, most = 10) {
    let found = schema;
    let left = most;
    for (; found?.$ref && left > 0; left -= 1) {
      const path = found.$ref.replace(/^#\//, "").split("/");
      found = { ...path.reduce((part, name) => part?.[name], this.root), ...found, $ref: undefined };
    }
    const choices = found?.anyOf ?? found?.oneOf;
    if (!choices || left === 0) return { schema: found ?? {}, isNullable: false };
    const others = choices.filter((one) => one.type !== "null");
    if (others.length !== 1) return { schema: { ...found, type: undefined }, isNullable: false };
    const inner = this.read(others[0], left - 1);
    const { title, description = inner.schema.description, default: ifLeftOut = inner.schema.default } = found;
    return { schema: { ...inner.schema, title, description, default: ifLeftOut },
      isNullable: others.length < choices.length || inner.isNullable };
  }
}

/** Return a schema derived from a value. */
function schemaOf(value) {
  if (Array.isArray(value)) return { type: "array", items: value.length ? schemaOf(value[0]) : {} };
  if (value === null) return {};
  if (typeof value === "bigint") return { type: "integer" };
  if (typeof value !== "object") return { type: typeof value };
  return { type: "object", properties: Object.fromEntries(Object.entries(value).map(([name, one]) => [name, schemaOf(one)])) };
}

function objectField(schema, value, reader) {
  const needed = new Set(schema.required ?? []);
  const names = [...new Set([...Object.keys(schema.properties ?? {}), ...Object.keys(value)])];
  const fields = names.map((name) =>
    [name, fieldFor(name, schema.properties?.[name] ?? schemaOf(value[name]), value[name], needed.has(name), reader)]);
  return {
    element: made("div", { className: "fields" }, ...fields.map(([, one]) => one.element)),
    isChanged: () => fields.some(([, one]) => one.isChanged()),
    read: () => Object.fromEntries(fields.map(([name, one]) => [name, one.read()]).filter(([, typed]) => typed !== undefined)),
    check: () => firstOf(fields.map(([, one]) => one.check())),
  };
}

/** Return the field of a missing object. Its fields are made when a person opens it: a type may contain itself. */
function closedField(name, schema, value, isNeeded, reader) {
  const details = made("details", {},
    made("summary", {}, name, made("span", { className: "muted", textContent: value === null ? " null" : " left out" })),
    hint(schema.description));
  let inner = null;
  const opened = () => {
    if (!inner) {
      inner = objectField(schema, {}, reader);
      details.append(inner.element);
    }
    return inner;
  };
  details.addEventListener("toggle", () => details.open && opened());
  return {
    element: details,
    isChanged: () => details.open,
    read: () => (details.open ? opened().read() : value),
    check: () => {
      details.open ||= isNeeded;
      return details.open ? opened().check() : null;
    },
  };
}

function listField(schema, value, isNeeded, reader) {
  const list = made("ol", { className: "items" });
  const fields = [];
  const add = (item) => {
    const one = fieldFor(`item ${fields.length + 1}`, schema.items, item, true, reader);
    const line = made("li", {}, one.element, button("Remove", () => {
      fields.splice(fields.indexOf(one), 1);
      line.remove();
    }, { className: "quiet" }));
    fields.push(one);
    list.append(line);
  };
  for (const item of value ?? []) add(item);
  const drawn = [...fields];
  const isChanged = () => fields.length !== drawn.length || fields.some((one, place) => one !== drawn[place] || one.isChanged());
  const more = () => add(hasFields(reader.read(schema.items).schema) ? {} : undefined);
  return {
    element: made("div", { className: "fields" }, list, button("Add an item", more, { className: "quiet" })),
    isChanged,
    read: () => (isChanged() || (value === undefined && isNeeded) ? fields.map((one) => one.read()) : value),
    check: () => firstOf(fields.map((one) => one.check())),
  };
}

/** @returns {Field} */
function fieldFor(name, described, value, isNeeded, reader) {
  const { schema, isNullable } = reader.read(described);
  const isGiven = value !== undefined && value !== null;
  if (hasFields(schema) && !isGiven) return closedField(name, schema, value, isNeeded && !isNullable, reader);
  const isObject = hasFields(schema) && typeof value === "object" && !Array.isArray(value);
  if (isObject || (schema.type === "array" && schema.items && (!isGiven || Array.isArray(value)))) {
    const inner = isObject ? objectField(schema, value, reader) : listField(schema, value, isNeeded, reader);
    const group = made("fieldset", {}, made("legend", { textContent: name }), hint(schema.description), inner.element);
    return { ...inner, element: group };
  }
  return inputField(name, schema, value, { isNeeded, isNullable });
}

/** @returns {Field} */
function inputField(name, schema, value, { isNeeded, isNullable }) {
  const { input, typed, problem } = inputFor(schema, value === undefined ? schema.default : value, isNullable);
  const id = `argument-${lastId += 1}`;
  const told = made("p", { className: "problem", id: `${id}-problem` });
  const note = hint(schema.description, `${id}-hint`);
  Object.assign(input, { id });
  input.dataset.argument = name;
  input.setAttribute("aria-describedby", [note && note.id, told.id].filter(Boolean).join(" "));
  const standing = () => (input.type === "checkbox" ? input.checked : input.value);
  const drawn = standing();
  const isChanged = () => standing() !== drawn;
  const isEmpty = () => standing() === "" && !(schema.type === "string" && isNeeded && !isNullable);
  const stays = () => !isChanged() && (value !== undefined || !isNeeded);
  const wrongNow = () => {
    if (stays() && value === undefined) return "";
    if (isEmpty()) return isNeeded && !isNullable ? "This is needed." : "";
    return problem();
  };
  const label = made("label", { for: id }, name, isNeeded ? null : made("span", { className: "muted", textContent: " optional" }));
  return {
    element: made("div", { className: input.type === "checkbox" ? "field check" : "field" }, label, input, note, told),
    isChanged,
    read: () => {
      if (stays()) return value;
      return isEmpty() ? (isNullable ? null : undefined) : typed();
    },
    check: () => {
      const wrong = wrongNow();
      told.textContent = wrong;
      input.setAttribute("aria-invalid", String(Boolean(wrong)));
      return wrong ? input : null;
    },
  };
}

/** Return the input of an argument. It shows the original value, or the default of a missing one. */
function inputFor(schema, value, isNullable) {
  const isDecided = typeof value === "boolean" && !isNullable;
  const choices = schema.enum ?? (schema.const !== undefined ? [schema.const] : schema.type === "boolean" && !isDecided ? [true, false] : null);
  if (choices) {
    const options = choices.map((one, place) => made("option", { value: String(place), textContent: String(one), selected: one === value }));
    const none = made("option", { value: "", textContent: isNullable ? "none" : "choose", selected: !choices.includes(value) });
    const input = made("select", {}, isNullable || none.selected ? none : null, ...options);
    return { input, typed: () => choices[input.value], problem: () => "" };
  }
  if (schema.type === "boolean") {
    const input = made("input", { type: "checkbox", checked: value });
    return { input, typed: () => input.checked, problem: () => "" };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const input = made("input", { type: "text", inputMode: "decimal", value: String(value ?? "") });
    return { input, typed: () => numberOf(input.value.trim()), problem: () => problemOfNumber(schema, input.value.trim()) };
  }
  const input = made("textarea", { rows: 1, className: "grows" });
  if (schema.type === "string") {
    input.value = value ?? "";
    return { input, typed: () => input.value, problem: () => problemOfText(schema, input.value) };
  }
  input.value = value === undefined ? "" : stringify(value, 2);
  return { input, typed: () => parse(input.value), problem: () => (isJson(input.value) ? "" : "This must be JSON.") };
}

function problemOfNumber({ type, minimum, maximum, exclusiveMinimum, exclusiveMaximum }, typed) {
  const number = Number(typed);
  if (typed === "" || !Number.isFinite(number) || (type === "integer" && !Number.isInteger(number))) {
    return `This must be a ${type === "integer" ? "whole " : ""}number.`;
  }
  if (number < minimum) return `This must be ${minimum} or more.`;
  if (number > maximum) return `This must be ${maximum} or less.`;
  if (number <= exclusiveMinimum) return `This must be more than ${exclusiveMinimum}.`;
  if (number >= exclusiveMaximum) return `This must be less than ${exclusiveMaximum}.`;
  return "";
}

function problemOfText({ minLength = 0, maxLength = Infinity, pattern }, typed) {
  const { length } = [...typed];
  if (length < minLength) return minLength === 1 ? "This is needed." : `This must have ${minLength} characters or more.`;
  if (length > maxLength) return `This must have ${maxLength} characters or fewer.`;
  return pattern && !matches(pattern, typed) ? `This must look like ${pattern}` : "";
}

/** Whether a text has a pattern; one that only other languages know is left to the service. */
function matches(pattern, typed) {
  try {
    return new RegExp(pattern, "u").test(typed);
  } catch {
    return true;
  }
}

function isJson(typed) {
  try {
    JSON.parse(typed);
    return true;
  } catch {
    return false;
  }
}

function hint(words, id) {
  return words ? made("p", { className: "hint", textContent: words, ...id && { id } }) : null;
}

const hasFields = (schema) => schema.type === "object" && Boolean(schema.properties);
const firstOf = (inputs) => inputs.find((input) => input !== null) ?? null;

customElements.define("argument-form", ArgumentForm);
