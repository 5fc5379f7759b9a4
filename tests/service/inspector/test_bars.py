"""What bars there are and how they are laid out: the page's own module, run in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.node import NODE, needs_node
from turnwise import ClientTool, Engine, ModelError, ToolResult
from turnwise.persistence.audit.record import to_json
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.clock import ManualClock

INSPECTOR = Path(__file__).parents[3] / "service" / "inspector"
ANY_BARS = """
const { packed } = await import(`${process.argv[1]}/bars.js`);
let seed = 1;
const drawn = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
const wrong = [];
for (let world = 0; world < 20000; world += 1) {
  const scale = drawn() * 3, least = drawn() * 20;
  const bars = Array.from({ length: 1 + Math.floor(drawn() * 6) }, () => {
    const from = drawn() * 1000;
    return { from, to: from + (drawn() < 0.5 ? 0 : drawn() * 300) };
  });
  try {
    const items = packed(bars, (time) => time * scale, { rows: 1 + (world % 3), least });
    if (items.flatMap((item) => item.bars).length !== bars.length) wrong.push("lost");
    if (items.some((item) => item.right < item.left + least)) wrong.push("narrow");
  } catch (error) {
    wrong.push(error.message);
  }
}
console.log(JSON.stringify(wrong));
"""
"""Lays out bars at odd places: whatever the rounding, each is drawn once, and wide enough to be hit."""


ANY_CLOCK = """
const { barsOf } = await import(`${process.argv[1]}/bars.js`);
const { spellsOf } = await import(`${process.argv[1]}/fleet-figures.js`);
const { TimeScale } = await import(`${process.argv[1]}/time-scale.js`);
let seed = 1;
const drawn = (most) => Math.floor(((seed = (seed * 48271) % 2147483647) / 2147483647) * most);
const STATES = ["waiting", "pending", "streaming", "executing_tools", "compacting", "error"];
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
    told.push({ kind, data: { seq: (seq += 1), at: new Date(clock).toISOString(), ...data } });
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
  const helpers = [{ id: "h", created_at: tick(), updated_at: tick(), state: "waiting" }];
  const { bars, instants } = barsOf(records, told, helpers, tick());
  const stays = bars.filter(({ lane }) => lane === "state");
  const scale = new TimeScale(stays);
  const ascend = (...values) => values.every((value, place) => !place || values[place - 1] <= value);
  const claims = {
    bars: bars.every(({ from, to }) => ascend(stays[0].from, from, to, stays.at(-1).to)),
    gaps: stays.every((stay, place) => !place || stay.from === stays[place - 1].to),
    places: stays.every(({ from, to }) => ascend(0, scale.place(from), scale.place(to), 1.001)),
    order: ascend(...records.map((record) => instants.of(record))),
    clock: instants.clock(instants.now) === clock,
    spells: spellsOf(records).every(({ took, waited }) => ascend(0, waited, took)),
  };
  for (const [claim, holds] of Object.entries(claims)) if (!holds) wrong.add(claim);
}
console.log(JSON.stringify([...wrong]));
"""
"""Draws chats whose clock stood still, went back, and jumped by years: no bar ends before it begins or off the page."""

CALLS = """
const { barsOf } = await import(`${process.argv[1]}/bars.js`);
const { records, told } = JSON.parse(process.argv[2]);
const present = new Date(Date.parse(records.at(-1).at) + 3_600_000).toISOString();
const { bars, instants } = barsOf(records, told, [], present);
const calls = bars.filter(({ lane }) => lane === "call");
console.log(JSON.stringify(calls.map(({ name, to, records }) => [name, to === instants.now, records.length])));
"""
"""A chat's calls, seen an hour after its last change: their names, whether they go on, how many records each has."""
ANSWERED = [
    {"role": "user", "content": "The weather?"},
    {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "call_id": "a1", "name": "weather", "arguments": {}},
            {"type": "tool_call", "call_id": "a2", "name": "search", "arguments": {}, "executor": "provider"},
            {"type": "tool_result", "call_id": "a2", "name": "search", "output": "Rain."},
        ],
    },
    {"role": "tool", "parts": [{"type": "tool_result", "call_id": "a1", "name": "weather", "output": "Sun."}]},
    {"role": "assistant", "content": "Sun."},
]


