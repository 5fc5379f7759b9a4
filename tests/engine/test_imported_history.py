"""A chat may begin with what was said elsewhere: all of it is checked before anything is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.engines import MakeModel, OpenEngine
from support.eventful_life import ASK
from support.exploring import examples
from turnwise import (
    ClientTool,
    Engine,
    FilePart,
    InvalidArgument,
    InvalidContent,
    Message,
    MessageNotFound,
    Page,
    Settings,
    TextPart,
    ToolResult,
    Usage,
    fold,
    tool,
)
from turnwise.engine.imported_history import imported_history
from turnwise.engine.prompt.title import source_of
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import ReasoningPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor, Tail
from turnwise.testing.clock import ManualClock
from turnwise.testing.strict import StrictModel

ASKED: dict[str, Any] = {
    "role": "assistant",
    "parts": [
        {"type": "text", "text": "I look."},
        {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {"at": "door"}},
        {"type": "tool_call", "call_id": "b", "name": "look", "arguments": {}},
    ],
}


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def answer(call_id: str, name: str = "look", **more: Any) -> dict[str, Any]:
    part = {"type": "tool_result", "call_id": call_id, "name": name, "output": f"saw {call_id}"}
    return {"role": "tool", "parts": [part | more]}


HI = said("user", "Hi")
TALK = [HI, said("assistant", "Hello!"), said("user", "Look."), ASKED, answer("b"), answer("a")]


async def test_model_sees_the_imported_history(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["It is shut."])
    async with open_engine(model) as engine:
        chat = await engine.create_chat(history=[*TALK, said("assistant", "A door.")])
        assert (chat.state, chat.version, chat.turn, chat.step) == ("waiting", 1, 2, 3)
        result = await engine.ask(chat.id, "Shut?")
        assert (result.text, result.chat.turn) == ("It is shut.", 3)

        sent = model.requests[0].messages
        assert [one.role for one in sent] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
        ]
        assert [one.result.call_id for one in sent if one.result] == ["a", "b"]
        assert sent[3].calls[0].arguments == {"at": "door"}


async def test_imported_messages_are_marked(open_engine: OpenEngine) -> None:
    async with open_engine(ScriptedModel(["ok"])) as engine:
        chat = await engine.create_chat(history=[HI, said("assistant", "Hello!")])
        await engine.ask(chat.id, "More?")
        for view in ("user", "model", "raw"):
            messages = await engine.messages(chat.id, view=view)  # type: ignore[arg-type]
            assert [one.imported for one in messages] == [True, True, False, False]
        assert [(one.id, one.turn, one.step) for one in messages] == [
            ("m1", 1, 0),
            ("m2", 1, 1),
            ("m3", 2, 0),
            ("m4", 2, 2),
        ]

        events = [event async for event in engine.events(chat.id, follow=False)]
        transcript = fold(events)
        assert [one.imported for one in transcript.messages] == [True, True, False, False]
        assert transcript.messages == (await engine.transcript(chat.id)).messages
        assert [event.turn for event in events if event.kind == "turn_finished"] == [2]


async def test_log_records_each_imported_message(open_engine: OpenEngine) -> None:
    async with open_engine(ScriptedModel([])) as engine:
        chat = await engine.create_chat(history=TALK, actor="user:ann")
        (record,) = await engine.audit(chat.id)
        assert (record.trigger, record.actor, record.reason) == ("create", "user:ann", "imported messages: 6")
        assert [one.id for one in record.writes if one.kind == "message"] == [f"m{number}" for number in range(1, 7)]
        empty = await engine.create_chat(history=[])
        assert (await engine.audit(empty.id))[0].reason is None


async def test_file_limits_apply_to_imported_files(open_engine: OpenEngine) -> None:
    page, big = FilePart.from_bytes(b"<p>", "text/html"), FilePart.from_bytes(b"x" * 11, "image/png")
    address, good = FilePart(media_type="video/mp4", url="https://a.example/x"), FilePart.from_bytes(b"x", "image/png")
    in_address = FilePart(media_type="image/png", url="data:,xxxxxxxxxxx")
    settings = Settings(file_types=["image/*"], file_limit_bytes=10)
    async with open_engine(ScriptedModel([]), settings=settings) as engine:
        for bad, problem in (
            (page, "'text/html' are not allowed"),
            (big, "at most 10 bytes"),
            (in_address, "at most 10 bytes"),
            (address, "'video/mp4'"),
        ):
            for history in (
                [{"role": "user", "parts": [good, bad]}],
                [HI, {"role": "assistant", "parts": [good, bad]}],
                [*TALK[:4], answer("a", attachments=[good, bad]), answer("b")],
            ):
                with pytest.raises(InvalidContent, match=rf"^history\[\d\]\.parts: .*{problem}"):
                    await engine.create_chat(history=history)
        assert await engine.list_chats() == Page([], None)
        chat = await engine.create_chat(history=[{"role": "user", "parts": [good]}])
        assert (await engine.messages(chat.id))[0].parts == (good,)


async def test_import_charges_nothing(open_engine: OpenEngine) -> None:
    paid = Message(
        id="x",
        role="assistant",
        parts=(TextPart(text="Hello!"),),
        turn=9,
        step=9,
        created_at=datetime(2020, 1, 1, tzinfo=UTC),
        usage=Usage(input_tokens=1000, output_tokens=1000),
        agent="other",
        model="gpt-5",
        provider="openai",
        response_id="r",
        finish_reason="stop",
        tools_digest="0" * 64,
        parameters_digest="1" * 64,
    )
    async with open_engine(ScriptedModel([Reply("ok", usage=(3, 4))])) as engine:
        chat = await engine.create_chat(history=[HI, paid])
        assert (chat.usage.input_tokens, chat.usage.output_tokens) == (Usage().input_tokens, Usage().output_tokens)
        assert await engine.usage(chat.id) == []
        (kept,) = [one for one in await engine.messages(chat.id) if one.role == "assistant"]
        assert (kept.agent, kept.model, kept.provider, kept.response_id) == ("other", "gpt-5", "openai", "r")
        assert (kept.finish_reason, kept.usage, kept.tools_digest, kept.parameters_digest) == ("stop", None, None, None)
        assert (kept.created_at, kept.turn, kept.step) == (paid.created_at, 1, 1)
        result = await engine.ask(chat.id, "Go on")
        assert (result.usage.input_tokens, result.chat.usage.input_tokens) == (3, 3)


async def test_import_drops_provider_metadata(open_engine: OpenEngine) -> None:
    """Ids and signatures of another chat would be refused, or would name items of somebody else."""
    own = {"provider": "openai", "id": "item_1"}
    parts = (
        ReasoningPart(text="hm", signature="s", metadata=own),
        ToolCallPart(call_id="p", name="search", arguments={}, executor=Executor.provider, metadata=own),
        ToolResultPart(call_id="p", name="search", output=1, metadata=own),
        TextPart(text="found", metadata=own),
    )
    files = (FilePart(media_type="text/plain", data="aGk=", metadata=own),)
    asked = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}, "metadata": own}
    history = [
        HI,
        {"role": "assistant", "parts": parts},
        {"role": "assistant", "parts": [asked]},
        answer("a", attachments=files),
    ]
    async with open_engine(ScriptedModel([])) as engine:
        chat = await engine.create_chat(history=history)
        messages = await engine.messages(chat.id, view="model")
        everything = [part for one in messages for part in one.parts]
        assert [part.metadata for part in everything] == [None] * 7
        assert [part.signature for part in everything if isinstance(part, ReasoningPart)] == [None]
        (result,) = [one.result for one in messages if one.result]
        assert [(file.data, file.metadata) for file in result.attachments] == [("aGk=", None)]


def _wrong() -> dict[str, tuple[Any, str]]:
    """Return what is no history, with what the error says."""
    call = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}}
    asks = {"role": "assistant", "parts": [call]}
    later = datetime.now(UTC) + timedelta(days=2)
    return {
        "text": ("Hi", r"history: must be a sequence"),
        "number": ([HI, 3], r"history\[1\]: must be a Message, or a mapping .* it was 3"),
        "no role": ([{"content": "Hi"}], r"history\[0\]: .*missing required field `role`"),
        "role": ([said("assistant", "x")], r"history\[0\]\.role: must be 'user' in the first message"),
        "system": ([said("system", "x")], r"history\[0\]: .*give the system prompt as system="),
        "field": (
            [HI, {**asks, "tool_calls": []}],
            r"history\[1\]: has a field 'tool_calls'; a message has role, parts",
        ),
        "part's field": ([HI, {"role": "assistant", "parts": [{**call, "id": 1}]}], r"field 'id'; it may have"),
        "no content": (
            [HI, {"role": "assistant"}],
            r"history\[1\]: needs either content, a text, or parts; it has neither",
        ),
        "both": ([{**HI, "parts": []}], r"it has both"),
        "bytes": ([HI, asks, answer("a", output=b"x")], r"history\[2\]: must hold JSON values only"),
        "surrogate": ([said("user", "\ud800")], r"history\[0\]: .*lone surrogate"),
        "naive time": ([{**HI, "created_at": datetime(2020, 1, 1)}], r"a time with its zone"),  # noqa: DTZ001
        "future": (
            [HI, {**said("assistant", "x"), "created_at": later}],
            r"history\[1\]\.created_at: must not be after",
        ),
        "old": ([{**HI, "created_at": datetime(1, 1, 1, tzinfo=UTC)}], r"a time since 1970; it was 0001"),
        "call without result": ([HI, asks], r"history\[1\]\.parts: call 'a' needs its result right behind"),
        "result too late": ([HI, asks, HI, answer("a")], r"history\[1\]\.parts: call 'a' needs its result"),
        "one of two results": ([HI, ASKED, answer("a")], r"history\[1\]\.parts: call 'b' needs its result"),
        "result without call": ([HI, answer("z")], r"history\[1\]\.parts: .*'z', which no message before it asks for"),
        "result twice": (
            [HI, asks, answer("a"), answer("a")],
            r"history\[3\]\.parts: .*whose one result stands behind",
        ),
        "call twice": ([HI, asks, answer("a"), asks], r"history\[3\]\.parts: .*call 'a' again: history\[1\]"),
        "another tool": (
            [HI, asks, answer("a", "hear")],
            r"history\[2\]\.parts: must name the tool of call 'a', 'look'",
        ),
        "two results in one": (
            [HI, asks, {"role": "tool", "parts": answer("a")["parts"] * 2}],
            r"history\[2\]\.parts: must hold exactly one tool_result",
        ),
        "result inside": (
            [HI, {"role": "assistant", "parts": [call, *answer("a")["parts"]]}],
            r"history\[1\]\.parts: must answer a call that the provider ran",
        ),
        "open result": (
            [HI, asks, answer("a", outcome="planned")],
            r"history\[2\]\.parts: must tell how call 'a' ended",
        ),
        "large": (
            [HI, said("assistant", "x" * 3000)],
            r"history\[1\]: holds .* at most 2,000 \(Settings.message_limit",
        ),
    }


@pytest.mark.parametrize("name", _wrong())
async def test_invalid_history_is_refused_and_writes_nothing(name: str) -> None:
    history, problem = _wrong()[name]
    limits = Settings(message_limit_bytes=2000)
    async with Engine("sqlite://", model=ScriptedModel([]), settings=limits) as engine:
        with pytest.raises(InvalidArgument, match=f"{problem}.*nothing was written"):
            await engine.create_chat(history=history)
        assert (await engine.list_chats()).items == []


async def test_import_keeps_given_times(open_engine: OpenEngine) -> None:
    clock = ManualClock()
    east = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    history = [HI | {"created_at": east}, said("assistant", "x", created_at="2020-01-01T10:00:01Z"), said("user", "y")]
    async with open_engine(ScriptedModel([]), clock=clock) as engine:
        chat = await engine.create_chat(history=history)
        first, second, third = [one.created_at for one in await engine.messages(chat.id)]
        assert (first, second) == (datetime(2020, 1, 1, 10, tzinfo=UTC), datetime(2020, 1, 1, 10, 0, 1, tzinfo=UTC))
        assert third == clock.now()
        with pytest.raises(InvalidContent, match="must not be after the store's time"):
            await engine.create_chat(history=[HI | {"created_at": clock.now() + timedelta(minutes=2)}])


async def test_resume_answers_an_unanswered_import(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    async with open_engine(strict_model(["Hello!", "A door."])) as engine:
        for history, wanted in (([HI], "Hello!"), (TALK, "A door.")):
            chat = await engine.create_chat(history=history)
            await engine.resume(chat.id)
            assert (await engine.wait(chat.id)).state == "waiting"
            assert (await engine.messages(chat.id))[-1].text == wanted


async def test_imported_user_message_can_be_edited(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["anew"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat(history=[*TALK, said("assistant", "A door.")])
        messages = await engine.messages(chat.id)
        with pytest.raises(MessageNotFound):
            await engine.edit_message(chat.id, messages[1].id, "You said otherwise")
        await engine.edit_message(chat.id, messages[2].id, "Listen.")
        await engine.wait(chat.id)
        kept = await engine.messages(chat.id)
        assert [one.text for one in kept] == ["Hi", "Hello!", "Listen.", "anew"]
        assert [one.imported for one in kept] == [True, True, False, False]


async def test_imported_call_id_is_never_reused(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    again = Reply(calls=[Call("ask", {}, id="a")])
    async with open_engine(strict_model([again, again])) as engine:
        chat = await engine.create_chat(history=[*TALK, said("assistant", "A door.")], client_tools=[ASK])
        seen = await engine.ask(chat.id, "more")
        assert [call.call_id for call in seen.open_calls] == ["a-4"]

        other = await engine.create_chat(history=[*TALK, said("assistant", "A door.")], client_tools=[ASK])
        await engine.request_compaction(other.id)
        await engine.wait(other.id)
        hidden = await engine.ask(other.id, "more")
        assert [call.call_id for call in hidden.open_calls] == ["a-5"]


async def test_imported_messages_can_be_forked_and_erased(open_engine: OpenEngine) -> None:
    async with open_engine(ScriptedModel(["ok", "ok"])) as engine:
        chat = await engine.create_chat(history=[*TALK, said("assistant", "A door.")])
        await engine.ask(chat.id, "more")
        fork = await engine.fork(chat.id, at_version=1)
        assert [one.imported for one in await engine.messages(fork.id)] == [True] * 7
        await engine.ask(fork.id, "else?")

        await engine.erase_message(chat.id, "m4")
        await engine.erase_message(chat.id, "m1")
        first, _, _, calls, *_ = await engine.messages(chat.id)
        assert (first.text, first.erased, first.imported) == ("[erased]", True, True)
        assert [call.arguments for call in calls.calls] == [{}, {}]
        assert (await engine.verify(chat.id)).ok
        await engine.delete_chat(chat.id)
        assert (await engine.messages(fork.id))[0].text == "Hi"


def test_import_counts_messages_as_unfolded() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    summary = said("user", "Before: a door.", synthetic=True, audience="model")
    asked, partial = said("user", "More?"), said("assistant", "Two", partial=True)
    for history, foldable, tail in (
        ([], 0, Tail.empty),
        ([summary], 0, Tail.answered),
        ([summary, HI], 1, Tail.awaits_answer),
        (TALK, 6, Tail.awaits_answer),
        ([HI, partial], 2, Tail.partial),
        ([summary, HI, said("assistant", "One"), asked, partial, said("assistant", "Three")], 5, Tail.answered),
    ):
        found = imported_history(history, limit=1000).inheritance(now)
        assert (found.boundary, found.compactions) == (0, 0)
        assert (found.foldable, found.serial, found.tail) == (foldable, len(history), tail)
        assert [message.position for message in found.messages] == [*range(1, len(history) + 1)]


# A history of ours


@tool
async def peek(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


SIGN = ClientTool("sign", "Sign.", {"type": "object"})
STEPS = st.lists(
    st.sampled_from(
        ["answer", "reason", "call", "calls", "client", "provider", "stop", "compact", "clear", "file", "erase"]
    ),
    min_size=1,
    max_size=6,
)


def _told(step: str, number: int) -> Reply:
    calls = [Call("peek", {"at": f"{number}/{place}"}) for place in range(2)]
    match step:
        case "reason":
            return Reply(f"answer {number}", reasoning="hm", signature="s")
        case "call":
            return Reply(f"look {number}", calls=calls[:1])
        case "calls":
            return Reply(calls=calls)
        case "client":
            return Reply(f"sign {number}", calls=[Call("sign", {})])
        case _:
            return Reply(f"answer {number}")


async def _lived(engine: Engine, steps: list[str], script: list[Reply]) -> str:
    chat = await engine.create_chat(client_tools=[SIGN])
    for number, step in enumerate(steps):
        match step:
            case "compact" | "clear" if number:
                await (engine.request_compaction if step == "compact" else engine.clear_context)(chat.id)
                await engine.wait(chat.id)
            case "erase" if number:
                await engine.erase_message(chat.id, "m1")
            case _:
                script += [_told(step, number), *([Reply("then")] if "call" in step or step == "client" else [])]
                picture = FilePart(media_type="image/png", data="aGk=")
                content = [TextPart(text=f"ask {number}"), *([picture] if step == "file" else [])]
                result = await engine.ask(chat.id, content)
                if step == "client":
                    await engine.submit_tool_results(chat.id, [ToolResult(one.call_id, 1) for one in result.open_calls])
                    await engine.wait(chat.id)
    return chat.id


def _as_the_model_sees(message: Message) -> tuple[Any, ...]:
    parts = tuple(
        replace(part, signature=None) if isinstance(part, ReasoningPart) else replace(part, metadata=None)
        for part in message.parts
    )
    return message.role, parts, message.partial, message.audience, message.synthetic


@settings(max_examples=examples(12))
@given(steps=STEPS, spelled=st.booleans())
async def test_copied_history_shows_the_model_the_same(steps: list[str], *, spelled: bool) -> None:
    script: list[Reply] = []
    model = StrictModel(lambda _: script.pop(0))
    async with Engine("sqlite://", model=model, tools=[peek]) as engine:
        chat_id = await _lived(engine, steps, script)
        seen = await engine.messages(chat_id, view="model")
        for view in ("model", "user"):
            if view == "user" and {"compact", "clear"} & {*steps[1:]}:
                continue  # of what was folded the user still sees all, and the model only the summary
            history: list[Any] = [*await engine.messages(chat_id, view=view)]  # type: ignore[arg-type]
            history = [json.loads(one.model_dump_json()) for one in history] if spelled else history
            other = await engine.create_chat(history=history, client_tools=[SIGN])
            script += [Reply("one"), Reply("two")]
            asked = [await engine.ask(one, "And now?") for one in (chat_id, other.id)] and model.requests[-2:]
            first, second = ([_as_the_model_sees(one) for one in request.messages] for request in asked)
            assert second == first
            assert len(first) == len(seen) + 1
            assert (await engine.verify(other.id)).ok
            seen = await engine.messages(chat_id, view="model")
    assert model.faults == []


async def test_imported_partial_answer_continues(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Whoever takes the model's view gets the request to go on with it, which is stored nowhere."""
    model = strict_model([Reply("one two three", chunks=3, stall_after=2), "the rest", "the rest"])
    async with open_engine(model, settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Count.")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        seen = await engine.messages(chat.id, view="model")
        assert (seen[-2].partial, seen[-1].text) == (True, "Continue.")
        for history in (seen, [json.loads(one.model_dump_json()) for one in seen]):
            other = await engine.create_chat(history=history)
            assert [one.text for one in await engine.messages(other.id)] == ["Count.", seen[-2].text]
            await engine.resume(other.id)
            assert (await engine.wait(other.id)).state == "waiting"
            assert [one.text for one in model.requests[-1].messages] == ["Count.", seen[-2].text, "Continue."]


@pytest.mark.parametrize("marks", [{"synthetic": True}, {"audience": "model"}])
async def test_synthetic_message_begins_no_turn(open_engine: OpenEngine, marks: dict[str, Any]) -> None:
    async with open_engine(ScriptedModel([])) as engine:
        chat = await engine.create_chat(history=[HI, said("user", "Before: a door.", **marks), said("assistant", "?")])
        messages = await engine.messages(chat.id, view="model")
        assert [(one.turn, one.step) for one in messages] == [(1, 0), (1, 1), (1, 2)]
        assert [one.text for one in await engine.messages(chat.id, view="raw")] == ["Hi", "?"]


@pytest.mark.parametrize("marks", [{"synthetic": True}, {"audience": "model"}])
async def test_synthetic_message_is_neither_editable_nor_a_title(
    open_engine: OpenEngine, marks: dict[str, Any]
) -> None:
    """No reader may have been told of it: who folds the events would not know what an edit of it has cut."""
    hidden = said("user", "Suspected of fraud.", **marks)
    async with open_engine(ScriptedModel([])) as engine:
        chat = await engine.create_chat(history=[hidden, HI, said("assistant", "Hello!")])
        messages = await engine.messages(chat.id, view="model")
        with pytest.raises(MessageNotFound):
            await engine.edit_message(chat.id, messages[0].id, "Trusted.")
        source = source_of(messages)
        assert source is not None
        assert source.question == messages[1]
