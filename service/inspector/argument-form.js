// The arguments of a call, each in a field of its kind, as their JSON schema says; what is wrong stands at its field.

import { numberOf, parse, stringify } from "./exact-json.js";
import { button, made } from "./shown.js";

/**
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {() => unknown} read what was typed; `undefined` if nothing was
 * @property {() => HTMLElement | null} check tell what is wrong, and return the first input that is
 */

let lastId = 0;

class ArgumentForm extends HTMLElement {
  /** Show arguments; without a schema they are laid out by their own kinds. */
  show(schema, value) {
    const known = schema?.properties ? schema : { type: "object", ...schemaOf(value) };
    this.field = objectField(known, value, new Reader(known));
    this.replaceChildren(this.field.element);
    this.addEventListener("change", () => this.hasFailed && this.check());
  }

  /** The arguments, as they were typed. */
  get value() {
    return this.field.read();
  }

  /** Tell at each field what is wrong with it, and return the first that is wrong, or null. */
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

  /** Return a schema without reference or choice of null, and whether null is one. */
  read(schema) {
    let found = schema;
    for (let depth = 0; found?.$ref && depth < 10; depth += 1) {
      const path = found.$ref.replace(/^#\//, "").split("/");
      found = { ...path.reduce((part, name) => part?.[name], this.root), ...found, $ref: undefined };
    }
    const choices = found?.anyOf ?? found?.oneOf;
    if (!choices) return { schema: found ?? {}, isNullable: false };
    const others = choices.filter((one) => one.type !== "null");
    if (others.length !== 1) return { schema: { ...found, type: undefined }, isNullable: false };
    const inner = this.read(others[0]);
    return { schema: { ...inner.schema, title: found.title, description: found.description ?? inner.schema.description },
      isNullable: others.length < choices.length || inner.isNullable };
  }
}

/** Return the schema that a value would have, if nobody says more. */
function schemaOf(value) {
  if (Array.isArray(value)) return { type: "array", items: value.length ? schemaOf(value[0]) : {} };
  if (value === null) return {};
  if (typeof value === "bigint") return { type: "integer" };
  if (typeof value !== "object") return { type: typeof value };
  return { type: "object", properties: Object.fromEntries(Object.entries(value).map(([name, one]) => [name, schemaOf(one)])) };
}

function objectField(schema, value, reader) {
  const given = value ?? {};
  const needed = new Set(schema.required ?? []);
  const names = [...new Set([...Object.keys(schema.properties ?? {}), ...Object.keys(given)])];
  const fields = names.map((name) =>
    [name, fieldFor(name, schema.properties?.[name] ?? schemaOf(given[name]), given[name], needed.has(name), reader)]);
  return {
    element: made("div", { className: "fields" }, ...fields.map(([, one]) => one.element)),
    read: () => Object.fromEntries(fields.map(([name, one]) => [name, one.read()]).filter(([, typed]) => typed !== undefined)),
    check: () => firstOf(fields.map(([, one]) => one.check())),
  };
}

function listField(schema, value, reader) {
  const list = made("ol", { className: "items" });
  const fields = [];
  const add = (item) => {
    const one = fieldFor(`item ${fields.length + 1}`, schema.items ?? {}, item, true, reader);
    const line = made("li", {}, one.element, button("Remove", () => {
      fields.splice(fields.indexOf(one), 1);
      line.remove();
    }, { className: "quiet" }));
    fields.push(one);
    list.append(line);
  };
  for (const item of value ?? []) add(item);
  return {
    element: made("div", { className: "fields" }, list, button("Add an item", () => add(undefined), { className: "quiet" })),
    read: () => fields.map((one) => one.read()),
    check: () => firstOf(fields.map((one) => one.check())),
  };
}

/** @returns {Field} */
function fieldFor(name, given, value, isNeeded, reader) {
  const { schema, isNullable } = reader.read(given);
  const isObject = schema.type === "object" && schema.properties;
  if (isObject || (schema.type === "array" && schema.items)) {
    const inner = (isObject ? objectField : listField)(schema, value, reader);
    const group = made("fieldset", {}, made("legend", { textContent: name }), hint(schema.description), inner.element);
    return { ...inner, element: group };
  }
  const { input, typed, problem } = inputFor(schema, value);
  const id = `argument-${lastId += 1}`;
  const told = made("p", { className: "problem", id: `${id}-problem` });
  const note = hint(schema.description, `${id}-hint`);
  Object.assign(input, { id });
  input.dataset.argument = name;
  input.setAttribute("aria-describedby", [note && note.id, told.id].filter(Boolean).join(" "));
  const isEmpty = () => input.type !== "checkbox" && input.value === "" && !(schema.type === "string" && isNeeded && !isNullable);
  const label = made("label", { for: id }, name, isNeeded ? null : made("span", { className: "muted", textContent: " optional" }));
  return {
    element: made("div", { className: input.type === "checkbox" ? "field check" : "field" }, label, input, note, told),
    read: () => (isEmpty() ? (isNullable ? null : undefined) : typed()),
    check: () => {
      const wrong = isEmpty() ? (isNeeded && !isNullable ? "This is needed." : "") : problem();
      told.textContent = wrong;
      input.setAttribute("aria-invalid", String(Boolean(wrong)));
      return wrong ? input : null;
    },
  };
}

function inputFor(schema, value) {
  const choices = schema.enum ?? (schema.const === undefined ? null : [schema.const]);
  if (choices) {
    const options = choices.map((one, place) => made("option", { value: String(place), textContent: String(one), selected: one === value }));
    const input = made("select", {}, choices.includes(value) ? null : made("option", { value: "", textContent: "choose", selected: true }), ...options);
    return { input, typed: () => choices[input.value], problem: () => "" };
  }
  if (schema.type === "boolean") {
    const input = made("input", { type: "checkbox", checked: Boolean(value ?? schema.default) });
    return { input, typed: () => input.checked, problem: () => "" };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const input = made("input", { type: "text", inputMode: "decimal", value: String(value ?? schema.default ?? "") });
    return { input, typed: () => numberOf(input.value.trim()), problem: () => problemOfNumber(schema, input.value.trim()) };
  }
  const input = made("textarea", { rows: 1, className: "grows" });
  if (schema.type === "string") {
    input.value = value ?? schema.default ?? "";
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

const firstOf = (inputs) => inputs.find((input) => input !== null) ?? null;

customElements.define("argument-form", ArgumentForm);
