"""Titles: made once, after the first answer, in the background; turns do not wait for them, and names stay."""

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.engines import MakeModel, OpenChat, OpenEngine
from support.latches import Latch
from support.life import NOW, text_parts
from turnwise import ChatState, Engine, Message, Observer, RequestContext, RetryPolicy, Settings, TurnResult, Usage
from turnwise.engine.observers.observer import ModelCall
from turnwise.engine.worker.titles import (
    LONGEST_TITLE,
    TITLE_PROMPT,
    TitleSource,
    first_line_of,
    source_of,
    title_in,
    title_messages,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import ReasoningPart, TextPart, ToolCallPart
from turnwise.states.model_errors import ModelError
from turnwise.states.values.digests import canonical

BY_MODEL = Settings(title="model", retry=RetryPolicy(first_delay=0.001))
BY_LINE = Settings(title="first_line")
NAMED = Reply('"Singing foxes"', usage=(40, 4))
HI = "Why do foxes sing?\nTell me all."


async def settled(engine: Engine) -> None:
    """Wait until no chat runs and no title is in progress: a turn's title starts just after its last event."""
    worker: Any = engine._worker
    with anyio.fail_after(60):
        while worker._slots.runners:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        await worker.chats.titles.done()


async def say(engine: Engine, chat_id: str, text: str = HI) -> TurnResult:
    result = await engine.ask(chat_id, text, timeout=60)
    await settled(engine)
    return result


async def renamings(engine: Engine, chat_id: str) -> list[str]:
    return [record.actor for record in await engine.audit(chat_id) if record.trigger == "renamed"]


def asked(model: ScriptedModel) -> int:
    return sum(request.purpose == "title" for request in model.requests)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "title_failed" in record.getMessage()]


async def test_model_titles_a_chat_once_after_its_first_answer(strict_model: MakeModel, open_chat: OpenChat) -> None:
    model = strict_model(Reply("Because.", usage=(10, 2)), title=NAMED)
    async with open_chat(model, settings=BY_MODEL, system="You are terse.") as (engine, chat, _):
        result = await say(engine, chat.id)
        named = await engine.get_chat(chat.id)
        assert (named.title, named.state) == ("Singing foxes", ChatState.waiting)
        await say(engine, chat.id, "And owls?")
        assert await renamings(engine, chat.id) == ["system"]
        assert asked(model) == 1
        entries = [
            (entry.purpose, entry.turn, entry.step, entry.attempt, entry.usage.input_tokens)
            for entry in await engine.usage(chat.id)
        ]
        assert entries == [("step", 1, 1, 1, 10), ("title", 0, 0, 0, 40), ("step", 2, 2, 1, 10)]
        assert (await engine.get_chat(chat.id)).usage == Usage(input_tokens=60, output_tokens=8)
        assert result.usage == Usage(input_tokens=10, output_tokens=2)
    request = next(request for request in model.requests if request.purpose == "title")
    assert [message.text for message in request.messages] == [HI, "Because.", TITLE_PROMPT]
    assert (request.system, request.tools, request.parameters) == (None, (), {})


@pytest.mark.parametrize(
    ("content", "title"), [(HI, "Why do foxes sing?"), ("\n# Foxes\n", "Foxes"), ("x " * 99, "x " * 39 + "x…")]
)
async def test_first_line_title_costs_no_model_call(content: str, title: str, open_chat: OpenChat) -> None:
    model = ScriptedModel("Because.")
    async with open_chat(model, settings=BY_LINE) as (engine, chat, _):
        await say(engine, chat.id, content)
        assert (await engine.get_chat(chat.id)).title == title
        assert await renamings(engine, chat.id) == ["system"]
        assert [entry.purpose for entry in await engine.usage(chat.id)] == ["step"]
    assert asked(model) == 0


