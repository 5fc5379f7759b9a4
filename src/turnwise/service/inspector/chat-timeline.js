// What the chat did, as bars along time. A bar opens its records; only the bars in sight are drawn.

import { LANES, barsOf, packed } from "./bars.js";
import { stringify } from "./exact-json.js";
import { chatPath, get, readOn } from "./service.js";
import { asTime, button, duration, empty, isResting, made, onResize, stateData, table, tell } from "./shown.js";
import { TimeScale } from "./time-scale.js";

const ROWS = { call: 5, subagent: 5 };
const LEAST = 0.8; // this and the next ones in rem: they grow with the page's font
const NAME = 6.4;
const HEIGHT = 2;
const TICK = 10;
const EDGE = 1;
const DEEPEST = 8; // doublings

class ChatTimeline extends HTMLElement {
  connectedCallback() {
    this.zoom = made("input", { type: "range", min: 0, max: DEEPEST, step: 0.25, value: 0, id: "zoom" });
    this.zoom.addEventListener("input", () => this.draw());
    const nearer = (by) => () => {
      this.zoom.valueAsNumber += by;
      this.draw();
    };
    this.lanes = made("div", { className: "lanes" });
    this.frame = made("div", { className: "timeline", tabIndex: 0, role: "region", "aria-label": "Timeline" }, this.lanes);
    this.frame.addEventListener("scroll", () => this.paint());
    this.frame.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    onResize([this.frame], () => this.widen());
    this.records = made("div", { className: "records", "aria-live": "polite" }, empty("A bar opens its records. Tab goes from lane to lane, the arrow keys from bar to bar."));
    this.append(
      made("div", { className: "head" }, made("h3", { textContent: "Timeline" }),
        made("div", { className: "zoom" }, made("label", { for: "zoom", textContent: "Zoom" }),
          button("−", nearer(-1), { "aria-label": "Zoom out" }), this.zoom, button("+", nearer(1), { "aria-label": "Zoom in" }))),
      this.frame, made("p", { className: "hint", textContent: "Rests are drawn short; each bar says how long it was. Where the clock was set back, no time passes. Ctrl and the wheel zoom." }), this.records);
  }

  async show(records) {
    try {
      const [told, subagents] = await Promise.all([this.stored(), get(chatPath(this.chatId, "subagents"))]);
      if (records.length < (this.drawnOf ?? 0)) return; // a later question was answered sooner
      this.drawnOf = records.length;
      const { bars, instants } = barsOf(records, told, subagents, new Date().toISOString());
      this.bars = bars;
      this.instants = instants;
      this.scale = new TimeScale(bars.filter(({ lane }) => lane === "state"), isResting);
      this.draw();
    } catch (error) {
      tell(this, error);
    }
  }

  /** Lay the bars out anew if the frame has another width. */
  widen() {
    const { clientWidth } = this.frame;
    if (!this.bars || clientWidth === 0 || clientWidth === this.frameWidth) return;
    this.draw();
  }

  /** Return the events but for parts, which are no bars. */
  async stored() {
    this.told ??= [];
    await readOn(this.told, this.chatId, (event) => event.kind !== "part");
    return this.told;
  }

  turn(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoom.valueAsNumber -= Math.sign(event.deltaY) / 2;
    this.draw(event.clientX - this.frame.getBoundingClientRect().left);
  }