@pytest.mark.deep
@needs_node
@pytest.mark.parametrize("script", [ANY_BARS, ANY_CLOCK], ids=["places", "clocks"])
def test_bars_stay_ordered_whatever_the_clock(script: str) -> None:
    assert _run(script) == []


@needs_node
async def test_call_bar_ends_with_answer_or_cut() -> None:
    """As in `turnwise.diagrams.timeline`: the provider's own calls are none, an erased one does not begin anew."""
    pick = ClientTool("pick", "Pick a date.", {"type": "object"})
    model = ScriptedModel([Reply(calls=[Call("pick", {})]), "Done.", Reply(calls=[Call("pick", {})])])
    async with Engine("sqlite://", model=model) as engine:
        edited = await engine.create_chat(client_tools=[pick])
        await engine.ask(edited.id, "One")
        await engine.edit_message(edited.id, "m1", "Two")
        await engine.wait(edited.id, until=["waiting"])
        await engine.ask(edited.id, "Three")
        imported = await engine.create_chat(history=ANSWERED)
        lives = [await _life(engine, edited.id), await _life(engine, imported.id)]
        await engine.erase(imported.id, messages=["m2"])
        lives.append(await _life(engine, imported.id))

    cut, whole, erased = [_run(CALLS, life) for life in lives]
    assert cut == [["pick", False, 2], ["pick", True, 1]]
    assert whole == erased == [["weather", False, 2]]


PAST = """
const { seqAt } = await import(`${process.argv[1]}/instants.js`);
const { barsOf } = await import(`${process.argv[1]}/bars.js`);
const { records, told } = JSON.parse(process.argv[2]);
const { instants } = barsOf(records, told, [], records.at(-1).at);
const lasted = instants.now - Date.parse(records[0].at);
console.log(JSON.stringify([records.map(({ version }) => seqAt(records, version)), lasted]));
"""
"""The number of the last event at each version, and how many milliseconds are drawn."""


@needs_node
async def test_erasure_extends_past_and_time() -> None:
    """Its record states the digests of old events anew, before those of its own; or of old ones alone."""
    pick, clock = ClientTool("pick", "Pick a date.", {"type": "object"}), ManualClock()
    no_key = Reply(error=ModelError("authentication"))
    model = ScriptedModel([Reply(calls=[Call("pick", {"from": "Friday"})]), "Done.", no_key, "At last."])
    async with Engine("sqlite://", model=model, clock=clock) as engine:
        chat = await engine.create_chat(client_tools=[pick])
        open_call = (await engine.ask(chat.id, "One")).open_calls[0]
        await engine.submit_tool_results(chat.id, [ToolResult(open_call.call_id, "Friday")])
        await engine.wait(chat.id)
        await engine.ask(chat.id, "Two")
        await engine.resume(chat.id)
        numbers = [(await engine.wait(chat.id)).last_seq]
        for what in ({"messages": ["m2"]}, {"what": ["errors"]}):
            await clock.advance(3600)
            numbers.append((await engine.erase(chat.id, **what)).chat.last_seq)
        seen, lasted = _run(PAST, await _life(engine, chat.id))
    assert seen == sorted(seen)
    assert seen[-3:] == numbers
    assert numbers[0] < numbers[1] == numbers[2]
    assert lasted == 2 * 3_600_000


async def _life(engine: Engine, chat_id: str) -> str:
    records = [json.loads(to_json(record)) for record in await engine.audit(chat_id)]
    told = [
        {"kind": event.kind, "seq": event.seq, "data": json.loads(msgspec.json.encode(event))}
        async for event in engine.events(chat_id, follow=False)
        if event.kind != "part"
    ]
    return json.dumps({"records": records, "told": told})


def _run(script: str, *given: str) -> Any:
    asked = [NODE, "--input-type=module", "-e", script, str(INSPECTOR), *given]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
