"""Helpers in the background: they are started, waited for, told more, stopped and listed by the chat that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from support.engines import OpenEngine
from support.gated_model import GatedModel
from support.runtimes import runtime_of
from support.stores import stored_at
from turnwise import (
    Agent,
    Chat,
    ChatState,
    Engine,
    ModelCall,
    ModelRequest,
    Observer,
    Settings,
    SettingsError,
    Usage,
    delegate,
    tool,
)
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.delegate import helper_id
from turnwise.engine.worker import helper_calls, helpers
from turnwise.engine.worker.helper_calls import HelperCalls
from turnwise.engine.worker.helpers import Helpers
from turnwise.engine.worker.worker import Worker
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.usage import NO_USAGE
from turnwise.testing import ManualClock

Step = Callable[[list[Any]], Sequence[Call] | str]
"""Says what a model does next, by the results that it has seen in its turn."""


def lead(*steps: Step) -> ScriptedModel:
    """Return a model that takes these steps in each of its turns, then says that it is done."""

    def replies(request: ModelRequest) -> Reply:
        begins = max(place for place, said in enumerate(request.messages) if said.role == "user")
        turn = request.messages[begins + 1 :]
        seen = [message.result.output for message in turn if message.result is not None]
        taken = sum(message.role == "assistant" for message in turn)
        wanted = steps[taken](seen) if taken < len(steps) else f"done: {seen[-1]}"
        return Reply(wanted) if isinstance(wanted, str) else Reply(calls=list(wanted))

    return ScriptedModel(replies)


def starts(*tasks: str) -> Step:
    """Start a helper for each task."""
    return lambda _seen: [Call("start_research", {"task": task}) for task in tasks]


def waits(_seen: list[Any]) -> Sequence[Call]:
    """Wait for all helpers."""
    return [Call("wait_for_helpers", {})]


def calls(name: str, **arguments: Any) -> Step:
    """Call a tool; `helper=0` is the first that was started in this turn."""

    def step(seen: list[Any]) -> Sequence[Call]:
        started = [one["helper"] for one in seen if isinstance(one, dict) and "helper" in one]
        own = {key: started[value] if isinstance(value, int) else value for key, value in arguments.items()}
        return [Call(name, own)]

    return step


class Research(GatedModel):
    """A model that says what it was asked last, once it may; what it costs grows with every answer."""

    def __init__(self) -> None:
        super().__init__(self._found)
        self.gate.set()
        self.answers = 0

    def _found(self, request: ModelRequest) -> Reply:
        self.answers += 1
        return Reply(f"found {request.messages[-1].text}", usage=Usage(input_tokens=self.answers, output_tokens=1))


def family(model: ScriptedModel, research: Research, **options: Any) -> list[Agent]:
    """Return an agent that has helpers in the background, and the helper."""
    helper = Agent("research", research)
    settings = options.pop("settings", Settings())
    return [Agent("lead", model, tools=[delegate(helper, background=True, **options)], settings=settings), helper]


async def outputs(engine: Engine, chat_id: str) -> list[Any]:
    """Return what the model of a chat was answered, in order."""
    return [said.result.output for said in await engine.messages(chat_id) if said.result is not None]


async def resting(engine: Engine, chat_id: str) -> Chat:
    """Return a chat once it rests."""
    with anyio.fail_after(60):
        return await engine.wait(chat_id)


async def test_chat_works_on_while_background_subagents_run(open_engine: OpenEngine) -> None:
    research = Research()
    research.gate = anyio.Event()
    noted: list[str] = []

    @tool
    async def note(what: str) -> str:
        """Note something."""
        noted.append(what)
        research.gate.set()
        return "noted"

    agents = family(lead(starts("one", "two"), calls("note", what="meanwhile"), waits), research)
    agents[0] = Agent("lead", agents[0].model, tools=[*agents[0].tools, note])
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead", owner="ann")
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        one, two, _, heard = await outputs(engine, chat.id)
        assert noted == ["meanwhile"]
        assert [said.result.is_error for said in answer.messages if said.result is not None] == [False] * 4
        assert heard == [{**one, "answer": "found one"}, {**two, "answer": "found two"}]
        helpers = await engine.helpers(chat.id)
        assert [one["helper"], two["helper"]] == [helper.id for helper in helpers]
        assert {(helper.agent, helper.owner, helper.parent) for helper in helpers} == {("research", "ann", chat.id)}
        assert answer.chat.helpers_usage == reduce(add, (helper.usage for helper in helpers), NO_USAGE)
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict


async def test_wait_covers_subagents_started_in_the_same_step(open_engine: OpenEngine) -> None:
    """All calls of a step are answered side by side, in their order."""
    both: Step = lambda _: [*starts("one")([]), Call("wait_for_helpers", {}), *starts("two")([])]  # noqa: E731
    async with open_engine(None, agents=family(lead(both), Research())) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
        _, heard, _ = await outputs(engine, chat.id)
        assert [one["answer"] for one in heard] == ["found one", "found two"]


class Traced(Observer):
    """An observer that gives every turn a trace, and notes of which one each call of a model is."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, str | None]] = []

    def turn_trace(self, chat_id: str) -> str | None:
        return f"trace of {chat_id}"

    def model_called(self, call: ModelCall) -> None:
        self.traces.append((call.request.chat_id, call.trace))


