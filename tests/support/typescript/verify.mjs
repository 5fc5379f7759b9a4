// Verifies logs with examples/verify-log.mjs, a line of JSON each, and answers each with a line: its verdict.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { publicKeysIn, verifyLog } from "../../../examples/verify-log.mjs";

const machine = JSON.parse(readFileSync(new URL("../../../diagrams/rendered/machine.json", import.meta.url), "utf8"));

for await (const line of createInterface({ input: process.stdin })) {
  const { text, key, publicKey, withMachine } = JSON.parse(line);
  const options = {
    key: key === null ? null : Buffer.from(key, "utf8"),
    publicKeys: publicKey === null ? null : publicKeysIn(publicKey),
    machine: withMachine ? machine : null,
  };
  process.stdout.write(`${JSON.stringify(verifyLog(text, options))}\n`);
}