async def test_neither_turn_nor_close_waits_for_a_title(
    open_engine: OpenEngine, database: Path, open_chat: OpenChat
) -> None:
    model = ScriptedModel("Because.", title=Reply(stall_after=0))
    settings = Settings(title="model", shutdown_grace=0.1)
    async with open_chat(model, settings=settings) as (engine, chat, _):
        for _ in range(3):
            await engine.ask(chat.id, HI, timeout=60)
        start = time.perf_counter()
    assert time.perf_counter() - start < 30
    assert asked(model) == 1  # one at a time for a chat
    async with open_engine(ScriptedModel("Because.", title=NAMED), settings=BY_MODEL) as engine:
        assert (await engine.get_chat(chat.id)).title is None
        await say(engine, chat.id, "And owls?")
        assert (await engine.get_chat(chat.id)).title == "Singing foxes"
        assert await renamings(engine, chat.id) == ["system"]


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        (Reply(error=ModelError("authentication", message="no key")), "no key"),
        (Reply(error=RuntimeError("the adapter broke")), "the adapter broke"),
        (Reply(calls=[Call("look", {})]), "the model returned no text"),
        (Reply("I'm sorry, but I can't help with that.", stop_reason="content_filter"), "the provider refused"),
        (Reply("Singing fo", stop_reason="max_tokens"), "truncated"),
        (Reply("Singing fo", stop_reason="abort"), "unknown finish reason 'abort'"),
    ],
)
async def test_failed_title_is_logged_once_and_not_retried(
    caplog: pytest.LogCaptureFixture, title: Any, problem: str, open_chat: OpenChat
) -> None:
    model = ScriptedModel(Reply("Because.", usage=(10, 2)), title=title)
    async with open_chat(model, settings=BY_MODEL) as (engine, chat, _):
        for _ in range(3):
            result = await say(engine, chat.id)
            assert (result.stop_reason, result.chat.last_error) == ("end_turn", None)
        named = await engine.get_chat(chat.id)
        assert (named.title, named.state) == (None, ChatState.waiting)
        assert named.usage == Usage(input_tokens=30, output_tokens=6, partial=True)
        assert [entry.purpose for entry in await engine.usage(chat.id)] == ["step", "title", "step", "step"]
    (line,) = failures(caplog)
    assert problem in line
    assert asked(model) == 1


async def test_next_turn_retries_a_transient_title_failure(open_chat: OpenChat) -> None:
    replies = iter([Reply(error=ModelError("overloaded")), Reply(error=ModelError("network")), NAMED])
    model = ScriptedModel("Because.", title=lambda _: next(replies))
    async with open_chat(model, settings=BY_MODEL) as (engine, chat, _):
        for title in (None, None, "Singing foxes", "Singing foxes"):
            await say(engine, chat.id)
            assert (await engine.get_chat(chat.id)).title == title
        spent = [entry.usage for entry in await engine.usage(chat.id) if entry.purpose == "title"]
        assert spent == [Usage(partial=True), Usage(partial=True), Usage(input_tokens=40, output_tokens=4)]
    assert asked(model) == 3


async def test_title_falls_back_as_turns_do(tmp_path: Path) -> None:
    """At once, and only after failures for which a turn would ask the next model."""
    for kind, title in (("overloaded", "Singing foxes"), ("bad_request", None)):
        first = ScriptedModel(["Because."], title=Reply(error=ModelError(kind)))
        second = ScriptedModel([], title=NAMED)
        async with Engine(f"sqlite:///{tmp_path}/{kind}.db", model=[first, second], settings=BY_MODEL) as engine:
            chat = await engine.create_chat()
            await say(engine, chat.id)
            assert (await engine.get_chat(chat.id)).title == title
        assert (asked(first), asked(second)) == (1, 1 if title else 0)


