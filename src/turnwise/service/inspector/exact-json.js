// JSON in which whole numbers keep all their digits: an id may be longer than a number of JavaScript is exact.

const WHOLE = /^-?\d+$/;
const LONG = /\d{16}/;

/** Return a value of JSON; whole numbers that a number cannot hold are BigInts, where the browser shows their digits. */
export function parse(text) {
  const read = (_, value, told) => (typeof value === "number" && told ? numberOf(told.source) : value);
  return JSON.parse(text, LONG.test(text) ? read : undefined); // few texts have such a number, and this reads slowly
}

/** Return what a value is in JSON. */
export const stringify = (value, space) => JSON.stringify(value, (_, one) => exact(one), space);

/** Return what `stringify` makes of a value, with the names of each object in order. */
export const canonical = (value) => JSON.stringify(value, (_, one) => exact(isObject(one) ? ordered(one) : one));

/** Return a number as it was written. */
export function numberOf(text) {
  const number = Number(text);
  return WHOLE.test(text) && !Number.isSafeInteger(number) && "rawJSON" in JSON ? BigInt(text) : number;
}

const exact = (value) => (typeof value === "bigint" ? JSON.rawJSON(String(value)) : value);
const isObject = (value) => value && typeof value === "object" && !Array.isArray(value);
const ordered = (value) => Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