  /** Lay the bars out at this zoom; the instant at `fixed`, in pixels of the frame, keeps its place. */
  draw(fixed = this.frame.clientWidth / 2) {
    const { frame, scale } = this;
    this.rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const name = NAME * this.rem;
    const before = (frame.scrollLeft + fixed - name) / (this.width ?? 1);
    const focused = this.tracks?.find(({ element }) => element.contains(document.activeElement))?.lane;
    this.frameWidth = frame.clientWidth;
    this.width = Math.max(frame.clientWidth - name - EDGE * this.rem, 100) * 2 ** this.zoom.valueAsNumber;
    this.zoom.setAttribute("aria-valuetext", `${(2 ** this.zoom.valueAsNumber).toFixed(1)} times`);
    this.lanes.style.width = `${this.width + name + EDGE * this.rem}px`;
    this.tracks = LANES.map((lane) => this.track(lane, (time) => scale.place(time) * this.width)).filter(Boolean);
    this.axis = made("div", { className: "axis", "aria-hidden": "true" });
    this.lanes.replaceChildren(this.axis, ...this.tracks.map(({ element }) => element));
    frame.scrollLeft = before * this.width - fixed + name;
    this.paint();
    this.tracks.find(({ lane }) => lane === focused)?.track.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  track(lane, pixel) {
    const bars = this.bars.filter((one) => one.lane === lane);
    if (!bars.length) return null;
    const items = packed(bars, pixel, { rows: ROWS[lane] ?? 1, least: LEAST * this.rem });
    const track = made("div", { className: "track" });
    track.style.height = `${(Math.max(...items.map((item) => item.row)) + 1) * HEIGHT}rem`;
    const element = made("div", { className: "lane", role: "group", "aria-label": `${lane} bars` },
      made("span", { className: "name", textContent: lane }), track);
    const found = { lane, items, track, element, drawn: new Map(), at: this.at?.[lane] ?? 0 };
    element.addEventListener("keydown", (event) => this.move(event, found));
    return found;
  }

  /** Draw the bars and the times in sight. A bar that stays is not made again: the focus may be on it. */
  paint() {
    const { frame } = this;
    const [from, to] = [frame.scrollLeft - frame.clientWidth, frame.scrollLeft + 2 * frame.clientWidth];
    for (const track of this.tracks ?? []) {
      track.at = Math.min(track.at, track.items.length - 1);
      track.items.forEach((item, place) => {
        const isSeen = place === track.at || (item.right > from && item.left < to);
        const known = track.drawn.get(item);
        if (isSeen && !known) {
          const element = this.barOf(track, item, place);
          const next = track.items.slice(place + 1).find((one) => track.drawn.has(one));
          track.track.insertBefore(element, track.drawn.get(next) ?? null);
          track.drawn.set(item, element);
        } else if (!isSeen && known) {
          known.remove();
          track.drawn.delete(item);
        }
      });
    }
    this.drawAxis(from, to);
  }

  drawAxis(from, to) {
    if (!this.axis) return;
    const ticks = [];
    const step = TICK * this.rem;
    const between = this.scale.time(step / this.width) - this.scale.time(0);
    const fractionalSecondDigits = between < 1000 ? 3 : 1;
    for (let x = Math.max(0, Math.floor(from / step) * step); x < Math.min(to, this.width - step / 2); x += step) {
      const at = new Date(this.instants.clock(this.scale.time(x / this.width)));
      const tick = made("span", { textContent: at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits }) });
      tick.style.left = `${NAME * this.rem + x}px`;
      ticks.push(tick);
    }
    this.axis.replaceChildren(...ticks);
  }

  barOf(track, item, place) {
    const [one] = item.bars;
    const isOne = item.bars.length === 1;
    const name = isOne ? one.name : `${item.bars.length} ${track.lane}s`;
    const took = duration(Math.max(...item.bars.map((bar) => bar.to)) - one.from);
    const element = made("button", {
      type: "button", className: "bar", title: `${name}: ${took}`, "aria-label": `${track.lane} ${name}, ${took}`,
      tabIndex: place === track.at ? 0 : -1, data: { lane: track.lane, ...isOne && one.state && stateData(one.state) },
      on: { click: () => this.open(track, item, `${track.lane} ${name}, ${took}`).catch((error) => tell(this, error)) },
    });
    element.append(made("span", { textContent: name }));
    element.style.left = `${item.left}px`;
    element.style.top = `${item.row * HEIGHT + 0.13}rem`;
    element.style.width = `${item.right - item.left - 2}px`;
    return element;
  }

  /** Move the focus within a lane. */
  move(event, track) {
    const to = { ArrowRight: track.at + 1, ArrowLeft: track.at - 1, Home: 0, End: track.items.length - 1 }[event.key];
    if (to === undefined || !track.items[to]) return;
    event.preventDefault();
    track.drawn.get(track.items[track.at])?.setAttribute("tabindex", "-1");
    track.at = to;
    this.at = { ...this.at, [track.lane]: to };
    this.paint();
    const element = track.drawn.get(track.items[to]);
    element.tabIndex = 0;
    element.focus();
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Show the records of a bar; those of a subagent are its own log's. */
  async open(track, item, caption) {
    track.drawn.get(track.items[track.at])?.setAttribute("tabindex", "-1");
    track.at = track.items.indexOf(item);
    track.drawn.get(item)?.setAttribute("tabindex", "0");
    const links = item.bars.filter((one) => one.chatId).map((one) =>
      made("a", { href: `#/chats/${encodeURIComponent(one.chatId)}`, textContent: `Open ${one.name}` }));
    const records = (await Promise.all(item.bars.map(async (one) =>
      (one.chatId ? get(chatPath(one.chatId, "audit")) : one.records)))).flat();
    const rows = records.map((record) => [
      String(record.version ?? record.seq ?? record.call_id ?? ""),
      record.trigger ?? record.phase ?? record.outcome ?? record.type ?? "", asTime(record.at), folded(record),
    ]);
    this.records.replaceChildren(...links, table(`Records of ${caption}`, ["number", "what", "at", "record"], rows));
  }
}

function folded(record) {
  return made("details", {}, made("summary", {}, made("span", { className: "muted line", textContent: stringify(record).slice(0, 160) })),
    made("pre", { textContent: stringify(record, 1) }));
}

customElements.define("chat-timeline", ChatTimeline);
