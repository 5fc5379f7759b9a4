"""A fork begins where its parent stood, and never touches it."""

from collections import defaultdict
from datetime import timedelta

import pytest

from support.engines import MakeModel, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.life import BLANK, NOW, executing, local
from turnwise import Agent, Engine, IllegalTransition, Observer, Settings, SettingsError, tool
from turnwise.engine.inheritance import inheritance_of
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, ToolCallPart
from turnwise.states.names import Executor, Tail
from turnwise.testing.clock import ManualClock


async def test_fork_has_the_history_of_its_version() -> None:
    model = ScriptedModel([Reply("one"), Reply("two"), Reply("of the fork")])
    async with Engine("sqlite://", model=model) as engine:
        parent = await engine.create_chat(system="Be terse.", owner="ann")
        first = await engine.ask(parent.id, "1")
        await engine.ask(parent.id, "2")
        before = await engine.get_chat(parent.id)
        fork = await engine.fork(parent.id, at_version=first.chat.version)
        result = await engine.ask(fork.id, "3")

        assert (fork.state, fork.parent, fork.owner) == ("waiting", parent.id, "ann")
        head = (await engine.audit(parent.id))[first.chat.version - 1].hash
        reason = str((await engine.audit(fork.id))[0].reason)
        assert all(part in reason for part in (parent.id, f"version {first.chat.version}", head))
        assert [message.text for message in await engine.messages(fork.id)] == ["1", "one", "3", "of the fork"]
        assert result.chat.turn == 2
        assert [message.text for message in model.requests[-1].messages] == ["1", "one", "3"]
        assert await engine.get_chat(parent.id) == before
        assert (await engine.verify(fork.id)).ok


@pytest.mark.parametrize("version", [0, 99])
async def test_fork_of_an_unknown_version_is_refused(version: int) -> None:
    async with Engine("sqlite://", model=ScriptedModel([])) as engine:
        chat = await engine.create_chat()
        with pytest.raises(SettingsError, match="must be from 1 to 1"):
            await engine.fork(chat.id, at_version=version)
        assert len((await engine.list_chats()).items) == 1


ANSWERED = ["answered by a call", "compacted", "cleared"]
STOPPED = "by a tool that stops"


@pytest.mark.parametrize("ended", ["refused", *ANSWERED, STOPPED])
async def test_fork_can_be_resumed_if_its_parent_could(ended: str) -> None:
    """Messages do not tell that a call was the answer, and that a text was none because it lacks the form."""

    @tool(stop_after=True)
    def note() -> str:
        """Note."""
        return "noted"

    script = {STOPPED: Reply(calls=[Call("note", {})]), "refused": Reply("Sure!")}
    first = script.get(ended, Reply(calls=[Call("final_answer", {"answer": 5})]))
    model = ScriptedModel([first, *["again"] * 9], summary="the summary")
    agent = Agent("agent", model, output=int, tools=[note], settings=Settings(max_steps=1))
    async with Engine("sqlite://", agents=[agent]) as engine:
        parent = await engine.create_chat()
        await engine.ask(parent.id, "how many?")
        if ended in ("compacted", "cleared"):
            await (engine.request_compaction if ended == "compacted" else engine.clear_context)(parent.id)
        version = (await engine.wait(parent.id)).version
        if ended != "refused":
            await engine.ask(parent.id, "and now?")
        fork = await engine.fork(parent.id, at_version=version)
        asked_before = len(model.requests)
        if ended in ANSWERED:
            with pytest.raises(IllegalTransition):
                await engine.resume(fork.id)
        else:
            await engine.resume(fork.id)
            await engine.wait(fork.id)
            assert len(model.requests) == asked_before + 1
        assert (await engine.verify(fork.id)).ok, await engine.verify(fork.id)


class Remembering(Observer):
    """Keeps the facts of each version of each chat."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[int, Facts]] = defaultdict(dict)
        self.triggers: dict[tuple[str, int], str] = {}

    def transitioned(self, decision: Decision) -> None:
        self.facts[decision.facts.chat_id][decision.facts.version] = decision.facts
        self.triggers[decision.facts.chat_id, decision.facts.version] = decision.trigger.name


async def test_fork_state_equals_its_parents_at_every_version(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """At every version at which no call was open: those are answered by rule, which the parent never was."""
    clock, seen = ManualClock(), Remembering()
    model = strict_model([*rich_script(), "more", "still more"], context_limit=100)
    async with open_engine(model, settings=Settings(coalesce=0), tools=[look], clock=clock, observers=[seen]) as engine:
        chat_id = await rich_life(engine, clock)
        await engine.ask(chat_id, "after a compaction")
        await engine.clear_context(chat_id)
        await engine.ask(chat_id, "after a cut")
        await engine.request_compaction(chat_id)
        await engine.wait(chat_id)
        compared, cut = set(), False
        for version, facts in [*seen.facts[chat_id].items()]:
            cut = cut or seen.triggers[chat_id, version] == "edit_message"
            if facts.open_calls:
                continue
            fork = await engine.fork(chat_id, at_version=version)
            began = seen.facts[fork.id][1]
            wanted = (facts.history.boundary, facts.history.foldable, facts.history.tail)
            assert (began.history.boundary, began.history.foldable, began.history.tail) == wanted, version
            if not cut:  # a compaction that was cut is none of the fork's
                assert began.compaction.count == facts.compaction.count, version
            assert began.serial >= facts.serial
            compared.add((facts.history.tail, bool(facts.history.boundary), facts.compaction.count))
    assert len(compared) >= 6


# What a fork inherits


@pytest.mark.parametrize("answered", [[], ["a"], ["c"], ["a", "c"]])
def test_fork_answers_every_open_call(answered: list[str]) -> None:
    life = executing(local("a"), local("b", 1), local("c", 2))
    for call_id in answered:
        life.start(call_id)
        life.finish(call_id)
    later = NOW + timedelta(seconds=60)
    taken = inheritance_of(life.facts, life.messages, later)
    added = taken.messages[len(life.messages) :]
    open_calls = [call_id for call_id in "abc" if call_id not in answered]
    last, asking = life.messages[-1], next(message for message in life.messages if message.calls)
    assert taken.messages[: len(life.messages)] == tuple(life.messages)
    assert [message.result.call_id for message in added if message.result] == open_calls
    assert [message.position - last.position for message in added] == [*range(1, len(added) + 1)]
    assert [message.call_index for message in added] == ["abc".index(call_id) for call_id in open_calls]
    assert len({message.id for message in taken.messages}) == len(taken.messages)
    for message in added:
        assert (message.role, message.synthetic, message.created_at) == ("tool", True, later)
        assert (message.turn, message.step) == (asking.turn, asking.step)
        assert (message.result.name, message.result.outcome) == ("search", "cancelled")
        assert "forked" in str(message.result.output)
    assert taken.serial == life.facts.serial + len(added)
    assert taken.foldable == life.facts.history.foldable + len(added)
    assert taken.tail is Tail.awaits_answer


def test_fork_does_not_answer_provider_calls() -> None:
    asked = [
        ToolCallPart(call_id=call_id, name="search", arguments={}, executor=executor)
        for call_id, executor in (("p", Executor.provider), ("a", Executor.local), ("q", Executor.provider))
    ]
    said = Message(id="m1", role="assistant", parts=tuple(asked), turn=1, step=1, created_at=NOW, position=4)
    (result,) = inheritance_of(BLANK, [said], NOW).messages[1:]
    assert (result.result and result.result.call_id, result.call_index, result.position) == ("a", 0, 5)
