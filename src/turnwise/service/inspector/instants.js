// When things happened in a chat's life. A clock may be set back, and chats move between machines: time goes on.

/**
 * @typedef {object} Instant
 * @property {number} at the time of the clock, in milliseconds
 * @property {number} drawn where on the axis of time that is: as far from the first instant as time has passed since
 */

export class Instants {
  /**
   * @param {{ at: string }[]} records the log
   * @param {{ at: string, seq: number }[]} events
   * @param {string} present what this browser's clock says
   */
  constructor(records, events, present) {
    /** @type {Instant[]} */
    this.all = [];
    this.places = new Map();
    for (const one of inOrder(records, events)) {
      this.places.set(one, this.all.length);
      this.all.push(after(this.all.at(-1), Date.parse(one.at)));
    }
    this.all.push(after(this.all.at(-1), Date.parse(present)));
  }

  /** Where the present is drawn. */
  get now() {
    return this.all.at(-1).drawn;
  }

  /** Return where a record or an event is drawn. */
  of(one) {
    return this.all[this.places.get(one)].drawn;
  }

  /** Return where a time of another chat is drawn: the last place with that time on this chat's axis. */
  at(text) {
    const at = Date.parse(text);
    const place = this.all.findLastIndex((one) => one.at <= at);
    if (place < 0) return this.all[0].drawn;
    return Math.min(after(this.all[place], at).drawn, (this.all[place + 1] ?? this.all[place]).drawn);
  }

  /** Return the time at a place of the axis. */
  clock(drawn) {
    const one = this.all.findLast((each) => each.drawn <= drawn) ?? this.all[0];
    return one.at + drawn - one.drawn;
  }
}

/** Return the instant after another one: where the clock went back, no time has passed. */
function after(before, at) {
  return { at, drawn: before ? before.drawn + Math.max(at - before.at, 0) : at };
}

/** Return the number of the last event of a version. The versions of a commit share its last event. */
export function seqAt(records, version) {
  let seq = 0;
  for (const record of records) {
    const before = seq;
    [, seq] = toldIn(record, before);
    if (record.version >= version && (seq > before || record.writes.some((write) => write.kind === "facts"))) break;
  }
  return seq;
}

/** Return the numbers of a record's first and last event, behind those before: an erasure names old events, too. */
function toldIn(record, before) {
  const spans = record.writes.filter((write) => write.kind === "events").map((write) => write.id.split("-").map(Number));
  return spans.find(([first]) => first > before) ?? [before + 1, before];
}

/** Yield records and events as they were written. A record names its events by their numbers. */
function* inOrder(records, events) {
  let next = 0;
  let last = 0;
  for (const record of records) {
    const [first, end] = toldIn(record, last);
    while (next < events.length && events[next].seq < first) yield events[next++];
    last = end;
    yield record;
  }
  yield* events.slice(next);
}
