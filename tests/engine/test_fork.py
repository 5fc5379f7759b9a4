"""A fork starts at its parent's version, and never changes the parent."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.life import BLANK, ERROR, NOW, asking, executing, failed, local, queued, text_parts, waiting
from turnwise import Agent, Engine, IllegalTransition, Observer, Settings, ToolResult, Usage, tool
from turnwise.engine.config.results import chat_of
from turnwise.engine.prompt.imported_history import inheritance_of
from turnwise.engine.prompt.views import compactions_of, raw_view, transcript_of, user_view, without_edits
from turnwise.persistence.reading import Snapshot
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.messages import MarkerPart, Message, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Audience, ChatState, Executor, StopReason, Tail
from turnwise.states.writes import RecordUsage
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


ANSWERED = ["answered by a call", "compacted", "cleared"]
STOPPED = "by a tool that stops"


@pytest.mark.parametrize("ended", ["refused", *ANSWERED, STOPPED])
async def test_fork_can_be_resumed_if_its_parent_could(ended: str) -> None:
    """Messages do not show that a call was the answer, or that a text lacked the form."""

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
    """Records the facts of each version of each chat."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[int, Facts]] = defaultdict(dict)
        self.triggers: dict[tuple[str, int], str] = {}

    def transitioned(self, decision: Decision) -> None:
        self.facts[decision.facts.chat_id][decision.facts.version] = decision.facts
        self.triggers[decision.facts.chat_id, decision.facts.version] = decision.trigger.name