async def test_title_never_overwrites_a_rename(open_engine: OpenEngine) -> None:
    latch = Latch()
    model = ScriptedModel("Because.", title=Reply("Foxes", first_delay=1, usage=(40, 4)), sleep=latch.pass_through)
    async with open_engine(model, settings=BY_MODEL) as engine:
        mine, cleared = await engine.create_chat(), await engine.create_chat()
        for chat in (mine, cleared):
            await engine.ask(chat.id, HI)
        while asked(model) < 2:
            await anyio.lowlevel.checkpoint()
        await engine.rename(mine.id, "Mine")
        await engine.rename(cleared.id, "Mine")
        await engine.rename(cleared.id, None)
        latch.open()
        await settled(engine)
        assert [(await engine.get_chat(chat.id)).title for chat in (mine, cleared)] == ["Mine", None]
        assert await renamings(engine, mine.id) == ["client", "system"]  # the second notes what the model used
        spent = [entry.usage.input_tokens for entry in await engine.usage(mine.id) if entry.purpose == "title"]
        assert spent == [40]


async def test_erased_text_appears_in_no_title(open_chat: OpenChat) -> None:
    latch = Latch()
    words = iter(["My secret", "Birds"])
    model = ScriptedModel(
        "Because.", title=lambda _: Reply(next(words), first_delay=1, usage=(40, 4)), sleep=latch.pass_through
    )

    async with open_chat(model, settings=BY_MODEL) as (engine, chat, _):
        await engine.ask(chat.id, "My secret")
        await latch.entered.wait()
        await engine.erase(chat.id, what=["messages"])
        latch.open()
        await settled(engine)
        assert (await engine.get_chat(chat.id)).title is None
        await say(engine, chat.id, "Birds")
        assert (await engine.get_chat(chat.id)).title == "Birds"


async def test_interrupt_or_error_makes_no_title(open_chat: OpenChat) -> None:
    failing = Reply(error=ModelError("authentication"))
    model = ScriptedModel([failing, Reply("Be", stall_after=1), "Because."], title=NAMED)
    async with open_chat(model, settings=BY_MODEL) as (engine, chat, _):
        await engine.ask(chat.id, HI)
        await engine.send_message(chat.id, HI)
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await settled(engine)
        assert asked(model) == 0
        await say(engine, chat.id)
        assert (await engine.get_chat(chat.id)).title == "Singing foxes"


async def test_hooks_and_observers_see_the_title_request(open_engine: OpenEngine) -> None:
    """A hook that hides words from the provider hides them in this request, too."""
    calls: list[ModelCall] = []

    class Watch(Observer):
        def model_called(self, call: ModelCall) -> None:
            calls.append(call)

    def hide(messages: list[Message], context: RequestContext) -> list[Message] | None:
        contexts.append((context.purpose, context.owner, context.step))
        return messages[1:] if context.purpose == "title" else None

    contexts: list[Any] = []
    model = ScriptedModel("Because.", title=NAMED)
    settings = Settings(title="model", parameters={"temperature": 0.5, "tool_choice": "none"})
    async with open_engine(model, settings=settings, prepare_messages=hide, observers=[Watch()]) as engine:
        chat = await engine.create_chat(owner="u1")
        await say(engine, chat.id)
        assert (await engine.get_chat(chat.id)).title == "Singing foxes"
    assert contexts == [("step", "u1", 1), ("title", "u1", 1)]
    request = model.requests[-1]
    assert [message.text for message in request.messages][-2:] == ["Because.", TITLE_PROMPT]
    assert request.parameters == {"temperature": 0.5}
    assert [(call.request.purpose, call.outcome) for call in calls] == [("step", "succeeded"), ("title", "succeeded")]


