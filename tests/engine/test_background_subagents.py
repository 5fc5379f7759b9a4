"""Background subagents: the chat starts, awaits, messages, stops and lists them."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.engine.subagents import Research, asked, calls, family, lead, outputs, sent, starts, waits

from support.engines import OpenEngine
from turnwise import Agent, Engine, ModelCall, Observer, Settings, SettingsError, delegate, tool
from turnwise.engine.subagents import calls as subagent_calls
from turnwise.engine.subagents.calls import SubagentCalls
from turnwise.providers.scripted import Call, Reply, ScriptedModel


def background(model: ScriptedModel, research: Research, **options: Any) -> list[Agent]:
    return family(model, research, background=True, **options)


async def test_wait_covers_subagents_started_in_the_same_step(open_engine: OpenEngine) -> None:
    def both(_seen: list[Any]) -> Sequence[Call]:
        return [*starts("one")([]), *waits([]), *starts("two")([])]

    async with open_engine(None, agents=background(lead(both), Research())) as engine:
        _, answers, _ = await outputs(engine, (await asked(engine)).id)
        assert [one["answer"] for one in answers] == ["found one", "found two"]


class Traced(Observer):
    """Gives every turn a trace, and records the trace of each model call."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, str | None]] = []

    def turn_trace(self, chat_id: str) -> str | None:
        return f"trace of {chat_id}"

    def model_called(self, call: ModelCall) -> None:
        self.traces.append((call.request.chat_id, call.trace))


async def test_message_to_subagent_is_answered_and_charged_once(open_engine: OpenEngine) -> None:
    model = lead(starts("one"), waits, calls("message_subagent", subagent=0, message="and then?"), waits, waits)
    observer = Traced()
    async with open_engine(None, agents=background(model, Research()), observers=[observer]) as engine:
        chat = await asked(engine)
        started, first, sending, second, nothing = await outputs(engine, chat.id)
        assert sending == started
        assert [first, second, nothing] == [
            [{**started, "answer": "found one"}],
            [{**started, "answer": "found and then?"}],
            [],
        ]
        (subagent,) = await engine.subagents(chat.id)
        assert subagent.usage.input_tokens == 1 + 2
        traces = [trace for chat_id, trace in observer.traces if chat_id == subagent.id]
        assert traces == [f"trace of {subagent.id}"] * 2
        assert chat.subagents_usage == subagent.usage
        assert await engine.family_usage(chat.id) == chat.usage + subagent.usage
        records = [record for record in await engine.audit(subagent.id) if record.trigger == "send_message"]
        assert {record.actor for record in records} == {f"chat:{chat.id}"}
        assert (await engine.verify(chat.id, family=True)).ok
        await engine.delete_chat(subagent.id)
        assert await engine.family_usage(chat.id) == chat.usage.marked_partial()


async def test_stop_subagent_interrupts_the_subagent(open_engine: OpenEngine) -> None:
    model = lead(
        starts("one"), calls("list_subagents"), calls("stop_subagent", subagent=0), waits, calls("list_subagents")
    )
    async with open_engine(None, agents=background(model, Research(held=True))) as engine:
        chat = await asked(engine)
        started, listed, stopped, answers, at_last = await outputs(engine, chat.id)
        assert listed[0] | {"state": ""} == {**started, "agent": "research", "task": "one", "state": ""}
        assert listed[0]["state"] in ("pending", "streaming")
        assert stopped == {**started, "state": "interrupted"}
        assert answers == [{**started, "error": "The subagent was stopped before it had finished its task."}]
        assert [one["state"] for one in at_last] == ["interrupted"]


