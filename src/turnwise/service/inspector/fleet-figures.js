// Figures of a fleet, from the logs of chats.

/**
 * Return how long work took, in milliseconds, by a chat's log; `isResting` says of a state whether
 * a chat rests in it. Where the clock was set back, no time has passed.
 *
 * @returns {{ ended: number, took: number, waited: number }[]} for each time that it was at work: when it came to rest,
 *   after how long, and how much of that it waited for a worker
 */
export function spellsOf(records, isResting) {
  const found = [];
  let spell = null;
  let before = 0;
  for (const { source, target, at } of records) {
    const now = Date.parse(at);
    if (spell !== null) {
      const passed = Math.max(now - before, 0);
      spell.took += passed;
      if (source === "pending") spell.waited += passed;
    }
    before = now;
    if (spell === null && !isResting(target)) {
      spell = { took: 0, waited: 0 };
    } else if (spell !== null && isResting(target)) {
      found.push({ ended: now, ...spell });
      spell = null;
    }
  }
  return found;
}

/** Counts started turns, also those of chats deleted since. */
export class TurnCount {
  constructor() {
    this.turns = new Map();
    this.begun = 0;
  }

  /** Look at the chats that there are, and return the count: what matters is how much it grows. */
  look(chats) {
    for (const { id, turn } of chats) {
      this.begun += turn - (this.turns.get(id) ?? 0);
      this.turns.set(id, turn);
    }
    return this.begun;
  }
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
