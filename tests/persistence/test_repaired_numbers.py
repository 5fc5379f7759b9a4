"""After a repair every count goes on where it stopped, whatever of it was lost: no number is given twice."""

from __future__ import annotations

import json
from functools import reduce
from typing import Final

import pytest

from support.poisoned_chat import LIFE
from support.rich_chat import engine_on, live
from support.sql_by_hand import by_hand
from turnwise import ChatUnreadable, Engine, Settings
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.facts import Facts

pytestmark = pytest.mark.anyio


def counts(facts: Facts) -> dict[str, object]:
    """Return what a repair must find again, from rows that were not lost."""
    return {
        "turn": facts.turn.number,
        "step": facts.step.number,
        "fence": facts.fence,
        "boundary": facts.history.boundary,
        "compactions": facts.compaction.count,
        "compacted": facts.compaction.step,
        "usage": facts.usage,
        "queue": [queued.id for queued in facts.queue],
        "profile": facts.profile,
    }


LOGS = {
    "sound": (),
    "lost": ("body = '{'",),
    "forged": ('body = replace(body, \'"step":\', \'"step":9223372036854775807, "was":\')',),
}


@pytest.mark.parametrize("log", LOGS)
async def test_a_chat_whose_facts_are_lost_goes_on_counting(either_url: str, log: str) -> None:
    """By its messages and its log, or by its messages alone; a count that could not go on is none."""
    sqlite = either_url.startswith("sqlite")
    async with engine_on(store_from_url(either_url, durability="normal", now=None)) as engine:
        chat_id = await live(engine)
    store = store_from_url(either_url, durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        before = await store.facts(chat_id)
        assert before.turn.number > 1
        assert before.step.number > before.turn.number
        assert before.compaction.count > 0
        history = await engine.messages(chat_id)
        await by_hand(either_url, "UPDATE chats SET facts = '{'" if sqlite else "UPDATE facts SET body = '{'")
        for damage in LOGS[log]:
            await by_hand(either_url, f"UPDATE audit SET {damage}")  # noqa: S608 - ours
        await engine.repair(chat_id)
        after = await store.facts(chat_id)
        known = counts(before) | ({"fence": 0} if log == "lost" else {})
        assert {name: found for name, found in counts(after).items() if found != known[name]} == {}
        assert after.last_seq > before.last_seq
        assert (await engine.messages(chat_id))[: len(history)] == history
        appended = (await engine.messages(chat_id))[len(history) :]
        assert after.serial == before.serial + len(appended)
        assert after.history.length == before.history.length + len(appended)


async def test_the_id_of_a_message_that_was_taken_out_of_the_queue_is_not_given_again(either_url: str) -> None:
    """Its receipt names it for ever, and only the log still tells of it."""
    sqlite = either_url.startswith("sqlite")
    store = store_from_url(either_url, durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        gone = await engine.send_message(chat.id, "never mind", client_id="c1")
        await engine.delete_queued(chat.id, gone.message_id)
        await by_hand(either_url, "UPDATE chats SET facts = '{'" if sqlite else "UPDATE facts SET body = '{'")
        await engine.repair(chat.id)
        assert (await engine.send_message(chat.id, "never mind", client_id="c1")).message_id == gone.message_id
        assert (await engine.send_message(chat.id, "something else")).message_id != gone.message_id


async def test_the_id_of_a_message_whose_row_is_gone_is_not_given_again(either_url: str) -> None:
    """Subscribers have seen another message under it."""
    sqlite = either_url.startswith("sqlite")
    store = store_from_url(either_url, durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        gone = await engine.send_message(chat.id, "hello")
        await engine.interrupt(chat.id)
        await by_hand(either_url, "DELETE FROM messages")
        await by_hand(either_url, "UPDATE chats SET facts = '{'" if sqlite else "UPDATE facts SET body = '{'")
        await engine.repair(chat.id)
        assert (await engine.send_message(chat.id, "something else")).message_id != gone.message_id


BIG: Final = 2**63 - 1
NUMBERS: Final[dict[str, tuple[str, ...]]] = {
    "fence": ("fence",),
    "serial": ("serial",),
    "history version": ("history_version",),
    "turn": ("turn", "number"),
    "step": ("step", "number"),
    "attempt": ("step", "attempt"),
    "history": ("history", "length"),
}
"""The numbers among the facts from which a chat counts on."""


async def test_a_number_from_which_nobody_can_count_on_is_one_chats_trouble(either_url: str) -> None:
    """It is told as what cannot be read, stops no other chat, and is mended by the rows that are sound."""
    sqlite = either_url.startswith("sqlite")
    table, body, key = ("chats", "facts", "id") if sqlite else ("facts", "body", "chat_id")
    columns = {"version": "chats.version", "event_seq": "chats.event_seq"}
    columns |= dict.fromkeys(NUMBERS, f"{table}.{body}") | {"token": "leases.token" if sqlite else "chats.token"}
    store, before = store_from_url(either_url, durability="normal", now=None), {}
    await store.open()
    for name in columns:
        await plans.created(store, name, *LIFE)
        before[name] = await store.facts(name)
    await store.close()  # and forget where they stand
    for name in ("version", "event_seq"):
        await by_hand(either_url, f"UPDATE chats SET {name} = {BIG} WHERE id = '{name}'")  # noqa: S608 - ours
    on, named = ("leases", "chat_id") if sqlite else ("chats", "id")
    await by_hand(either_url, f"UPDATE {on} SET token = {BIG} WHERE {named} = 'token'")  # noqa: S608 - ours
    for name, (*above, last) in NUMBERS.items():
        ((stored,),) = await by_hand(either_url, f"SELECT {body} FROM {table} WHERE {key} = '{name}'")  # noqa: S608 - ours
        told = json.loads(stored)
        reduce(dict.__getitem__, above, told)[last] = BIG
        spelled = json.dumps(told).replace("'", "''")
        await by_hand(either_url, f"UPDATE {table} SET {body} = '{spelled}' WHERE {key} = '{name}'")  # noqa: S608 - ours
    store = store_from_url(either_url, durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        diagnosed = {found.chat_id: {flaw.column for flaw in found.flaws} async for found in engine.diagnose()}
        assert {name: columns[name] in diagnosed.get(name, ()) for name in columns} == dict.fromkeys(columns, True)
        for name in columns:
            with pytest.raises(ChatUnreadable):
                await engine.rename(name, "refused")
            await engine.repair(name)
            after = await store.facts(name)
            known = counts(before[name])
            assert {one: found for one, found in counts(after).items() if found != known[one]} == {}, name
            await engine.rename(name, "goes on")
        assert [found async for found in engine.diagnose()] == []


@pytest.mark.parametrize("log", ["sound", "lost"])
@pytest.mark.parametrize("moves", range(1, 13))
async def test_the_numbers_of_work_under_way_are_not_given_again(either_url: str, moves: int, log: str) -> None:
    """A step of which nothing is stored yet has shown parts under its number; a lease was given under its own."""
    sqlite = either_url.startswith("sqlite")
    store = store_from_url(either_url, durability="normal", now=None)
    life = [
        *(plans.send("hello"), plans.claim(), plans.start(), plans.reply("I look", client=["a"]), plans.submit("a")),
        *(plans.claim(), plans.start(), plans.reply("so"), plans.send("more"), plans.claim(), plans.start()),
        plans.send("waits"),
    ]
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        await plans.created(store, "chat", *life[:moves])
        before = await store.facts("chat")
        await by_hand(either_url, "UPDATE chats SET facts = '{'" if sqlite else "UPDATE facts SET body = '{'")
        for damage in LOGS[log]:
            await by_hand(either_url, f"UPDATE audit SET {damage}")  # noqa: S608 - ours
        await engine.repair("chat")
        after = await store.facts("chat")
        assert after.serial >= before.serial
        if log == "lost":
            return
        known = counts(before)
        assert {name: found for name, found in counts(after).items() if found != known[name]} == {}
        assert verify_records(await store.audit("chat")).ok