async def test_fork_state_equals_its_parents_at_every_version(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """At every version without open calls; a fork closes open calls by rule."""
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
            start = seen.facts[fork.id][1]
            wanted = (facts.history.boundary, facts.history.foldable, facts.history.tail)
            assert (start.history.boundary, start.history.foldable, start.history.tail) == wanted, version
            if not cut:  # a compaction that was cut is none of the fork's
                assert start.compaction.count == facts.compaction.count, version
            assert start.serial >= facts.serial
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
    message = Message(id="m1", role="assistant", parts=tuple(asked), turn=1, step=1, created_at=NOW, position=4)
    (result,) = inheritance_of(BLANK, [message], NOW).messages[1:]
    assert (result.result and result.result.call_id, result.call_index, result.position) == ("a", 0, 5)


# Views


def message(position: int, role: Any = "user", **fields: Any) -> Message:
    known = {"id": f"m{position}", "turn": 1, "step": 0, "created_at": NOW, "parts": text_parts(f"words {position}")}
    return Message(**known | {"role": role, "position": position} | fields)


def marker(position: int, *carried: int, step: int = 2, reason: Any = "compaction") -> Message:
    parts = (MarkerPart(reason=reason, text="compacted", carried=carried),)
    return message(position, "system", parts=parts, step=step, audience=Audience.user)


def summary(position: int, **fields: Any) -> Message:
    return message(position, **{"audience": Audience.model, "synthetic": True} | fields)


PRIVATE = TextPart(text="words", metadata={"openai": {"id": "msg_1"}})


def test_user_and_raw_views_filter_by_audience() -> None:
    history = [
        message(1, parts=(PRIVATE,)),
        summary(2),
        marker(3),
        message(4, synthetic=True),
        message(5, audience=Audience.model),
    ]
    assert [one.position for one in user_view(history)] == [1, 3, 4]
    assert [one.position for one in raw_view(history)] == [1, 3, 5]
    assert [user_view(history)[0].parts, raw_view(history)[0].parts] == [text_parts("words"), text_parts("words")]
    assert history[0].parts == (PRIVATE,)


def test_transcript_shows_state_queue_and_open_calls() -> None:
    life = queued(asking(), "more")
    snapshot = Snapshot(
        facts=replace(life.facts, last_seq=17, last_error=ERROR),
        history=(message(1, parts=(PRIVATE,)), summary(2)),
        shown=(),
        stop_reason=StopReason.max_steps,
    )
    transcript = transcript_of(snapshot)
    assert (transcript.state, transcript.last_seq) == (ChatState.requires_action, 17)
    assert (transcript.stop_reason, transcript.error) == (StopReason.max_steps, None)
    assert [one.parts for one in transcript.messages] == [text_parts("words")]
    assert transcript.queue == life.facts.queue != ()
    assert [call.call_id for call in transcript.open_calls] == [call.call_id for call in life.facts.open_calls] != []
    assert all(not call.salt for call in transcript.open_calls)


@pytest.mark.parametrize("life", [waiting, failed], ids=["at rest", "in error"])
def test_transcript_shows_error_and_calls_only_in_their_states(life: Any) -> None:
    facts = replace(life().facts, last_error=ERROR, calls=asking().facts.calls)
    transcript = transcript_of(Snapshot(facts=facts, history=(), shown=(), stop_reason=None))
    assert transcript.error == (ERROR if facts.state is ChatState.error else None)
    assert (transcript.open_calls, transcript.stop_reason) == ((), None)


def cost(step: int, tokens: int | None, purpose: Any = "summary") -> RecordUsage:
    return RecordUsage(purpose=purpose, turn=1, step=step, attempt=1, usage=Usage(input_tokens=tokens))


def test_compactions_list_summary_and_cost() -> None:
    history = [
        message(1),
        marker(2),
        summary(3, parts=(PRIVATE,)),
        message(4),
        marker(5, 4, 6, 7, 8, step=3),
        summary(6, parts=text_parts("one")),
        summary(7, parts=text_parts("")),
        summary(8, parts=text_parts("two")),
        marker(9, step=4, reason="clear"),
        message(10, parts=()),
    ]
    ledger = [cost(2, 10), cost(2, 5), cost(2, 99, "step"), cost(3, None), cost(8, 1)]
    first, second = compactions_of(history, ledger)
    assert (first.raw, second.raw) == (first.summary, second.summary)
    assert (first.step, first.at, first.summary, first.carried) == (2, NOW, "words", 0)
    assert first.messages == [replace(history[2], parts=text_parts("words"))]
    assert first.usage == Usage(input_tokens=15)
    assert (second.step, second.summary, second.carried, second.usage) == (3, "one\n\ntwo", 1, None)
    assert [one.position for one in second.messages] == [6, 7, 8]


def test_compaction_without_its_summary_is_listed_empty() -> None:
    (gone,) = compactions_of([message(1), marker(2, 1), message(3)], [])
    assert (gone.summary, gone.messages, gone.carried) == ("", [], 1)
    carries = [summary(1), marker(2, 1), summary(3, parts=text_parts("new")), marker(4, 3), message(5), marker(6, 1, 3)]
    new, old, last = compactions_of(carries, [])
    assert [(one.summary, one.carried) for one in (new, old, last)] == [("new", 1), ("", 1), ("", 2)]
    assert compactions_of([message(1), message(2)], [cost(2, 1)]) == []


def test_without_edits_removes_edited_arguments_only() -> None:
    result = ToolResultPart(call_id="c", name="look", output="seen", edited_arguments={"at": "secret"})
    without = without_edits(message(1, parts=(PRIVATE, result)))
    assert without.parts == (PRIVATE, ToolResultPart(call_id="c", name="look", output="seen"))
    assert without.erased


# What callers get of a chat


METADATA = {"cart": {"n": 1}, "items": ["milk"]}
ARGUMENTS = {"cents": 100, "to": {"iban": "DE1"}}


async def test_returned_values_are_copies(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Changes to returned values are neither stored nor run."""
    paid: list[Any] = []

    @tool(schema={"type": "object"}, policy="ask")
    async def pay(**arguments: Any) -> str:
        """Pay."""
        paid.append(arguments)
        return "paid"

    model = strict_model([Reply(calls=[Call("pay", ARGUMENTS, id="p")]), "Done."])
    async with open_engine(model, tools=[pay]) as engine:
        chat = await engine.create_chat(metadata=METADATA)
        result = await engine.ask(chat.id, "Pay!")
        for read in (chat, result.chat, await engine.get_chat(chat.id), (await engine.list_chats()).items[0]):
            read.metadata["cart"]["n"] = 2
            read.metadata["items"].append("eggs")
            for call in (*read.open_calls, *result.open_calls, *result.messages[-1].calls):
                call.arguments["to"]["iban"] = "***"
        await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": True})])
        await engine.wait(chat.id)
        assert (await engine.get_chat(chat.id)).metadata == METADATA
        assert [call.arguments for call in (await engine.messages(chat.id))[1].calls] == paid == [ARGUMENTS]


def facts(**fields: Any) -> Facts:
    known = waiting().facts
    profile = replace(known.profile, owner="ann", title="A title", metadata={"a": 1}, parent="p", system="secret")
    return replace(known, profile=profile, **fields)


def test_open_calls_have_no_salt() -> None:
    life = queued(asking(), "one", "two")
    salted = tuple(replace(call, salt="secret") for call in life.facts.calls)
    chat = chat_of(replace(life.facts, calls=salted))
    assert [call.call_id for call in chat.open_calls] == [call.call_id for call in salted] != []
    assert [call.salt for call in chat.open_calls] == [""] * len(salted)
    assert chat.queued == 2


@pytest.mark.parametrize("has_error", [True, False])
def test_damaged_chat_is_unreadable_without_open_calls(has_error: bool) -> None:
    known = replace(asking().facts, last_error=ERROR if has_error else None)
    chat = chat_of(PartialRead(known, (IntegrityIssue("chats.turn", "is no JSON"),)))
    assert "chats.turn" in (chat.unreadable or "")
    assert chat.open_calls == []
    assert (chat.last_error == ERROR) == has_error
    assert has_error or chat.last_error.kind == "unreadable"
    assert (chat.id, chat.state) == ("c", ChatState.requires_action)


def test_unknown_state_is_an_issue() -> None:
    chat = chat_of(facts(stored_state="odd" * 50))
    assert "chats.state" in (chat.unreadable or "")
    assert "odd" * 30 not in (chat.unreadable or "")
    assert chat_of(facts(updated_at=None)).updated_at == NOW
    assert chat_of(facts()).unreadable is None
