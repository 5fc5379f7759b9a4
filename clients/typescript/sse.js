// Parses server-sent events, as https://html.spec.whatwg.org/multipage/server-sent-events.html says.

/** @typedef {{ id?: string, event: string, data: string, retry?: number }} ServerSentEvent */

/** The comment by which a service says that all was told. */
const END = ": end";

/**
 * Takes text in pieces, cut wherever the network has cut it, and gives back whole server-sent events; `end` for the comment
 * that says so.
 */
export class Parser {
  #rest = "";
  #afterReturn = false;
  /** @type {Partial<ServerSentEvent>} */
  #event = {};
  /** @type {string[]} */
  #data = [];

  /**
   * Yield the events that end in this piece of text.
   *
   * @param {string} text
   * @returns {Generator<ServerSentEvent>}
   */
  *take(text) {
    const piece = this.#afterReturn && text.startsWith("\n") ? text.slice(1) : text;
    this.#afterReturn = text.endsWith("\r") || (this.#afterReturn && text === "");
    const lines = (this.#rest + piece).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        yield* this.#ended();
      } else if (line === END) {
        yield { event: "end", data: "" };
      } else {
        this.#read(line);
      }
    }
  }

  *#ended() {
    const { event = "message", ...more } = this.#event;
    if (this.#data.length > 0 || more.retry !== undefined) {
      yield { ...more, event, data: this.#data.join("\n") };
    }
    this.#event = {};
    this.#data = [];
  }

  /** @param {string} line */
  #read(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      this.#data.push(value);
    } else if (name === "event") {
      this.#event.event = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.#event.id = value;
    } else if (name === "retry" && /^\d+$/.test(value)) {
      this.#event.retry = Number(value);
    }
  }
}
