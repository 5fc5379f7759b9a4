// Folds event logs, a line of JSON each, and answers each with a line: what every beginning of the log folds to, and what
// each of these becomes when the rest is folded onto it. Everything is frozen, so that whoever changes it raises an error.

import { createInterface } from "node:readline";
import { fold, liveText } from "../../../clients/typescript/index.js";

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(answer(frozen(JSON.parse(line))))}\n`);
}

function answer({ events, transcript }) {
  try {
    const cuts = Array.from({ length: events.length + 1 }, (_, cut) => cut);
    const beginnings = cuts.map((cut) => frozen(fold(events.slice(0, cut), transcript)));
    return {
      beginnings,
      texts: beginnings.map(liveText),
      wholes: cuts.map((cut) => fold(events.slice(cut), beginnings[cut])),
      one_by_one: events.reduce((folded, event) => frozen(fold([event], folded)), beginnings[0]),
      again: fold(events, beginnings.at(-1)),
    };
  } catch (error) {
    return { error: String(error) };
  }
}

function frozen(value) {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}
