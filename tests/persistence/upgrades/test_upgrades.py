"""A store of every schema that there was, left in the middle of everything by the code of its time, is taken up.

The dumps are made by `make_dumps.py` from git's history: chats in every state, under the leases of a worker that was
killed. Nothing of them may be lost, change, or need a hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from support.older_stores import KEY, NAMES, load, migrations_of, schema_of, seen
from support.sql_by_hand import by_hand
from turnwise import (
    RESTING,
    Agent,
    Chat,
    ChatState,
    Engine,
    Settings,
    ToolResult,
    Verdict,
    delegate,
    fold,
    tool,
    verify_export,
)
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.messages import FilePart, Message

pytestmark = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
async def url(name: str, place: str) -> str:
    """Return the URL of a store that is as it was left."""
    await load(name, place)
    return place


class Ran:
    """Remembers which tools ran."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def tools(self) -> list[Any]:
        """Return the tools that the older lives had, all of which end now."""

        @tool(parallel_safe=True)
        async def look_up(word: str) -> str:
            """Look a word up."""
            return f"{word} is a word"

        @tool
        async def act_once(what: str) -> str:
            """Do it, and never again."""
            self.names.append("act_once")
            return what

        @tool(crash="at_least_once")
        async def act_again(what: str) -> str:
            """Do it as often as it takes."""
            self.names.append("act_again")
            return what

        @tool(policy="ask")
        async def pay(cents: int) -> str:
            """Pay."""
            self.names.append("pay")
            return f"paid {cents}"

        return [look_up, act_once, act_again, pay]


def answer(request: Any) -> Reply:
    said = request.messages[-1]
    return Reply(f"You said: {said.text}" if said.role == "user" else "That is what I found.")


def engine_on(url: str, *, worker: bool, ran: Ran | None = None) -> Engine:
    tools = (ran or Ran()).tools()
    model = ScriptedModel(answer, summary="They spoke.")
    helper = Agent("researcher", model=model, tools=tools)
    both = [delegate(helper), delegate(helper, background=True)]
    agents = [Agent("default", model=model, tools=[*tools, *both]), Agent("terse", model=model, tools=tools), helper]
    settings = Settings(run_worker=worker, durability="normal", poll_interval=0.05, coalesce=0)
    return Engine(url, agents=agents, settings=settings)


def spoken(message: Message) -> list[Any]:
    parts = [part.type for part in message.parts]
    return [message.id, message.role, message.turn, message.step, message.text, parts]


async def looks(engine: Engine, chat: Chat) -> dict[str, Any]:
    """Return what this version sees of what an older one told of a chat."""
    facts = {
        name: getattr(chat, name)
        for name in ("title", "owner", "state", "version", "turn", "step", "archived", "queued")
    }
    views: Sequence[Any] = ("user", "raw")
    messages = {view: [spoken(one) for one in await engine.messages(chat.id, view=view)] for view in views}
    events = [event.seq async for event in engine.events(chat.id, follow=False)]
    return facts | {"messages": messages, "events": events}


async def test_everything_is_read_as_its_own_version_read_it(name: str, url: str, place: str) -> None:
    """In the schema of a new store; listed, explained, verified by its log, and said in the same words."""
    before = seen(name)
    assert (await migrations_of(url))[-1] == name.partition("-")[2]
    async with engine_on(url, worker=False) as engine:
        assert await schema_of(url) == await new_schema(place)
        chats = {chat.id: chat for chat in (await engine.list_chats(limit=100)).items}
        assert set(chats) == set(before)
        for chat_id, told in before.items():
            wanted = {known: told[known] for known in told if known not in ("log", "export")}
            assert await looks(engine, chats[chat_id]) == wanted
            explanation = await engine.explain(chat_id)
            assert (explanation.unreadable, explanation.broken_promises) == ((), ())
            assert await engine.verify(chat_id, files=True) == Verdict(ok=True)
        await leftovers(engine, url, before)
    assert {told["state"] for told in before.values()} == set(ChatState)
    assert any(told["export"] for told in before.values()) == has_exports(name)


async def new_schema(place: str) -> list[list[tuple[Any, ...]]]:
    """Return the schema of a store of this version, made beside the other."""
    new = place.replace("chats.db", "new.db") if place.startswith("sqlite") else f"{place}_new"
    async with engine_on(new, worker=False):
        found = await schema_of(new)
    if place.startswith("postgresql"):
        await by_hand(place, f"DROP SCHEMA {new.rpartition('schema=')[2]} CASCADE")
    return found


