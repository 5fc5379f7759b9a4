"""Families: answers and usage in logs, and whether a subagent is still wanted."""

import dataclasses
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from msgspec.structs import replace
from tests.engine.subagents import Research, asked, calls, lead, waits
from tests.engine.subagents import family as agents_of

from support.audit_records import record
from support.engines import OpenEngine
from support.life import NOW, asking, delegated
from support.rewriting import rewrite
from support.stores import stored_at
from turnwise import Agent, ChatDeleted, ChatNotFound, ChatUnreadable, Engine, Settings, Verdict, delegate
from turnwise.engine.agents.delegate import subagent_id
from turnwise.engine.subagents.answer import unreported_usage
from turnwise.engine.subagents.family import RecordedAnswer, answers_in, is_wanted
from turnwise.engine.subagents.verification import verify_family
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, Profile, TurnFacts
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.states.triggers import Create
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage


def log_of(turns: Sequence[int], answers: Mapping[int, Sequence[str]]) -> list[AuditRecord]:
    """Return a log: the turn of each record, and by version the answering subagent with its version.

    The last record of each turn has usage.
    """
    following = [*turns[1:], None]
    return [
        record(
            version,
            turn=turn,
            writes=(
                *([WriteRecord("usage", "step:1:1", "-")] if turn != following[version - 1] else []),
                *(WriteRecord("subagent", name, "-") for name in answers.get(version, ())),
            ),
        )
        for version, turn in enumerate(turns, 1)
    ]


def subagent(chat_id: str, parent: str) -> Facts:
    """Return the query about a subagent: its id and its parent."""
    return Facts(
        chat_id=chat_id, profile=Profile(created_at=NOW, parent=parent, parent_call="call"), since=NOW, updated_at=NOW
    )


@pytest.mark.parametrize("name", ["subagent:0", "subagent:-1", "subagent:٣", "subagent:" + "9" * 5_000, "no\0id:1"])
def test_invalid_version_in_a_log_is_ignored(name: str) -> None:
    """A rewritten log may hold anything, also values that Python or a database refuses."""
    (written,) = log_of([1], {1: (name, "subagent:7")})
    assert answers_in([written]) == {"subagent": [RecordedAnswer(at=1, version=7, head="-")]}


def message_to(**arguments: str) -> ToolCall:
    return replace(delegated("call_2", subagent=None, subagent_action="message"), arguments=arguments)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (message_to(subagent="subagent", message="more"), True),
        (message_to(), True),
        (message_to(subagent="another", message="more"), False),
        (message_to(subagent="subagent", message="more").with_status(CallStatus.cancelled), False),
        (delegated("call_2"), False),
        (replace(delegated("call_2", subagent=None, subagent_action="wait"), arguments={}), False),
    ],
    ids=["tells it", "told somebody, which was erased", "tells another", "is closed", "asks another", "waits"],
)
async def test_open_message_call_keeps_a_subagent_running(call: ToolCall, *, wanted: bool) -> None:
    asker = replace(asking().facts, chat_id="above", calls=StepCalls([call]))

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            assert chat_id == "above"
            return asker

    messaged = replace(
        subagent("subagent", "parent"), turn=TurnFacts(number=2, started_at=NOW + timedelta(seconds=1), asker="above")
    )
    assert await is_wanted(cast("ChatStore", Known()), messaged) is wanted
    of_a_person = replace(messaged, turn=replace(messaged.turn, asker=None))
    assert await is_wanted(cast("ChatStore", Known()), of_a_person), "no chat asked for this turn"
    asker = replace(asker, state=ChatState.interrupted)
    assert not await is_wanted(cast("ChatStore", Known()), messaged), "nobody waits who was stopped"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ChatDeleted("above", NOW), False),
        (ChatNotFound("above"), True),
        (ChatUnreadable("chats.facts", "not JSON", chat_id="above"), True),
    ],
)
async def test_subagent_whose_parent_was_never_there_goes_on(error: Exception, *, wanted: bool) -> None:
    """The parent may be imported later."""

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            raise error

    facts = subagent("subagent", "above")
    facts = replace(facts, turn=replace(facts.turn, number=1, asker="above"))
    assert await is_wanted(cast("ChatStore", Known()), facts) is wanted


