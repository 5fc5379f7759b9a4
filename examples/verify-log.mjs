// Checks an exported audit log without turnwise: docs/audit-format.md is all that this was written from.
//
//   node examples/verify-log.mjs LOG [--key FILE] [--public-key FILE] [--machine FILE]
//
// It checks the form of every line, their order, the chain, that no end is cut off, the signature, and that each
// transition is a row of the declared machine. It exits with 0 if the log is sound, 1 if not, 2 for misuse.

import { createHash, createHmac, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const FORMAT = "turnwise-audit/1";
const GENESIS = "0".repeat(64);
const WRITE = { kind: "string", id: "string", digest: "string" };
const RECORD = {
  chat_id: "string", version: "count", trigger: "string", source: "string or null", target: "string", actor: "string",
  reason: "string or null", turn: "count", step: "count", attempt: "count", writes: "list", at: "string",
  prev: "string", hash: "string",
};
const DIGITS = { head: 64, signature: 64, key_id: 16, ed25519: 128 }; // of the fields of a checkpoint, beside count

class Finding extends Error {
  constructor(position, problem) {
    super(problem);
    this.position = position;
  }
}

const refuseIf = (condition, position, problem) => { if (condition) throw new Finding(position, problem); };

function kindOf(value) {
  if (Array.isArray(value)) return "list";
  if (Number.isSafeInteger(value) && value >= 0) return "count";
  return value === null ? "null" : typeof value;
}

/** Returns the canonical JSON of a value. JSON.stringify spells text and whole numbers as the format wants them. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (kindOf(value) !== "object") return JSON.stringify(value);
  const fields = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${fields.join(",")}}`;
}

/** Returns the JSON object of a line; refuses what JSON.parse forgives: repeated names, 1.0 for 1, half a character. */
function objectOf(line, position) {
  let names = 0, value;
  try {
    value = JSON.parse(line, function (name, inner) {
      names += Array.isArray(this) ? 0 : 1;
      if (!name.isWellFormed() || (typeof inner === "string" && !inner.isWellFormed())) throw new Error("no Unicode");
      return inner;
    });
  } catch (error) {
    throw new Finding(position, `the line cannot be read: ${error.message}`);
  }
  const bare = line.replace(/"(?:[^"\\]|\\.)*"/g, '"');
  refuseIf(kindOf(value) !== "object", position, "the line is no JSON object");
  refuseIf((bare.match(/"\s*:/g) ?? []).length !== names - 1, position, "a field is named twice"); // the root has one
  refuseIf(/\d[.eE]/.test(bare), position, "a number is not spelled as a whole number");
  return value;
}

function demand(value, fields, position, what) {
  const same = kindOf(value) === "object" && Object.keys(value).sort().join() === Object.keys(fields).sort().join();
  refuseIf(!same, position, `${what} has exactly the fields ${Object.keys(fields).join(", ")}`);
  for (const [name, kinds] of Object.entries(fields))
    refuseIf(!kinds.split(" or ").includes(kindOf(value[name])), position, `the field ${name} must hold a ${kinds}`);
}

function isTime(text) {
  const [, seconds] = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(?!000000)\d{6})?\+00:00$/.exec(text) ?? [];
  const at = new Date(`${seconds}Z`);
  return !Number.isNaN(at.getTime()) && at.toISOString().startsWith(seconds) && !text.startsWith("0000");
}

function checkRecord(record, { chatId, count, head }) {
  const version = count + 1;
  demand(record, RECORD, version, "a record");
  record.writes.forEach((write) => demand(write, WRITE, version, "a write"));
  refuseIf(!isTime(record.at), version, "the time is not spelled as ISO 8601 in UTC");
  const covered = record.reason === null || !record.writes.some((write) => write.kind === "reason");
  refuseIf(!covered, version, "the field reason holds text that no hash covers");
  refuseIf(record.version !== version, version, `version ${version} belongs here`);
  refuseIf(record.chat_id !== chatId, version, "it is of another chat");
  refuseIf(record.prev !== head, version, "prev is not the hash before it");
  const { hash, ...hashed } = record;
  const found = createHash("sha256").update(`${head}\n${canonical(hashed)}`, "utf8").digest("hex");
  refuseIf(hash !== found, version, "hash is not that of its content");
}

/** What is asked of each record, in this order, by the names that turnwise's own verifier has for it. */
const CHECKS = {
  trigger_is_declared: ({ trigger }, _, machine) =>
    Object.hasOwn(machine.triggers, trigger) ? null : `the machine has no trigger ${trigger}`,
  source_is_where_the_chat_stood: ({ trigger, source }, { state }) =>
    trigger === "repaired" || source === state ? null : `it starts from ${source}, but the chat was in ${state}`,
  create_comes_first: ({ trigger }, { state }) =>
    state !== null || trigger === "create" ? null : "a chat begins with create",
  archive_is_closed: ({ trigger }, { archived }, machine) =>
    !archived || machine.triggers[trigger].while_archived ? null : "the chat is archived",
  table_has_the_row: ({ trigger, source, target }, _, machine) => {
    const place = source === null ? machine.new : machine.states.includes(source) ? source : machine.unknown;
    const isRow = (row) => row.trigger === trigger && row.source === place && row.target === target;
    return machine.rows.some(isRow) ? null : `no row leads with ${trigger} from ${place} to ${target}`;
  },
};

function checkTransition(record, chat, machine) {
  for (const check of Object.values(CHECKS)) {
    const problem = check(record, chat, machine);
    refuseIf(problem !== null, record.version, problem);
  }
}

/** Returns the public keys of a PEM file: after a change of keys it holds the new one and the old ones. */
export const publicKeysIn = (pem) =>
  (pem.match(/-----BEGIN PUBLIC KEY-----[^]*?-----END PUBLIC KEY-----/g) ?? [pem]).map((one) => createPublicKey(one));

function checkEnd(line, { chatId, count, head }, { key, publicKeys }) {
  const end = objectOf(line, count + 1);
  const isSound = ([name, value]) => name === "count"
    ? kindOf(value) === "count"
    : Object.hasOwn(DIGITS, name) && typeof value === "string" && /^[0-9a-f]*$/.test(value) && value.length === DIGITS[name];
  const sound = Object.hasOwn(end, "count") && Object.hasOwn(end, "head") && Object.entries(end).every(isSound);
  refuseIf(!sound, count + 1, "the checkpoint holds count, head, and at most signatures, each of its form");
  const first = Math.min(end.count, count) + 1;
  refuseIf(end.count !== count, first, `the checkpoint counts ${end.count} records`);
  refuseIf(end.head !== head, count, "the checkpoint names another head");
  const signed = Buffer.from(canonical({ format: FORMAT, chat_id: chatId, count, head }), "utf8");
  const keyed = !key || end.signature === createHmac("sha256", key).update(signed).digest("hex");
  refuseIf(!keyed, count + 1, "the checkpoint was not signed with this key");
  const signature = end.ed25519 && Buffer.from(end.ed25519, "hex");
  const proven = !publicKeys || (signature && publicKeys.some((one) => verify(null, signed, one, signature)));
  refuseIf(!proven, count + 1, "the checkpoint was not signed with the key of a public key that was given");
}

function isCheckpoint(line) {
  try {
    return Object.hasOwn(objectOf(line, 0), "count");
  } catch {
    return false;
  }
}

/** Returns {ok, position, problem}: `position` is the version of the first record that is bad or missing. */
export function verifyLog(text, { key = null, publicKeys = null, machine = null } = {}) {
  const [first = "", ...lines] = text.split("\n").filter((line) => !/^[ \t\r]*$/.test(line));
  try {
    const header = objectOf(first, 0);
    demand(header, { format: "string", chat_id: "string" }, 0, "the header");
    refuseIf(header.format !== FORMAT, 0, "the header names another format");
    const checkpoint = lines.length && isCheckpoint(lines.at(-1)) ? lines.pop() : null;
    const log = { chatId: header.chat_id, count: 0, head: GENESIS, state: null, archived: false };
    for (const line of lines) {
      const record = objectOf(line, log.count + 1);
      checkRecord(record, log);
      if (machine) checkTransition(record, log, machine);
      const archived = record.trigger === "archived" || (log.archived && record.trigger !== "unarchived");
      Object.assign(log, { count: record.version, head: record.hash, state: record.target, archived });
    }
    refuseIf(!log.count, 1, "there is no record");
    refuseIf(checkpoint === null, log.count + 1, "there is no checkpoint: the end is cut off");
    checkEnd(checkpoint, log, { key, publicKeys });
    return { ok: true, position: null, problem: null };
  } catch (error) {
    if (!(error instanceof Finding)) throw error;
    return { ok: false, position: error.position, problem: error.message };
  }
}

function main() {
  const options = Object.fromEntries(["key", "public-key", "machine"].map((name) => [name, { type: "string" }]));
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  if (positionals.length !== 1) throw new Error("name one log");
  const declared = values.machine ?? new URL("../diagrams/rendered/machine.json", import.meta.url);
  const key = values.key && Buffer.from(readFileSync(values.key, "latin1").replace(/[\r\n]+$/, ""), "latin1");
  const publicKeys = values["public-key"] && publicKeysIn(readFileSync(values["public-key"], "latin1"));
  const given = { key, publicKeys, machine: JSON.parse(readFileSync(declared, "utf8")) };
  const verdict = verifyLog(readFileSync(positionals[0], "utf8"), given);
  console.log(verdict.ok ? "sound" : `not sound at version ${verdict.position}: ${verdict.problem}`);
  return verdict.ok ? 0 : 1;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  try {
    process.exitCode = main();
  } catch (error) {
    console.error(`verify-log: ${error.message}`);
    process.exitCode = 2;
  }
}