async def test_erased_wait_waits_for_no_other_subagents(open_engine: OpenEngine) -> None:
    """Without their names it would be a wait for all that the chat has, and some may never end."""
    research = Research()
    research.gate = anyio.Event()

    def waits_for_one(seen: list[Any]) -> Sequence[Call]:
        return [Call("wait_for_helpers", {"helpers": [seen[0]["helper"]]}, id="w")]

    agents = family(lead(starts("one", "two"), waits_for_one), research)
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            while [call.call_id for call in (await engine.get_chat(chat.id)).open_calls] != ["w"]:
                await anyio.lowlevel.checkpoint()
        asking = (await engine.messages(chat.id))[-1]
        await engine.erase_message(chat.id, asking.id)
        assert (await resting(engine, chat.id)).state == "waiting"
        *_, (_, result) = [(said.role, said.result) for said in await engine.messages(chat.id) if said.result]
        assert (result.output, result.is_error) == ("Its arguments were erased.", True)
        assert (await engine.messages(chat.id))[-1].text == "done: Its arguments were erased."
        research.gate.set()
        for helper in await engine.helpers(chat.id):
            await resting(engine, helper.id)
        assert (await engine.verify(chat.id, family=True)).ok


async def test_message_to_subagent_is_answered_and_charged_once(open_engine: OpenEngine) -> None:
    first = lead(starts("one"), waits, calls("message_helper", helper=0, message="and then?"), waits, waits)
    observer = Traced()
    async with open_engine(None, agents=family(first, Research()), observers=[observer]) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        started, once, told, again, never = await outputs(engine, chat.id)
        assert told == started
        assert once == [{**started, "answer": "found one"}]
        assert again == [{**started, "answer": "found and then?"}]
        assert never == []
        (helper,) = await engine.helpers(chat.id)
        assert helper.usage.input_tokens == 1 + 2
        assert [trace for chat_id, trace in observer.traces if chat_id == helper.id] == [f"trace of {helper.id}"] * 2
        assert answer.chat.helpers_usage == helper.usage
        assert await engine.family_usage(chat.id) == answer.chat.usage + helper.usage
        (question,) = [said for said in await engine.messages(helper.id) if said.text == "and then?"]
        records = [record for record in await engine.audit(helper.id) if record.trigger == "send_message"]
        assert (question.role, {record.actor for record in records}) == ("user", {f"chat:{chat.id}"})
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict
        await engine.delete_chat(helper.id)
        assert await engine.family_usage(chat.id) == answer.chat.usage.marked_partial()


async def test_stop_helper_interrupts_the_subagent(open_engine: OpenEngine) -> None:
    research = Research()
    research.gate = anyio.Event()
    model = lead(starts("one"), calls("list_helpers"), calls("stop_helper", helper=0), waits, calls("list_helpers"))
    async with open_engine(None, agents=family(model, research)) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
        started, listed, stopped, heard, at_last = await outputs(engine, chat.id)
        assert listed[0] | {"state": ""} == {**started, "agent": "research", "task": "one", "state": ""}
        assert listed[0]["state"] in ("pending", "streaming")
        assert stopped == {**started, "state": "interrupted"}
        assert heard == [{**started, "error": "The helper was stopped before it had finished its task."}]
        assert [one["state"] for one in at_last] == ["interrupted"]


