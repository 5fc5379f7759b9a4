"""What a repair works out: of a sound chat nothing, of a damaged one what is left, no number lower than it was."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from msgspec.structs import replace

from support.raw_life import CHAT, damaged, moments, where, without
from support.sql_by_hand import by_hand
from turnwise import Engine, tool
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.repair.marks import is_mark
from turnwise.persistence.repair.raw_chat import PLAUSIBLE, Rows
from turnwise.persistence.repair.repair import PutAside, repair_of
from turnwise.persistence.stored_chat import UNREADABLE_STATE
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.names import Audience, Tail
from turnwise.states.plain import BIGGEST
from turnwise.states.triggers import ClearContext, Repaired

pytestmark = pytest.mark.anyio

EDITED: Final = "m16"
AT: Final = datetime(2026, 11, 22, tzinfo=UTC)
MORE: Final = (
    plans.finish("b"),
    plans.tools_finished(),
    plans.start(),
    plans.reply("Much.", tokens=90),
    plans.fold("Greetings.", 2, "And more."),
    plans.start(),
    plans.reply("Thanks."),
    plans.claim(),
    plans.start(),
    plans.reply("That was all."),
    plans.move(ClearContext()),
    *plans.turn("three", "3"),
    plans.send("bye"),
    plans.claim(),
    plans.start(),
    plans.reply("Bye."),
    EDITED,
)
"""Goes on after the life with a compaction that carries a message, and another boundary, and ends with an edit."""


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


async def test_a_sound_chat_is_left_as_it_is_at_every_moment(either_url: str) -> None:
    for rows, facts in await moments(either_url, *MORE):
        found = repair_of(CHAT, rows, AT)
        assert (found.aside, found.marks, found.flaws) == ((), (), ())
        assert (found.facts, found.head) == (facts, rows["chats"][0]["head"])


async def test_facts_that_are_lost_are_found_again_in_the_other_tables(either_url: str) -> None:
    for rows, facts in await moments(either_url, *MORE):
        found = repair_of(CHAT, _no_facts(rows), AT)
        assert _counts(found.facts) == _counts(facts), facts.version
        assert found.facts.stored_state == UNREADABLE_STATE
        assert [put.table for put in found.aside] == ["chats" if "facts" in rows["chats"][0] else "facts"]
        assert not any(put.deleted for put in found.aside)
        assert found.marks == ()


async def test_facts_of_which_a_part_is_lost_give_no_number_twice(either_url: str) -> None:
    """A count that was set back is brought forward again by what is stored and what the log says."""
    for rows, facts in await moments(either_url, *MORE):
        table, column = ("chats", "facts") if "facts" in rows["chats"][0] else ("facts", "body")
        body = json.loads(rows[table][0][column])
        back = {**body, "serial": 0, "fence": 0, "turn": {"number": 0}, "step": {"number": 0}, "usage": "poison"}
        broken = damaged(rows, table, **{column: json.dumps(back)})
        kept = {"version", "last_seq", "turn", "step", "fence", "serial", "queue", "calls", "lease", "profile"}
        known = _counts(facts)
        for damage in (broken, damaged(broken, "audit", 0, body="poison")):  # what comes after it still counts
            found = repair_of(CHAT, damage, AT)
            assert found.flaws
            after = _counts(found.facts)
            assert {name: after[name] for name in kept} == {name: known[name] for name in kept}, facts.version


async def test_a_message_that_is_put_aside_leaves_a_mark_in_its_place(either_url: str) -> None:
    rows, facts = (await moments(either_url, *MORE))[-1]
    for number, row in enumerate(rows["messages"]):
        found = repair_of(CHAT, damaged(rows, "messages", number, body="poison"), AT)
        (put,) = [one for one in found.aside if one.table == "messages"]
        assert (put.row["position"], put.deleted) == (row["position"], True)
        assert put.problem.startswith("body: ")
        (mark,) = found.marks
        assert is_mark(mark)
        assert (mark.position, mark.created_at) == (row["position"], AT)
        if row["role"] != "tool":
            assert (mark.id, mark.role, mark.audience) == (row["id"], row["role"], row["audience"])
        else:
            assert mark.audience is Audience.user
        assert found.facts.history.length == facts.history.length
        assert found.facts.serial == facts.serial
        assert found.flaws[0].column == "messages.body"


async def test_a_message_that_is_missing_leaves_a_mark_for_the_user(either_url: str) -> None:
    rows, facts = (await moments(either_url, *MORE))[-1]
    for number, row in enumerate(rows["messages"]):
        found = repair_of(CHAT, without(rows, "messages", number), AT)
        marks = [(mark.position, mark.audience) for mark in found.marks]
        assert marks == [(row["position"], Audience.user)], row
        assert found.facts.history.length == facts.history.length
    stray = damaged(rows, "messages", -1, position=10**12, body="poison")
    assert max(mark.position for mark in repair_of(CHAT, stray, AT).marks) <= len(rows["messages"]) + PLAUSIBLE


@tool
async def work(what: str) -> str:
    """Work."""
    return what


@pytest.mark.parametrize("begun", ["fork", "history"])
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
async def test_a_chat_can_be_used_after_one_repair_whichever_message_it_began_with_is_lost(
    either_url: str, begun: str, role: str
) -> None:
    """Its events are told, too: those of SQLite refer to the message's row."""
    model = ScriptedModel([Reply(calls=[Call("work", {"what": "a"}, "k")]), "done", "again"])
    async with Engine(either_url, model=model, tools=[work]) as engine:
        origin = (await engine.create_chat()).id
        version = (await engine.ask(origin, "go")).chat.version
        history = await engine.messages(origin)
        chat = await (
            engine.fork(origin, at_version=version) if begun == "fork" else engine.create_chat(history=history)
        )
        await by_hand(either_url, f"UPDATE messages SET body = '[1]' WHERE role = '{role}' AND chat_id = '{chat.id}'")  # noqa: S608 - an id of ours
    async with Engine(either_url, model=model, tools=[work]) as engine:
        await engine.repair(chat.id)
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        told = [event.message async for event in engine.events(chat.id, follow=False) if event.kind == "message"]
        assert sum(map(is_mark, told)) == (either_url.startswith("sqlite") * (2 if role == "assistant" else 1))
        assert (await engine.ask(chat.id, "go on")).text == "again"