class Logs:
    """A store of logs and of each turn's usage."""

    def __init__(
        self,
        logs: Mapping[str, list[AuditRecord]],
        used: Mapping[str, Sequence[int]],
        broken: Mapping[str, Exception] | None = None,
    ) -> None:
        self._logs, self._used, self._broken = logs, used, broken or {}

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        if chat_id in self._broken:
            raise self._broken[chat_id]
        if chat_id not in self._logs:
            raise ChatDeleted(chat_id, NOW)
        return self._logs[chat_id]

    async def facts(self, chat_id: str) -> Facts:
        return subagent(chat_id, "first")

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return [
            RecordUsage(purpose="step", turn=turn, step=1, attempt=1, usage=Usage(input_tokens=tokens))
            for turn, tokens in enumerate(self._used[chat_id])
        ]


SUBAGENT = log_of([0, 1, 1, 2, 2, 2, 3, 3], {1: ("nobody:0", "nobody:new"), 2: ("its own:1",), 4: ("its own:3",)})
ITS_OWN = log_of([0, 1, 2], {})
USED = {"subagent": (1, 2, 4, 8), "its own": (16, 32, 64), "parent": (128, 256, 512), "first": ()}
"""Tokens by turn: each sum shows which turns were counted, and how often."""


@pytest.mark.parametrize(
    ("answers", "unheard"),
    [
        ({}, {1, 2, 4, 8, 16, 32, 64}),
        ({2: ("subagent:3",)}, {4, 8, 32, 64}),
        ({2: ("subagent:3",), 4: ("subagent:6",)}, {8}),
    ],
)
async def test_usage_since_the_last_answer_counts_with_the_next(
    answers: Mapping[int, Sequence[str]], unheard: set[int]
) -> None:
    logs = {"parent": log_of([0, 1, 1, 2], answers), "subagent": SUBAGENT, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED))
    assert (await unreported_usage(store, "parent", subagent("subagent", "parent"))).input_tokens == sum(unheard)


@pytest.mark.parametrize(
    ("its_own", "unheard"),
    [([], {1, 2, 4, 8}), ([0], {1, 2, 4, 8, 16}), ([0, 1], {1, 2, 4, 8, 16, 32})],
    ids=["deleted", "restored from before both", "restored from before the last"],
)
async def test_answer_missing_from_a_log_makes_usage_partial(its_own: Sequence[int], unheard: set[int]) -> None:
    """Otherwise a chat whose subagent's subagent was deleted, or restored from a backup, could never be answered."""
    logs = {"parent": log_of([0, 1], {}), "subagent": SUBAGENT, "its own": log_of(its_own, {})}
    used = {**USED, "its own": USED["its own"][: len(its_own)]}
    usage = await unreported_usage(cast("ChatStore", Logs(logs, used)), "parent", subagent("subagent", "parent"))
    assert (usage.input_tokens, usage.partial) == (sum(unheard), True)


@pytest.mark.parametrize("error", [ChatDeleted("x", NOW), ChatUnreadable("audit.body", "not JSON", chat_id="x")])
@pytest.mark.parametrize(("gone", "unheard"), [("its own", {1, 2, 4, 8}), ("subagent", {}), ("parent", {})])
async def test_unreadable_or_deleted_chat_makes_usage_partial(error: Exception, gone: str, unheard: set[int]) -> None:
    logs = {"parent": log_of([0, 1], {}), "subagent": SUBAGENT, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED, broken={gone: error}))
    usage = await unreported_usage(store, "parent", subagent("subagent", "parent"))
    assert ((usage.input_tokens or 0), usage.partial) == (sum(unheard), True)


async def test_usage_of_a_resumed_turn_counts_with_the_next_answer() -> None:
    """A subagent that ended in error continues in the same turn."""
    first = log_of([0, 1, 1], {})
    resumed = [dataclasses.replace(one, version=one.version + 3, turn=1) for one in log_of([1, 1], {})]
    logs = {"parent": log_of([0, 1, 1], {2: ("subagent:3",)}), "subagent": first + resumed}
    for entries, used in (((1, 2, 4), (4, False)), ((1, 2, 4, 8), (4, False)), ((1, 2), (None, True))):
        store = cast("ChatStore", Logs(logs, {"subagent": entries}))
        usage = await unreported_usage(store, "parent", subagent("subagent", "parent"))
        assert (usage.input_tokens, usage.partial) == used


async def test_every_turn_of_a_family_counts_once() -> None:
    """Turns with several answers count once; later usage of a subagent has not been reported yet."""
    parent = log_of([0, 1, 1, 2], {2: ("subagent:3",), 4: ("subagent:6",)})
    logs = {"first": log_of([0, 1], {}), "parent": parent, "subagent": SUBAGENT, "its own": ITS_OWN}
    used = await unreported_usage(cast("ChatStore", Logs(logs, USED)), "first", subagent("parent", "first"))
    assert used.input_tokens == sum({128, 256, 512, 1, 2, 4, 16, 32, 64})


