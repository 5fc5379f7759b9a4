// Figures of a fleet, from the logs of chats.

const RESTING = new Set(["waiting", "requires_action", "interrupted", "error"]);

/**
 * Return how long work took, in milliseconds, by a chat's log.
 *
 * @returns {{ ended: number, took: number, waited: number }[]} for each time that it was at work: when it came to rest,
 *   after how long, and how much of that it waited for a worker
 */
export function spellsOf(records) {
  const found = [];
  let begun = null;
  let waited = 0;
  let since = null;
  for (const { source, target, at } of records) {
    const now = Date.parse(at);
    if (source === "pending" && since !== null) waited += now - since;
    since = target === "pending" ? now : null;
    if (begun === null && !RESTING.has(target)) {
      begun = now;
      waited = 0;
    } else if (begun !== null && RESTING.has(target)) {
      found.push({ ended: now, took: now - begun, waited });
      begun = null;
    }
  }
  return found;
}

/** Return the value below which a share of values lies; null of none. */
export function quantile(values, share) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null;
}

/** Count things by what they are called, the most frequent first. */
export function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
