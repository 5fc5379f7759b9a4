"""The computed repair: nothing for a valid chat, all recoverable rows of a damaged one, and no number decreases."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.persistence.raw_life import CHAT, damaged, moments, where, without

from support.sql_by_hand import by_hand
from turnwise import Engine, Settings, tool
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_rows import Rows, columns_in, last_seq_in, lines_of
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.integrity.repair import is_mark, repair_of
from turnwise.persistence.stored_chat import UNREADABLE_STATE
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import decide
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Limits
from turnwise.states.names import Audience, Tail
from turnwise.states.triggers import AttemptStarted, ClearContext, Repaired, TransitionContext
from turnwise.testing.conformance import plans

EDITED: Final = "m16"
AT: Final = datetime(2026, 11, 22, tzinfo=UTC)
MORE: Final = (
    plans.finish("b"),
    plans.tools_finished(),
    plans.reply("Much.", tokens=900),
    plans.fold("Greetings.", 2, "And more."),
    plans.start(),
    plans.reply("Thanks."),
    plans.claim(),
    plans.reply("That was all."),
    plans.move(ClearContext()),
    *plans.turn("three", "3"),
    plans.send("bye"),
    plans.claim(),
    plans.reply("Bye."),
    EDITED,
)
"""Continues the life with a compaction that carries a message, and another boundary, and ends with an edit."""


def _no_facts(rows: Rows, garbage: Any = "poison") -> Rows:
    table, column = ("chats", "facts") if "facts" in rows["chats"][0] else ("facts", "body")
    return damaged(rows, table, **{column: garbage})


def _counts(facts: Facts) -> dict[str, object]:
    return {
        "version": facts.version,
        "last_seq": facts.last_seq,
        "turn": facts.turn.number,
        "step": facts.step.number,
        "fence": facts.fence,
        "serial": facts.serial,
        "usage": facts.usage,
        "history": replace(facts.history, tail=Tail.empty) if facts.open_calls else facts.history,
        "compaction": (facts.compaction.step, facts.compaction.count),
        "queue": facts.queue,
        "calls": facts.calls,
        "lease": facts.lease,
        "profile": facts.profile,
    }


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_repair_of_a_sound_chat_changes_nothing(either_url: str) -> None:
    for rows, facts in await moments(either_url, *MORE):
        found = repair_of(CHAT, rows, AT)
        assert (found.aside, found.marks, found.issues) == ((), (), ())
        assert (found.facts, found.head) == (facts, rows["chats"][0]["head"])


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_lost_facts_are_rebuilt_from_other_tables(either_url: str) -> None:
    for rows, facts in await moments(either_url, *MORE):
        found = repair_of(CHAT, _no_facts(rows), AT)
        assert _counts(found.facts) == _counts(facts), facts.version
        assert found.facts.stored_state == UNREADABLE_STATE
        assert [put.table for put in found.aside] == ["chats" if "facts" in rows["chats"][0] else "facts"]
        assert not any(put.deleted for put in found.aside)
        assert found.marks == ()


async def test_rebuilt_counters_never_go_back(either_url: str) -> None:
    """A count that was set back is restored from the rows and the log."""
    for rows, facts in await moments(either_url, *MORE):
        table, column = ("chats", "facts") if "facts" in rows["chats"][0] else ("facts", "body")
        body = json.loads(rows[table][0][column])
        back = {**body, "serial": 0, "fence": 0, "turn": {"number": 0}, "step": {"number": 0}, "usage": "poison"}
        broken = damaged(rows, table, **{column: json.dumps(back)})
        columns = {"version", "last_seq", "turn", "step", "fence", "serial", "queue", "calls", "lease", "profile"}
        known = _counts(facts)
        for damage in (broken, damaged(broken, "audit", 0, body="poison")):  # what comes after it still counts
            found = repair_of(CHAT, damage, AT)
            assert found.issues
            after = _counts(found.facts)
            assert {name: after[name] for name in columns} == {name: known[name] for name in columns}, facts.version


async def test_unreadable_message_becomes_a_mark(either_url: str) -> None:
    rows, facts = (await moments(either_url, *MORE))[-1]
    for number, row in enumerate(rows["messages"]):
        found = repair_of(CHAT, damaged(rows, "messages", number, body="poison"), AT)
        (put,) = [one for one in found.aside if one.table == "messages"]
        assert (put.row["position"], put.deleted) == (row["position"], True)
        assert put.problem.startswith("messages.body: ")
        (mark,) = found.marks
        assert is_mark(mark)
        assert (mark.position, mark.created_at) == (row["position"], AT)
        if row["role"] != "tool":
            assert (mark.id, mark.role, mark.audience) == (row["id"], row["role"], row["audience"])
        else:
            assert mark.audience is Audience.user
        assert found.facts.history.length == facts.history.length
        assert found.facts.serial == facts.serial
        assert found.issues[0].column == "messages.body"


@tool
async def work(what: str) -> str:
    """Work."""
    return what


@pytest.mark.deep
@pytest.mark.parametrize("origin_kind", ["fork", "history"])
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
async def test_chat_works_after_repair_of_inherited_history(either_url: str, origin_kind: str, role: str) -> None:
    """Its events have the mark, too: they refer to the message's row."""
    model = ScriptedModel([Reply(calls=[Call("work", {"what": "a"}, "k")]), "done", "again"])
    async with Engine(either_url, model=model, tools=[work]) as engine:
        origin = (await engine.create_chat()).id
        version = (await engine.ask(origin, "go")).chat.version
        history = await engine.messages(origin)
        chat = await (
            engine.fork(origin, at_version=version) if origin_kind == "fork" else engine.create_chat(history=history)
        )
        await by_hand(
            either_url,
            f"UPDATE messages SET body = '[1]' WHERE role = '{role}'"  # noqa: S608 - an id of ours
            f" AND chat = (SELECT number FROM chats WHERE id = '{chat.id}')",
        )
    async with Engine(either_url, model=model, tools=[work]) as engine:
        await engine.repair(chat.id)
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        messages = [event.message async for event in engine.events(chat.id, follow=False) if event.kind == "message"]
        assert sum(map(is_mark, messages)) == (2 if role == "assistant" else 1)
        assert (await engine.ask(chat.id, "go on")).text == "again"