# The check of a family: it confirms what a family did, and finds what others changed


IDLE = Settings(run_worker=False)


def family(*tasks: str) -> list[Agent]:
    """Return an agent that delegates these tasks, one call each, and the subagent."""
    step = [Call("ask_research", {"task": task}, id=f"call_{task}") for task in tasks]
    return agents_of(lead(lambda _seen: step), Research())


def sql(database: Path, statement: str, *values: object) -> None:
    """Change one row with plain SQL."""
    with closing(sqlite3.connect(database)) as rows, rows:
        assert rows.execute(statement, values).rowcount == 1


@asynccontextmanager
async def opened(database: Path) -> AsyncIterator[ChatStore]:
    store = stored_at(database)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def verdict_on(database: Path, chat_id: str) -> Verdict:
    """Return the verdict on a chat's family as it is stored now."""
    async with opened(database) as store:
        return await verify_family(store, chat_id)


async def test_sound_family_verifies_and_a_changed_message_is_found(open_engine: OpenEngine, database: Path) -> None:
    async with open_engine(None, agents=family("one", "two")) as engine:
        chat_id = (await asked(engine)).id
        first, second = await engine.subagents(chat_id)
        assert [one.title for one in (first, second)] == ["one", "two"]
        assert (await engine.verify(chat_id, family=True)).ok
        record = next(record for record in await engine.audit(chat_id) if record.actor == f"chat:{first.id}")
        assert record.trigger == "submit_tool_results"
        assert f"{first.id}:{first.version}" in {write.id for write in record.writes if write.kind == "subagent"}
        started = (await engine.audit(first.id))[0]
        assert (started.trigger, started.actor) == ("create", f"chat:{chat_id}")
        await engine.send_message(second.id, "more")  # the version that answered is not its last then
        await engine.wait(second.id, timeout=60)
        assert (await engine.verify(chat_id, family=True)).ok, "a subagent may be asked more"
        await engine.delete_chat(second.id)
        assert (await engine.verify(chat_id, family=True)).ok
    sql(
        database,
        "UPDATE messages SET body = replace(body, 'found', 'lost')"
        " WHERE chat = (SELECT number FROM chats WHERE id = ?) AND body LIKE '%found%'",
        first.id,
    )
    verdict = await verdict_on(database, chat_id)
    assert str(verdict.problem).startswith(f"Subagent {first.id}: messages[")
    assert str(verdict.place).startswith("messages[")


async def test_missing_subagent_that_answered_is_found(open_engine: OpenEngine, database: Path) -> None:
    async with open_engine(None, agents=family("one")) as engine:
        chat_id = (await asked(engine)).id
        answered = next(one.version for one in await engine.audit(chat_id) if one.actor.startswith("chat:"))
        lines = [line async for line in engine.export_chat(chat_id)]
    other = database.with_name("other.db")
    async with open_engine(None, store=f"sqlite:///{other}", agents=family("one")) as engine:
        await engine.import_chat(lines)
        verdict = await engine.verify(chat_id, family=True)
        assert (verdict.ok, verdict.position) == (False, answered)
        assert "but it is not there" in str(verdict.problem)
        assert await engine.subagents(chat_id) == []


# What a subagent's profile says of its parent


@pytest.mark.parametrize(
    ("names", "stood_at"),
    [
        ({"parent": "another"}, "{version}:{head}"),
        ({"parent_call": "another"}, "{version}:{head}"),
        ({}, None),
        ({}, "{head}"),
        ({}, "1{version}:{head}"),
        ({}, "{version}:{another}"),
        ({}, "{version}:{head}"),
    ],
)
async def test_profile_with_a_wrong_parent_or_call_is_found(
    open_engine: OpenEngine, database: Path, names: dict[str, str | None], stood_at: str | None
) -> None:
    """Its log and its parent's are valid; only the comparison of both shows the forgery."""
    async with open_engine(None, agents=family("one"), settings=IDLE) as engine:
        chat = await engine.create_chat(agent="lead")
        version, head = await engine._store.head(chat.id)
        spelled = stood_at and stood_at.format(version=version, head=head, another=head[::-1])
        profile = {"parent": chat.id, "parent_call": "call_one", "parent_version": spelled, **names}
        name, writer = subagent_id(chat.id, "call_one"), engine._handlers(changes=True)._runtime.writer
        await writer.create(
            name, Create(profile=Profile(created_at=chat.created_at, agent="research", **profile)), actor="someone"
        )
    async with open_engine(None, agents=family("one")) as engine:
        await engine.ask(chat.id, "go", timeout=60)
        verdict = await engine.verify(chat.id, family=True)
        if (names, stood_at) == ({}, "{version}:{head}"):
            assert verdict.ok
        else:
            assert verdict.problem == f"Subagent {name}: its profile names another parent, or its own as it never was."
            assert (verdict.ok, verdict.position) == (False, 1)
        assert (await engine.verify(name)).ok