def has_exports(name: str) -> bool:
    """Whether the version that left a store could write whole chats."""
    dialect, _, migration = name.partition("-")
    return migration >= {"sqlite": "0007", "postgres": "0006"}[dialect]


async def leftovers(engine: Engine, url: str, before: Mapping[str, Mapping[str, Any]]) -> None:
    """Read what is left of deleted chats, the logs and the whole chats that were written down, and files."""
    for (chat_id,) in await by_hand(url, "SELECT id FROM tombstones"):
        assert (await engine.tombstone(chat_id)) is not None
    async with engine_on("sqlite://", worker=False) as elsewhere:
        for chat_id, told in before.items():
            assert told["log"] is None or verify_export(told["log"], key=KEY) == Verdict(ok=True)
            if told["export"] is not None:
                assert (await elsewhere.import_chat(told["export"], key=KEY)).id == chat_id
                assert await elsewhere.verify(chat_id, files=True) == Verdict(ok=True)
            for part in [part for message in await engine.messages(chat_id) for part in message.parts]:
                if isinstance(part, FilePart):
                    pieces = [piece async for piece in engine.open_file(chat_id, part)]
                    assert b"".join(pieces) == b"a,b\n" * 1000


async def test_a_worker_takes_every_chat_up(name: str, url: str) -> None:
    """To rest by itself, then on with a word, an answer or a resume; with every promise of tools kept."""
    before, ran = seen(name), Ran()
    ids = {told["title"]: chat_id for chat_id, told in before.items()}
    async with engine_on(url, worker=True, ran=ran) as engine:
        await engine.wait(ids["too late"], until=["waiting"], timeout=60)
        rested = [await engine.wait(chat_id, timeout=60) for chat_id in before]
        assert ran.names == ["act_again", "act_again"]  # what was cut off runs again only if it may
        assert {str(chat.title): chat.state for chat in rested if chat.state != "waiting"} == {
            **dict.fromkeys(("requires action", "approval", "both"), "requires_action"),
            **dict.fromkeys(("interrupted", "stopped by nobody"), "interrupted"),
            "error": "error",
        }
        said = [message.text for message in await engine.messages(ids["queue"]) if message.role == "user"]
        assert said == ["hello", "talk", "queued 0", "queued 1"]
        await ask_again(engine, ids)
        for chat in rested:
            await go_on(engine, chat)
            result = await engine.ask(chat.id, "Still there?", timeout=60)
            assert (result.text, result.chat.state) == ("You said: Still there?", "waiting")
            assert await engine.verify(chat.id, family=True) == Verdict(ok=True)
            await told_without_gap(engine, chat.id, before[chat.id]["events"])
    assert ran.names == ["act_again", "act_again", "pay"]
    assert await by_hand(url, "SELECT count(*) FROM quarantine") == [(0,)]


async def ask_again(engine: Engine, ids: Mapping[str, str]) -> None:
    """Send the same message and the same answer again, as a client that never heard of the first: they are done."""
    assert (await engine.send_message(ids["waiting"], "and so on", client_id="waiting 2")).replayed
    results = [message.result for message in await engine.messages(ids["answered"])]
    (call_id,) = [result.call_id for result in results if result is not None and result.name == "weather"]
    assert (await engine.submit_tool_results(ids["answered"], [ToolResult(call_id, "rain")])).replayed


async def go_on(engine: Engine, chat: Chat) -> None:
    """Do what a client does with a chat that rests, until it waits for a message."""
    if chat.archived:
        await engine.unarchive(chat.id)
    if chat.state == "requires_action":
        outputs: dict[str, Any] = {"weather": "rain", "pay": {"approved": True}}
        await engine.submit_tool_results(
            chat.id, [ToolResult(call.call_id, outputs[call.name]) for call in chat.open_calls]
        )
    elif chat.state in {"interrupted", "error"}:
        await engine.resume(chat.id)
    assert (await engine.wait(chat.id, until=RESTING, timeout=60)).state == "waiting"


async def told_without_gap(engine: Engine, chat_id: str, old: Sequence[int]) -> None:
    """A reader that was there before the upgrade, and one that comes now, see the same."""
    events = [event async for event in engine.events(chat_id, follow=False)]
    since = [event for event in events if event.seq > old[-1]]
    assert [event.seq for event in since] == list(range(old[-1] + 1, old[-1] + 1 + len(since)))
    until = [event for event in events if event.seq <= old[-1]]
    assert fold(since, fold(until)) == fold(events)
    assert fold(events).messages == (await engine.transcript(chat_id)).messages
