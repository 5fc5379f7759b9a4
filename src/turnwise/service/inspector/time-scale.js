// Where a time is drawn. Time is even, but a rest is drawn short: a chat may rest for days between two busy seconds.

const RESTS = 0.4;
const FEW = 3;

/** @typedef {{ name: string, from: number, to: number }} Stay a time in a state */

export class TimeScale {
  /**
   * @param {Stay[]} stays in order, without gaps
   * @param {(state: string) => boolean} isResting
   */
  constructor(stays, isResting) {
    const spans = stays.map((stay) => stay.to - stay.from);
    const busy = spans.reduce((sum, span, place) => sum + (isResting(stays[place].name) ? 0 : span), 0) || 1;
    const rests = stays.filter((stay) => isResting(stay.name)).length;
    const longest = (RESTS * busy) / Math.max(rests, FEW);
    const drawn = spans.map((span, place) => (isResting(stays[place].name) ? Math.min(span, longest) : span));
    const whole = drawn.reduce((sum, span) => sum + span, 0) || 1;
    this.times = [...stays.map((stay) => stay.from), stays.at(-1)?.to ?? 0];
    this.places = [0];
    for (const span of drawn) this.places.push(this.places.at(-1) + span / whole);
  }

  /** Return where a time is, from 0 to 1. */
  place(time) {
    return between(this.times, this.places, time);
  }

  /** Return which time is at a place. */
  time(place) {
    return between(this.places, this.times, place);
  }
}

/** Interpolate `values` at the place of `key` among the ascending `keys`. */
function between(keys, values, key) {
  let [low, high] = [0, keys.length - 1];
  if (key <= keys[low]) return values[low];
  if (key >= keys[high]) return values[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (keys[middle] <= key) low = middle;
    else high = middle;
  }
  const span = keys[high] - keys[low];
  return values[low] + (span ? ((key - keys[low]) / span) * (values[high] - values[low]) : 0);
}