LONG = "Why do the foxes of the northern woods always sing so very late in the winter, and who listens to them?"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello there", "Hello there"),
        ("\n\n  Hello \t there \r\nand more", "Hello there"),
        ("# A heading\n\nand text", "A heading"),
        ("# Why **this** and _that_?", "Why this and that?"),
        ("a\x00b\x1b[31mc\u202ed", "a b [31mc d"),
        ("half \ud800 a character", "half \ufffd a character"),
        ("", None),
        (LONG, "Why do the foxes of the northern woods always sing so very late in the winter…"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("say " + "x" * 90, "say " + "x" * 75 + "…"),
    ],
)
def test_first_line_title_is_cut_between_words(text: str, title: str | None) -> None:
    assert first_line_of(text) == title


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Singing foxes", "Singing foxes"),
        ('"Singing foxes".', "Singing foxes"),
        ("Singing foxes.", "Singing foxes"),
        ("“Singing foxes”\n\nThis title says what the conversation is about.", "Singing foxes"),
        ("**Singing foxes**", "Singing foxes"),
        ("**Title:** Singing foxes", "Singing foxes"),
        ("Here is a title:\n\n*Singing foxes*", "Singing foxes"),
        ("Learning C#", "Learning C#"),
        ("Title", "Title"),
        ('"Fox" and "hen"', '"Fox" and "hen"'),
        ("“Fox and “hen”", "“Fox and “hen”"),
        ("the `__init__` of a class", "the `__init__` of a class"),
        ("# Title **bold** and _it_, (*so*)", "Title bold and it, (so)"),
        ("snake_case_names, 2 * 3 * 4 and `*a*`", "snake_case_names, 2 * 3 * 4 and `*a*`"),
        ("only:", "only:"),
        ("", None),
        (' \n""\n ', None),
    ],
)
def test_model_title_loses_quotes_and_markup(reply: str, title: str | None) -> None:
    assert title_in(reply) == title


@given(text=st.text() | st.text(st.characters(codec=None)) | st.text("\"'*_`#. \n:Title“”", max_size=30))
def test_title_is_one_short_storable_line(text: str) -> None:
    for title in (first_line_of(text), title_in(text)):
        if title is not None:
            assert title == title.strip() != ""
            assert len(title) <= LONGEST_TITLE
            assert len(title.splitlines()) == 1
            assert title.isprintable() or not any(ord(one) < 32 for one in title)
            assert canonical(title)


def message(role: Any, *parts: Any, **fields: Any) -> Message:
    return Message(id="m", role=role, parts=parts or text_parts("words"), turn=1, step=1, created_at=NOW, **fields)


def test_title_comes_from_first_question_and_answer() -> None:
    question, answer = message("user", *text_parts("Why?")), message("assistant", *text_parts("Because."))
    call = ToolCallPart(call_id="a", name="look", arguments={})
    before = [
        message("system"),
        message("user", synthetic=True),
        message("user", erased=True),
        message("user", *text_parts(" \n")),
    ]
    between = [
        message("assistant", TextPart(text="I look."), call),
        message("assistant", partial=True),
        message("assistant", erased=True),
        message("assistant", ReasoningPart(text="hm")),
    ]
    assert source_of([*before, question, *between, answer, message("user"), message("assistant")]) == (question, answer)
    assert source_of([*before, question, *between]) == (question, None)
    assert source_of([*before, answer]) is None
    assert source_of([]) is None


def test_title_request_holds_shortened_text_only() -> None:
    question = message("user", *text_parts("q" * 5000))
    answer = message("assistant", ReasoningPart(text="hm", signature="s"), *text_parts("Because."))
    shown = title_messages(source_of([question, answer]))  # type: ignore[arg-type] - it is there
    expected = [("user", "qqqqqqqq"), ("assistant", "Because."), ("user", "Give the")]
    assert [(one.role, one.text[:8]) for one in shown] == expected
    assert len(shown[0].text) == 4000
    assert [len(one.parts) for one in shown] == [1, 1, 1]
    assert [one.step for one in shown[:2]] == [0, 0], "what is shown is not all that the model made in a step"
    assert [one.text[:8] for one in title_messages(TitleSource(question, None))] == ["qqqqqqqq", "Give the"]