@pytest.mark.parametrize("name", ["wait_for_helpers", "message_helper", "stop_helper"])
async def test_chat_cannot_reach_subagents_of_another_chat(open_engine: OpenEngine, name: str) -> None:
    """Nor on any other chat, and what there is cannot be told from what there is not."""
    theirs: list[str] = []

    def meddle(_seen: list[Any]) -> Sequence[Call]:
        return [
            Call(name, {"helpers": [one]} if name.startswith("wait") else _arguments(name, one))
            for one in [*theirs, "c" * 26, ""]
        ]

    models = [lead(starts("one"), waits), lead(meddle)]
    research = Agent("research", Research())
    agents = [Agent(f"lead{n}", one, tools=[delegate(research, background=True)]) for n, one in enumerate(models)]
    async with open_engine(None, agents=[*agents, research]) as engine:
        owner, meddler = [await engine.create_chat(agent=f"lead{n}") for n in (0, 1)]
        with anyio.fail_after(60):
            await engine.ask(owner.id, "go")
            (helper,) = await engine.helpers(owner.id)
            before = [helper, await engine.get_chat(owner.id)]
            theirs += [helper.id, owner.id, meddler.id]
            await engine.ask(meddler.id, "go")
        said = await outputs(engine, meddler.id)
        refusals = [one[0]["error"] if isinstance(one, list) else one for one in said]
        asked = [*theirs, "c" * 26]
        assert refusals[:4] == [f"You have no helper {one!r}." for one in asked]
        assert len(refusals) == 5
        assert [await engine.get_chat(helper.id), await engine.get_chat(owner.id)] == before


def _arguments(name: str, helper: str) -> dict[str, Any]:
    return {"helper": helper, "message": "psst"} if name == "message_helper" else {"helper": helper}


@pytest.mark.parametrize("how", ["edit", "message"])
@pytest.mark.parametrize("stays", [False, True])
async def test_only_an_edit_of_a_chat_at_rest_stops_its_subagents(
    open_engine: OpenEngine, how: str, *, stays: bool
) -> None:
    research = Research()
    research.gate = anyio.Event()
    model = lead(starts("one"), lambda _: "I go on")
    agents = family(model, research, on_interrupt="leave" if stays else "stop")
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            assert (await engine.ask(chat.id, "go")).text == "I go on"
            (helper,) = await engine.helpers(chat.id)
            while not research.busy:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        if how == "edit":
            await engine.edit_message(chat.id, "m1", "stay")
        else:
            await engine.send_message(chat.id, "stay", when_busy="interrupt")
        if stays or how == "message":  # a chat at rest is not interrupted by a message
            await anyio.sleep(0.1)
            assert (await engine.get_chat(helper.id)).state is ChatState.streaming
            research.gate.set()
            assert (await resting(engine, helper.id)).state is ChatState.waiting
        else:
            assert (await resting(engine, helper.id)).state is ChatState.interrupted
            (stop,) = [one for one in await engine.audit(helper.id) if one.trigger == "interrupt"]
            assert stop.actor == f"chat:{chat.id}"
        research.gate.set()
        await resting(engine, chat.id)


@pytest.mark.parametrize("how", ["interrupt", "edit", "message"])
@pytest.mark.parametrize("stays", [False, True])
async def test_ending_a_turn_midway_stops_background_subagents(
    open_engine: OpenEngine, how: str, *, stays: bool
) -> None:
    research = Research()
    research.gate = anyio.Event()
    turns: list[None] = []

    def first(seen: list[Any]) -> Sequence[Call] | str:
        turns.append(None)
        return starts("one", "two")(seen) if len(turns) == 1 else "I stay"

    agents = family(lead(first, waits), research, on_interrupt="leave" if stays else "stop")
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            while research.busy < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        match how:
            case "interrupt":
                await engine.interrupt(chat.id)
            case "edit":
                await engine.edit_message(chat.id, "m1", "stay")
            case "message":
                await engine.send_message(chat.id, "stay", when_busy="interrupt")
        assert (await resting(engine, chat.id)).state == ("interrupted" if how == "interrupt" else "waiting")
        if stays:
            research.gate.set()
        for helper in await engine.helpers(chat.id):
            assert (await resting(engine, helper.id)).state == ("waiting" if stays else "interrupted")