# Reports of subagents in the parent's log


class Generations(NamedTuple):
    """A chat that received its subagent's answer and then its grandchild's, with their positions."""

    lead: str
    mid: str
    leaf: str
    answers: dict[str, tuple[int, int]]
    """By subagent: its version at the answer, and the lead's version that received it."""


@pytest.fixture
async def generations(open_engine: OpenEngine) -> Generations:
    def waits_for_leaf(seen: list[Any]) -> list[Call]:
        return [Call("wait_for_subagents", {"subagents": [seen[1][0]["answer"]]})]

    leaf = Agent("leaf", Research())
    names_its_leaf = lead(calls("start_leaf", task="t"), lambda seen: seen[0]["subagent"])
    mid = Agent("mid", names_its_leaf, tools=[delegate(leaf, background=True)])
    above = lead(calls("start_mid", task="t"), waits, waits_for_leaf)
    agents = [Agent("lead", above, tools=[delegate(mid, background=True)]), mid, leaf]
    async with open_engine(None, agents=agents) as engine:
        chat_id = (await asked(engine)).id
        (middle,) = await engine.subagents(chat_id)
        (last,) = await engine.subagents(middle.id)
        answers = {}
        for record in await engine.audit(chat_id):
            for write in record.writes:
                name, _, version = write.id.rpartition(":")
                if write.kind == "subagent" and version != "0":
                    answers[name] = (int(version), record.version)
        assert [*answers] == [middle.id, last.id]
        assert (await engine.verify(chat_id, family=True)).ok
    return Generations(chat_id, middle.id, last.id, answers)


def denied(family: Generations, subagent: str, denial: str) -> Verdict:
    """Return the verdict that the subagent's log contradicts the lead's record of it."""
    version, position = family.answers[subagent]
    problem = f"Subagent {subagent}: its version {version} answered chat {family.lead}, but {denial}."
    return Verdict(ok=False, problem=problem, position=position)


@pytest.mark.parametrize("subagent", ["mid", "leaf"])
async def test_rewritten_subagent_log_is_found(generations: Generations, database: Path, subagent: str) -> None:
    """Also one of a grandchild, whose answer the parent may never have received; all hashes are recomputed."""
    name = getattr(generations, subagent)
    rewrite(database, name, 1, actor="mallory")
    async with opened(database) as store:
        assert verify_stored(name, await store.rows(name)) == Verdict(ok=True)
    verdict = await verdict_on(database, generations.lead)
    assert verdict == denied(generations, name, "its log holds another, or none")


@pytest.mark.parametrize(
    ("more", "head", "is_right"),
    [
        (0, "its own", True),
        (0, None, True),
        (0, "0" * 64, False),
        (1, "0" * 64, True),
        (-1, "its own", False),
        (-1, None, False),
    ],
)
async def test_tombstone_must_agree_with_the_answer(
    generations: Generations, database: Path, more: int, head: str | None, *, is_right: bool
) -> None:
    name = generations.leaf
    async with Engine(f"sqlite:///{database}", model="demo", settings=IDLE) as engine:
        tombstone = await engine.delete_chat(name)
    assert tombstone.records == generations.answers[name][0]
    left = tombstone.head if head == "its own" else head
    sql(database, "UPDATE tombstones SET records = records + ?, head = ? WHERE id = ?", more, left, name)
    expected = Verdict(ok=True) if is_right else denied(generations, name, "its tombstone rules that out")
    assert await verdict_on(database, generations.lead) == expected
    sql(database, "DELETE FROM tombstones WHERE id = ?", name)
    assert await verdict_on(database, generations.lead) == denied(generations, name, "it is not there")


@pytest.mark.parametrize("which", ["lead", "mid", "leaf"])
async def test_unreadable_log_of_any_generation_is_found(generations: Generations, database: Path, which: str) -> None:
    """The problem names the subagent whose log is unreadable; none if the log is the chat's own."""
    name = getattr(generations, which)
    sql(
        database,
        "UPDATE audit SET body = 'garbage' WHERE chat = (SELECT number FROM chats WHERE id = ?) AND version = 3",
        name,
    )
    verdict = await verdict_on(database, generations.lead)
    whose = "" if which == "lead" else f"Subagent {name}: "
    assert str(verdict.problem).startswith(f"{whose}Version 3 cannot be read")
    assert (verdict.ok, verdict.position) == (False, 3)
