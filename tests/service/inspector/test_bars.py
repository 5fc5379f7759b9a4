"""The timeline's bars and their layout: the page's own module, run in Node."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.node import NODE, needs_node

INSPECTOR = Path(__file__).parents[3] / "src" / "turnwise" / "service" / "inspector"
ANY_CLOCK = """
const { barsOf } = await import(`${process.argv[1]}/bars.js`);
const { spellsOf } = await import(`${process.argv[1]}/fleet-figures.js`);
const { TimeScale } = await import(`${process.argv[1]}/time-scale.js`);
let seed = 1;
const drawn = (most) => Math.floor(((seed = (seed * 48271) % 2147483647) / 2147483647) * most);
const STATES = ["waiting", "pending", "streaming", "executing_tools", "compacting", "error"];
const isResting = (state) => ["waiting", "error"].includes(state);
const wrong = new Set();
for (let world = 0; world < 3000; world += 1) {
  let clock = Date.parse("2026-01-01T00:00:00Z"), seq = 0, source = null;
  const tick = () => {
    const steps = [0, 0, 1000, drawn(60_000), drawn(60_000), -1000, drawn(9e6) - 4.5e6, (drawn(3) - 1) * 3e11];
    clock = Math.min(Math.max(clock + steps[drawn(steps.length)], -6e13), 2e14);
    return new Date(clock).toISOString();
  };
  const records = [], told = [];
  const tell = (kind, data) => {
    told.push({ kind, seq: (seq += 1), at: new Date(clock).toISOString(), ...data });
  };
  for (let version = 1; version < 3 + drawn(12); version += 1) {
    const at = tick(), target = STATES[drawn(STATES.length)], first = seq + 1;
    tell("status", {});
    const call = { type: "tool_call", call_id: `c${version}`, name: "look" };
    if (drawn(2)) tell("message", { message: { parts: [call] } });
    records.push({ version, trigger: drawn(5) ? "claimed" : "interrupt", actor: "a", source, target, at, step: drawn(3),
      attempt: drawn(3), writes: drawn(5) ? [{ kind: "events", id: `${first}-${seq}` }] : [] });
    source = target;
    while (drawn(2)) {
      tick();
      if (drawn(2)) tell("tool_result", { call_id: `c${version}` });
      else tell("compaction", { phase: ["started", "finished", "failed"][drawn(3)], step: 1 });
    }
  }
  const subagents = [{ id: "h", created_at: tick(), updated_at: tick(), state: "waiting" }];
  const { bars, instants } = barsOf(records, told, subagents, tick());
  const stays = bars.filter(({ lane }) => lane === "state");
  const scale = new TimeScale(stays, isResting);
  const ascend = (...values) => values.every((value, place) => !place || values[place - 1] <= value);
  const claims = {
    bars: bars.every(({ from, to }) => ascend(stays[0].from, from, to, stays.at(-1).to)),
    gaps: stays.every((stay, place) => !place || stay.from === stays[place - 1].to),
    places: stays.every(({ from, to }) => ascend(0, scale.place(from), scale.place(to), 1.001)),
    order: ascend(...records.map((record) => instants.of(record))),
    clock: instants.clock(instants.now) === clock,
    spells: spellsOf(records, isResting).every(({ took, waited }) => ascend(0, waited, took)),
  };
  for (const [claim, holds] of Object.entries(claims)) if (!holds) wrong.add(claim);
}
console.log(JSON.stringify([...wrong]));
"""
"""Draws chats whose clock stopped, went back, or jumped by years: no bar ends before it begins or off the page."""


@pytest.mark.deep
@needs_node
def test_bars_stay_ordered_whatever_the_clock() -> None:
    assert _run(ANY_CLOCK) == []


def _run(script: str, *arguments: str) -> Any:
    asked = [NODE, "--input-type=module", "-e", script, str(INSPECTOR), *arguments]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
