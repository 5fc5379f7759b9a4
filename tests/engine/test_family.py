"""What logs say of helpers, and who is wanted still. The rest is tested by whole lives, in `test_helpers`."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from support.engines import OpenEngine
from support.family_logs import helper, log_of
from support.gated_model import GatedModel
from support.life import NOW, asking, delegated
from turnwise import Agent, ChatDeleted, ChatNotFound, Engine, delegate
from turnwise.engine.family import Answer, answers_in, is_awaited, is_wanted
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, TurnFacts
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.testing import ManualClock


@pytest.mark.parametrize("name", ["helper:0", "helper:-1", "helper:", "helper:٣", "helper:" + "9" * 5_000, "no\0id:1"])
def test_invalid_version_in_a_log_is_ignored(name: str) -> None:
    """Whoever rewrites a log may write anything there, also what Python or a database does not take."""
    (written,) = log_of([1], {1: (name, "helper:7")})
    assert answers_in([written]) == {"helper": [Answer(at=1, version=7, head="-")]}


async def test_subagents_of_a_missing_chat_raise(open_engine: OpenEngine) -> None:
    """As everything else of it; a list without helpers would say that it has none."""
    async with open_engine("demo") as engine:
        chat = await engine.create_chat()
        assert await engine.helpers(chat.id) == []
        await engine.delete_chat(chat.id)
        with pytest.raises(ChatDeleted):
            await engine.helpers(chat.id)
        with pytest.raises(ChatNotFound):
            await engine.helpers("nobody")


def tells(**arguments: str) -> ToolCall:
    """Return a call that tells a helper more."""
    return replace(delegated("call_2", helper=None, helper_action="message"), arguments=arguments)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (tells(helper="helper", message="more"), True),
        (tells(), True),
        (tells(helper="another", message="more"), False),
        (tells(helper="helper", message="more").with_status(CallStatus.cancelled), False),
        (delegated("call_2"), False),
        (replace(delegated("call_2", helper=None, helper_action="wait"), arguments={}), False),
    ],
    ids=["tells it", "told somebody, which was erased", "tells another", "is closed", "asks another", "waits"],
)
async def test_open_message_call_keeps_a_subagent_running(call: ToolCall, *, wanted: bool) -> None:
    asker = replace(asking().facts, chat_id="above", calls=StepCalls([call]))

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            assert chat_id == "above"
            return asker

    told = replace(
        helper("helper", "parent"), turn=TurnFacts(number=2, started_at=NOW + timedelta(seconds=1), asker="above")
    )
    assert await is_wanted(cast("ChatStore", Known()), told) is wanted
    asker = replace(asker, state=ChatState.interrupted)
    assert not await is_wanted(cast("ChatStore", Known()), told), "nobody waits who was stopped"


@pytest.mark.parametrize(("parents", "read"), [({"one": "one"}, []), ({"one": "two", "two": "one"}, ["two"])])
async def test_cyclic_parents_end_the_search(parents: dict[str, str], read: list[str]) -> None:
    """The sweep of a worker goes it: without an end, no deadline would ever pass again."""
    chats = {}
    for name, parent in parents.items():
        facts = helper(name, parent)
        chats[name] = replace(facts, profile=replace(facts.profile, depth=2**62))
    asked: list[str] = []

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            asked.append(chat_id)
            assert len(asked) <= len(chats)
            return chats[chat_id]

    assert not await is_awaited(cast("ChatStore", Known()), chats["one"])
    assert asked == read


async def test_turn_records_which_chat_asked_for_it(
    open_engine: OpenEngine,
) -> None:
    """A clock that is moved by hand stands still: every turn begins when the helper was made."""
    asks = lead([Call("ask_research", {"task": "one"})])
    research = GatedModel(lambda _: Reply("answer", usage=(1, 1)))
    helper = Agent("research", research)
    agents = [Agent("lead", asks, tools=[delegate(helper)]), helper]
    async with open_engine(None, agents=agents, clock=ManualClock()) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            name = await at_work(engine, research)
            of_task = await engine._store.facts(name)
            assert (of_task.turn.asker, of_task.turn.number) == (chat.id, 1)
            of_before = msgspec.structs.replace(of_task, turn=msgspec.structs.replace(of_task.turn, asker=None))
            for facts in (of_task, of_before):
                assert await is_wanted(engine._store, facts)
            await engine.interrupt(name)
            await engine.wait(chat.id, until=["waiting"])
            for facts in (of_task, of_before):
                assert not await is_wanted(engine._store, facts)
            await engine.resume(name)
            assert await is_wanted(engine._store, await engine._store.facts(await at_work(engine, research)))
            research.gate.set()
            assert (await engine.wait(name)).state == "waiting"
            research.gate = anyio.Event()
            await engine.send_message(name, "and more?")
            more = await engine._store.facts(await at_work(engine, research))
            assert (more.turn.asker, more.turn.number) == (None, 2)
            assert await is_wanted(engine._store, more)
            research.gate.set()
            assert (await engine.wait(name)).state == "waiting"


async def at_work(engine: Engine, research: GatedModel) -> str:
    """Return the id of the only helper that there is, once its model is asked."""
    while not research.busy:  # noqa: ASYNC110
        await anyio.sleep(0.01)
    (name,) = [one for one in await engine.chat_ids() if (await engine.get_chat(one)).helps]
    return name


def lead(*batches: list[Call]) -> ScriptedModel:
    """Return a model that makes each of these batches of calls, and then says that it is done."""
    taken = iter(batches)
    return ScriptedModel(lambda _: Reply(calls=batch) if (batch := next(taken, None)) else Reply("done"))