async def test_running_and_unread_subagents_are_limited(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_calls, "UNHEARD", 5)
    research = Research()
    model = lead(starts(*"abcdefgh"), waits)
    agents = family(model, research, settings=Settings(helpers_at_once=2))
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
        *said, heard = await outputs(engine, chat.id)
        assert sum(isinstance(one, dict) for one in said) == 5
        assert {one for one in said if isinstance(one, str)} == {
            "Not begun: wait for the 5 helpers first whose answers you have not heard."
        }
        assert len(heard) == 5
        assert research.most <= 2


@pytest.mark.parametrize("fate", ["deleted", "never here"])
async def test_missing_background_subagent_takes_no_slot(open_engine: OpenEngine, fate: str) -> None:
    batches = iter([[Call("start_research", {"task": "one"})], [Call("ask_research", {"task": "two"})]])
    helper, model = Agent("research", Research()), lead(lambda _seen: next(batches))
    tools = [delegate(helper, background=True), delegate(helper)]
    agents = [Agent("lead", model, tools=tools, settings=Settings(helpers_at_once=1)), helper]
    async with open_engine(None, agents=agents) as engine, open_engine(None, store="sqlite://", agents=agents) as other:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
            (one,) = await engine.helpers(chat.id)
            await engine.wait(one.id)
            if fate == "deleted":
                await engine.delete_chat(one.id)
            else:
                await other.import_chat([line async for line in engine.export_chat(chat.id)])
            here = engine if fate == "deleted" else other
            assert (await here.ask(chat.id, "more")).text == "done: found two"