async def test_doctor_names_tokens_that_were_granted_twice(either_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that compared leases by their token alone did so on a restored database."""
    monkeypatch.setattr("turnwise.states.refusals._is_of_another_worker", lambda _draft: False)
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    await plans.created(store, "sound", *plans.turn("hello", "hi"))
    await plans.created(store, "torn", plans.send("hello"), plans.claim("w"))
    late = TransitionContext(now=AT, limits=Limits(), actor="worker:late")
    await store.change("torn", lambda facts, _now: [decide(facts, AttemptStarted(token=1), late)])
    await store.close()
    async with Engine(either_url, model="demo", settings=Settings(run_worker=False)) as engine:
        (torn,) = [diagnosis async for diagnosis in engine.diagnose()]
    assert (torn.chat_id, torn.issues[0].column) == ("torn", "audit.body")
    assert "token 1 was granted to another" in torn.issues[0].problem


async def test_unreadable_row_is_quarantined_once(either_url: str) -> None:
    rows = (await moments(either_url))[-1][0]
    for table in ("messages", "calls", "queue", "receipts", "usage", "events", "partial_events"):
        if not rows.get(table):
            continue
        number = len(rows[table]) - 1
        kind = {"step": "poison"} if "step" in rows[table][0] else {}
        found = repair_of(CHAT, damaged(rows, table, number, body="poison", **kind), AT)
        gone = [put for put in found.aside if put.deleted]
        assert [put.table for put in gone] == [table]
        assert json.loads(gone[0].body)["body"] == "poison"
    found = repair_of(CHAT, damaged(rows, "calls", where(rows, "calls", call_id="b"), status="cancelled"), AT)
    assert [call.call_id for call in found.facts.calls] == ["a"]
    found = repair_of(CHAT, damaged(rows, "queue", body="poison"), AT)
    assert found.facts.queue == ()
    found = repair_of(CHAT, without(rows, "profiles"), AT)
    assert [put.table for put in found.aside] == ["chats"]


async def test_repair_keeps_log_and_takes_its_head(either_url: str) -> None:
    rows = (await moments(either_url))[-1][0]
    head, count = rows["chats"][0]["head"], len(rows["audit"])
    last = where(rows, "audit", version=count)
    for broken in (
        damaged(rows, "audit", last, body="poison") if "hash" in rows["audit"][0] else rows,
        damaged(rows, "audit", where(rows, "audit", version=2), body="poison"),
        damaged(rows, "chats", head="poison"),
        damaged(rows, "chats", head="f" * 64),
        damaged(rows, "chats", version=1),
    ):
        found = repair_of(CHAT, broken, AT)
        assert found.head == head
        assert found.facts.version == count
        assert {put.table for put in found.aside} <= {"chats"}
    cut = without(rows, "audit", last)
    assert repair_of(CHAT, cut, AT).facts.version == count - 1
    assert repair_of(CHAT, cut, AT).head != head
    for log in ([], [{**rows["audit"][last], "body": "poison", "hash": None}]):
        assert repair_of(CHAT, {**rows, "audit": log}, AT).head == head
        assert repair_of(CHAT, damaged({**rows, "audit": log}, "chats", head="poison"), AT).head == GENESIS


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_store_repair_quarantines_under_its_version(either_url: str) -> None:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    last = await plans.created(store, CHAT, *plans.turn("one", "1"), *plans.turn("two", "2"))
    for damage in ("UPDATE profiles SET body = '{'", "UPDATE messages SET body = '{' WHERE position = 1"):
        await by_hand(either_url, damage)
    error = ErrorInfo(kind="repaired", message="two rows were unreadable")
    repaired = await store.repair(CHAT, plans.plan(plans.move(Repaired(error=error))))
    aside = await by_hand(either_url, "SELECT version, origin FROM quarantine ORDER BY origin")
    assert aside == [(repaired.facts.version, "messages"), (repaired.facts.version, "profiles")]
    assert repaired.facts.version == last.facts.version + 1
    assert await store.facts(CHAT) == repaired.facts
    assert [message.text for message in await store.history(CHAT)][1:] == ["1", "two", "2"]
    assert repair_of(CHAT, await store.raw_rows(CHAT), AT).aside == ()
    await store.close()


@pytest.mark.parametrize("profile", ["lost", "sound"])
async def test_repaired_chat_is_listed_under_its_profile_owner(either_url: str, profile: str) -> None:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    await plans.created(store, CHAT, owner="ann")
    await by_hand(
        either_url, "UPDATE profiles SET body = '{'" if profile == "lost" else "UPDATE chats SET owner = 'eve'"
    )
    repaired = await store.repair(CHAT, plans.plan(plans.move(Repaired(error=ErrorInfo(kind="repaired", message="")))))
    assert repaired.facts.profile.owner == (None if profile == "lost" else "ann")
    listed = {owner: await store.chats(owner=owner, state=None, limit=9, after=None) for owner in ("ann", "eve")}
    assert listed == {"ann": [] if profile == "lost" else [repaired.facts], "eve": []}
    await store.close()


# Readings of a chat's raw rows


def test_last_seq_skips_garbage() -> None:
    events = [{"seq": 3}, {"seq": "poison"}, {"seq": None}, {"seq": 1}]
    assert last_seq_in({"events": events}) == 3
    assert last_seq_in({"events": events, "partial_events": [{"seq": 5}, {"seq": b"9"}, {"seq": 4}]}) == 5
    assert last_seq_in({"events": [{"seq": -1}, {"seq": True}]}) == last_seq_in({}) == 0


def test_every_row_exports_as_json() -> None:
    row = {
        "a": b"\xff\x00",
        "b": memoryview(b"\x01"),
        "c": "half \ud800",
        "d": "grün",
        "e": None,
        "f": [1, "x"],
        "g": 2.5,
    }
    at = datetime(2026, 11, 22, tzinfo=UTC)
    exported = {**row, "a": {"hex": "ff00"}, "b": {"hex": "01"}, "c": "half \\ud800"}
    assert columns_in(row) == exported
    lines = list(lines_of({"messages": [row, {"at": at}], "queue": [], "usage": [{"version": 3}]}))
    assert [json.loads(line) for line in lines] == [
        {"table": "messages", "row": exported},
        {"table": "messages", "row": {"at": "2026-11-22T00:00:00+00:00"}},
        {"table": "usage", "row": {"version": 3}},
    ]