async def test_what_cannot_be_read_is_put_aside_once_and_leaves_its_table(either_url: str) -> None:
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


async def test_the_log_is_no_ones_to_put_aside_and_its_end_is_the_head(either_url: str) -> None:
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


async def test_a_number_that_cannot_be_gone_on_from_is_not_believed(either_url: str) -> None:
    rows, facts = (await moments(either_url))[-1]
    number = where(rows, "audit", version=3)
    for step, after in (
        (BIGGEST - 1, facts.step.number),
        (4_611_686_018_427_387_904, facts.step.number),
        (4_611_686_018_427_387_903, 4_611_686_018_427_387_903),
        (-1, facts.step.number),
        (500, 500),
        ("9", facts.step.number),
    ):
        body = json.dumps({**json.loads(rows["audit"][number]["body"]), "step": step})
        assert repair_of(CHAT, _no_facts(damaged(rows, "audit", number, body=body)), AT).facts.step.number == after
    for kind, id_, told in (
        ("lease", "500", 500),
        ("lease", str(BIGGEST - 1), facts.fence),
        ("usage", "500", facts.fence),
    ):
        record = json.loads(rows["audit"][number]["body"])
        record["writes"].append({"kind": kind, "id": id_, "digest": ""})
        found = repair_of(CHAT, _no_facts(damaged(rows, "audit", number, body=json.dumps(record))), AT)
        assert found.facts.fence == told
    for kind, serial in (("message", 500), ("enqueue", 500), ("receipt", facts.serial)):
        record = json.loads(rows["audit"][number]["body"])
        record["writes"].append({"kind": kind, "id": "m500", "digest": ""})
        found = repair_of(CHAT, _no_facts(damaged(rows, "audit", number, body=json.dumps(record))), AT)
        assert found.facts.serial == serial, kind


async def test_the_last_event_that_is_stored_is_the_last(either_url: str) -> None:
    rows, facts = (await moments(either_url))[-1]
    assert repair_of(CHAT, damaged(rows, "chats", event_seq=1), AT).facts.last_seq == facts.last_seq
    assert repair_of(CHAT, damaged(rows, "chats", event_seq="poison"), AT).facts.last_seq == facts.last_seq
    later = facts.last_seq + 7
    assert repair_of(CHAT, damaged(rows, "chats", event_seq=later), AT).facts.last_seq == later


@pytest.mark.parametrize(
    ("table", "deleted"), [("chats", False), ("facts", False), ("profiles", False), ("calls", True)]
)
def test_a_row_that_is_written_anew_does_not_leave_its_table(table: str, deleted: bool) -> None:  # noqa: FBT001
    put = PutAside(table, {"body": b"\xff", "at": AT, "version": 3}, "bad")
    assert put.deleted is deleted
    assert json.loads(put.body) == {"body": {"hex": "ff"}, "at": AT.isoformat(), "version": 3}


async def test_a_repair_puts_every_unreadable_row_aside_under_its_version_and_replaces_it(either_url: str) -> None:
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
async def test_a_repaired_chat_is_listed_under_the_owner_that_its_profile_names(either_url: str, profile: str) -> None:
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