@pytest.mark.parametrize("step", ["start_research", "message_helper", "wait_for_helpers"])
async def test_call_cut_off_by_a_crash_takes_effect_once(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process dies when a call has had its effect, and has no answer yet."""

    def agents() -> list[Agent]:
        model = lead(starts("one"), calls("message_helper", helper=0, message="more"), waits)
        return family(model, Research())

    with monkeypatch.context() as patch:
        submit = HelperCalls._submit

        async def dies(self: HelperCalls, call: Any, said: Any) -> None:
            if call.name == step:
                raise RuntimeError("the process dies here")
            await submit(self, call, said)

        patch.setattr(HelperCalls, "_submit", dies)
        async with open_engine(None, agents=agents()) as engine:
            chat = await engine.create_chat(agent="lead")
            await engine.send_message(chat.id, "go")
            with anyio.fail_after(60):
                while step not in [call.name for call in (await engine.get_chat(chat.id)).open_calls]:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await anyio.sleep(0.1)
    async with open_engine(None, agents=agents()) as engine:
        assert (await resting(engine, chat.id)).state is ChatState.waiting
        (helper,) = await engine.helpers(chat.id)
        asked = [said.text for said in await engine.messages(helper.id) if said.role == "user"]
        assert asked == ["one", "more"]
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict


async def test_deleting_a_chat_stops_subagents_that_await_clients(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their calls would stand open for ever in the inbox of a person who has nothing to gain by an answer."""
    monkeypatch.setattr(helpers, "SWEPT", 1)

    @tool(policy="ask")
    async def buy() -> str:
        """Buy it."""
        raise AssertionError("nobody has allowed that")

    def buys(_seen: list[Any]) -> Sequence[Call]:
        begun.set()
        return [Call("buy", {})]

    begun = anyio.Event()
    buyer, another = (Agent(name, lead(buys), tools=[buy]) for name in ("buyer", "another"))
    research = Agent("research", lead(lambda _seen: [Call("ask_buyer", {"task": "buy"})]), tools=[delegate(buyer)])
    asks = lead(starts("one"), lambda _: "I go on")
    agents = [Agent("lead", asks, tools=[delegate(research, background=True)]), research, buyer, another]
    async with open_engine(None, agents=agents, settings=Settings(lease=1, renew_every=0.2)) as engine:
        chat, other = await engine.create_chat(agent="lead"), await engine.create_chat(agent="another")
        with anyio.fail_after(60):
            await engine.ask(other.id, "go")
            begun = anyio.Event()
            await engine.ask(chat.id, "go")
            (helper,) = await engine.helpers(chat.id)
            await begun.wait()
            (below,) = await engine.helpers(helper.id)
            await engine.wait(helper.id, until=["requires_action"])
            await engine.wait(below.id, until=["requires_action"])
            await engine.delete_chat(chat.id)
            for one in (helper, below):
                await engine.wait(one.id, until=["interrupted"])
        assert [one.id for one in (await engine.list_chats(state="requires_action")).items] == [other.id]
        (stopped,) = [record for record in await engine.audit(helper.id) if record.trigger == "interrupt"]
        assert stopped.actor == f"chat:{chat.id}"


async def test_long_answers_leave_room_for_the_other_answers(open_engine: OpenEngine) -> None:
    """All their answers are one result: the last ones would be cut off whole, and nobody would know of them."""
    research = Agent("research", ScriptedModel(lambda request: Reply("x" * 60_000 + request.messages[0].text)))
    terse = Agent("terse", ScriptedModel(lambda _: Reply("brief")))
    asks = lead(lambda _: [*starts("one", "two")([]), Call("start_terse", {"task": "three"})], waits)
    tools = [delegate(agent, background=True) for agent in (research, terse)]
    async with open_engine(None, agents=[Agent("lead", asks, tools=tools), research, terse]) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
        *started, heard = await outputs(engine, chat.id)
        assert [one["helper"] for one in heard] == [one["helper"] for one in started]
        one, two, three = [one["answer"] for one in heard]
        assert one == two
        assert one.startswith("x" * 32_000)
        assert one.endswith("of 60003 bytes are not shown]")
        assert three == "brief"


async def test_fork_has_no_subagents_of_its_parent(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(lead(starts("one"), lambda _: "I go on"), Research())) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
            (helper,) = await engine.helpers(chat.id)
            await engine.wait(helper.id)
            fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
        assert await engine.helpers(fork.id) == []


async def test_change_during_a_check_of_subagents_is_checked_again(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def answer(look: HelperCalls) -> None:
        looks.append(look._parent.chat_id)
        if len(looks) == 1:
            worker._helpers._look_after(chat.id)

    monkeypatch.setattr(HelperCalls, "answer", answer)
    async with open_engine(Research()) as engine:
        chat, worker = await engine.create_chat(), cast("Worker", engine._worker)
        worker._helpers._look_after(chat.id)
        await worker._helpers._looks[chat.id].over.wait()
    assert looks == [chat.id, chat.id]


async def five_asked(open_engine: OpenEngine) -> tuple[Chat, list[Agent]]:
    """Return a chat that waits for five helpers, of which three may work, and its agents."""
    helper = Agent("research", Research())
    asks = lead(lambda _seen: [Call("ask_research", {"task": task}) for task in "abcde"])
    agents = [Agent("lead", asks, tools=[delegate(helper)], settings=Settings(helpers_at_once=3)), helper]
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        await engine.wait(chat.id, until=["requires_action"], timeout=60)
    return chat, agents


async def test_no_more_subagents_start_than_may_run(
    open_engine: OpenEngine, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Helpers, "_look_after", lambda _self, _chat_id: None)
    (chat, agents), nobody = await five_asked(open_engine), cast("Any", None)
    store: Any = stored_at(database)
    await store.open()
    try:
        parent = await store.facts(chat.id)
        runtime = runtime_of(store, ManualClock(), agents=Agents(agents, Settings()))
        for _ in range(2):
            await HelperCalls(runtime, nobody, parent=parent).answer()
            begun = sorted(await store.children(chat.id))
            assert begun == sorted(helper_id(chat.id, call.call_id) for call in parent.open_calls[:3])
    finally:
        await store.close()


def test_background_tools_reserve_their_names() -> None:
    @tool
    async def list_helpers() -> str:
        """List something else."""
        return ""

    research = Agent("research", "demo")
    two = [delegate(research, background=True), delegate(research, background=True, name="start_other")]
    Engine("sqlite://", agents=[Agent("lead", "demo", tools=two), research])
    with pytest.raises(SettingsError, match="list_helpers"):
        Engine("sqlite://", agents=[Agent("lead", "demo", tools=[*two, list_helpers]), research])
    Engine("sqlite://", agents=[Agent("lead", "demo", tools=[delegate(research), list_helpers]), research])