@pytest.mark.parametrize("name", ["wait_for_subagents", "message_subagent", "stop_subagent"])
async def test_chat_cannot_reach_subagents_of_another_chat(open_engine: OpenEngine, name: str) -> None:
    """Existing and unknown chats get the same answer."""
    theirs: list[str] = []

    def call(one: str) -> Call:
        more = {"message": "psst"} if name == "message_subagent" else {}
        return Call(name, {"subagents": [one]} if name == "wait_for_subagents" else {"subagent": one, **more})

    def meddle(_seen: list[Any]) -> Sequence[Call]:
        return [call(one) for one in [*theirs, "c" * 26, ""]]

    research = Agent("research", Research())
    models = {"lead": lead(starts("one"), waits), "meddler": lead(meddle)}
    agents = [Agent(key, model, tools=[delegate(research, background=True)]) for key, model in models.items()]
    async with open_engine(None, agents=[*agents, research]) as engine:
        owner, meddler = await asked(engine), await engine.create_chat(agent="meddler")
        (subagent,) = await engine.subagents(owner.id)
        theirs += [subagent.id, owner.id, meddler.id]
        await engine.ask(meddler.id, "go", timeout=60)
        refusals = [one[0]["error"] if isinstance(one, list) else one for one in await outputs(engine, meddler.id)]
        assert refusals[:4] == [f"You have no subagent {one!r}." for one in [*theirs, "c" * 26]]
        assert len(refusals) == 5
        assert [await engine.get_chat(subagent.id), await engine.get_chat(owner.id)] == [subagent, owner]


async def test_running_and_unread_subagents_are_limited(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subagent_calls, "MOST_UNREPORTED", 5)
    research = Research()
    agents = background(lead(starts(*"abcdefgh"), waits), research, settings=Settings(subagents_at_once=2))
    async with open_engine(None, agents=agents) as engine:
        *started, answers = await outputs(engine, (await asked(engine)).id)
        assert sum(isinstance(one, dict) for one in started) == 5
        assert {one for one in started if isinstance(one, str)} == {
            "Not started: wait for the 5 subagents first whose answers you have not received."
        }
        assert len(answers) == 5
        assert research.most <= 2


@pytest.mark.parametrize(
    "step", ["start_research", "message_subagent", pytest.param("wait_for_subagents", marks=pytest.mark.deep)]
)
async def test_call_cut_off_by_a_crash_takes_effect_once(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process dies between a call's effect and its result."""
    model = lead(starts("one"), calls("message_subagent", subagent=0, message="more"), waits)
    with monkeypatch.context() as patch:
        submit = SubagentCalls._submit

        async def dies(self: SubagentCalls, call: Any, answer: Any) -> None:
            if call.name == step:
                died.set()
                raise RuntimeError("the process dies here")
            await submit(self, call, answer)

        died = anyio.Event()
        patch.setattr(SubagentCalls, "_submit", dies)
        async with open_engine(None, agents=background(model, Research())) as engine:
            chat = await sent(engine)
            with anyio.fail_after(60):
                await died.wait()
    async with open_engine(None, agents=background(model, Research())) as engine:
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"
        (subagent,) = await engine.subagents(chat.id)
        questions = [one.text for one in await engine.messages(subagent.id) if one.role == "user"]
        assert questions == ["one", "more"]
        assert (await engine.verify(chat.id, family=True)).ok


async def test_long_answers_leave_room_for_the_other_answers(open_engine: OpenEngine) -> None:
    """All answers share one result, whose end is truncated."""
    research = Agent("research", ScriptedModel(lambda request: Reply("x" * 60_000 + request.messages[0].text)))
    terse = Agent("terse", ScriptedModel(lambda _: Reply("brief")))
    model = lead(lambda _: [*starts("one", "two")([]), Call("start_terse", {"task": "three"})], waits)
    agents = [*family(model, research, background=True, tools=[delegate(terse, background=True)]), terse]
    async with open_engine(None, agents=agents) as engine:
        *started, answers = await outputs(engine, (await asked(engine)).id)
        assert [one["subagent"] for one in answers] == [one["subagent"] for one in started]
        one, two, three = [one["answer"] for one in answers]
        assert one == two
        assert one.startswith("x" * 32_000)
        assert one.endswith("of 60003 bytes are not shown]")
        assert three == "brief"


def test_background_tools_reserve_their_names() -> None:
    @tool
    async def list_subagents() -> str:
        """List something else."""
        return ""

    research = Agent("research", "demo")
    two = [delegate(research, background=True), delegate(research, background=True, name="start_other")]
    Engine("sqlite://", agents=[Agent("lead", "demo", tools=two), research])
    with pytest.raises(SettingsError, match="list_subagents"):
        Engine("sqlite://", agents=[Agent("lead", "demo", tools=[*two, list_subagents]), research])
    Engine("sqlite://", agents=[Agent("lead", "demo", tools=[delegate(research), list_subagents]), research])
