"""A chat may start with an imported history, which is checked completely before any write."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenChat, OpenEngine
from support.eventful_life import ASK
from support.lives import SLOW_STORES, lives_in
from turnwise import ClientTool, Engine, FilePart, Message, Page, Settings, TextPart, ToolResult, Usage, fold, tool
from turnwise.engine.prompt.history import GO_ON
from turnwise.engine.prompt.imported_message import read
from turnwise.engine.worker.titles import source_of
from turnwise.providers.repair_history import HistoryRepair
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import InvalidArgument, InvalidContent, MessageNotFound
from turnwise.states.messages import ReasoningPart, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import Audience, Executor
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


def message_of(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def answer(call_id: str, name: str = "look", **more: Any) -> dict[str, Any]:
    part = {"type": "tool_result", "call_id": call_id, "name": name, "output": f"saw {call_id}"}
    return {"role": "tool", "parts": [part | more]}


HI = message_of("user", "Hi")
TALK = [HI, message_of("assistant", "Hello!"), message_of("user", "Look."), ASKED, answer("b"), answer("a")]


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_chat_may_begin_with_a_greeting(place: str, request: pytest.FixtureRequest) -> None:
    """A synthetic user message precedes the greeting in requests, since providers want the user to start."""
    model = StrictModel([Reply("Blue ones, then.")])
    async with Engine(lives_in(place, request).url, model=model) as engine:
        chat = await engine.create_chat(history=[message_of("assistant", "Good morning! Which shoes?")])
        assert (chat.state, chat.turn) == ("waiting", 1)
        result = await engine.ask(chat.id, "Blue.")
        assert (result.text, result.chat.turn) == ("Blue ones, then.", 2)
        assert [one.text for one in await engine.messages(chat.id)] == [
            "Good morning! Which shoes?",
            "Blue.",
            "Blue ones, then.",
        ]
        assert [(one.role, one.text) for one in model.requests[0].messages] == [
            ("assistant", "Good morning! Which shoes?"),
            ("user", "Blue."),
        ]
        assert (await engine.verify(chat.id)).ok
        events = [event async for event in engine.events(chat.id, follow=False)]
        assert [one.text for one in fold(events).messages] == [one.text for one in await engine.messages(chat.id)]
    repaired = HistoryRepair().repair(model.requests[0])
    assert [one.role for one in repaired] == ["user", "assistant", "user"]


async def test_model_sees_the_imported_history(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["It is shut."])
    async with open_engine(model) as engine:
        chat = await engine.acting("user:ann").create_chat(history=[*TALK, message_of("assistant", "A door.")])
        assert (chat.state, chat.version, chat.turn, chat.step) == ("waiting", 1, 2, 3)
        (record,) = await engine.audit(chat.id)
        assert (record.trigger, record.actor, record.reason) == ("create", "user:ann", "imported messages: 7")
        result = await engine.ask(chat.id, "Shut?")
        assert (result.text, result.chat.turn) == ("It is shut.", 3)

        sent = model.requests[0].messages
        assert [one.role[0] for one in sent] == [*"uauattau"]
        assert [one.result.call_id for one in sent if one.result] == ["a", "b"]
        assert sent[3].calls[0].arguments == {"at": "door"}


async def test_imported_messages_are_marked(open_chat: OpenChat) -> None:
    async with open_chat(ScriptedModel(["ok"]), history=[HI, message_of("assistant", "Hello!")]) as (engine, chat, _):
        await engine.ask(chat.id, "More?")
        for view in ("user", "model", "raw"):
            messages = await engine.messages(chat.id, view=view)  # type: ignore[arg-type]
            assert [one.imported for one in messages] == [True, True, False, False]
        assert [(one.turn, one.step) for one in messages] == [(1, 0), (1, 1), (2, 0), (2, 2)]
        events = [event async for event in engine.events(chat.id, follow=False)]
        transcript = fold(events)
        assert [one.imported for one in transcript.messages] == [True, True, False, False]
        assert transcript.messages == (await engine.transcript(chat.id)).messages
        assert [event.turn for event in events if event.kind == "turn_finished"] == [2]


async def test_file_limits_apply_to_imported_files(open_engine: OpenEngine) -> None:
    page, big = FilePart.from_bytes(b"<p>", "text/html"), FilePart.from_bytes(b"x" * 11, "image/png")
    address, good = FilePart(media_type="video/mp4", url="https://a.example/x"), FilePart.from_bytes(b"x", "image/png")
    in_address = FilePart(media_type="image/png", url="data:,xxxxxxxxxxx")
    settings = Settings(file_types=["image/*"], file_limit_bytes=10)
    async with open_engine(ScriptedModel([]), settings=settings) as engine:
        for history, problem in (
            ([message("user", good, page)], "'text/html' are not allowed"),
            ([message("user", good, in_address)], "at most 10 bytes"),
            ([HI, message("assistant", good, address)], "'video/mp4'"),
            ([*TALK[:4], answer("a", attachments=[good, big]), answer("b")], "at most 10 bytes"),
        ):
            with pytest.raises(InvalidContent, match=rf"^history\[\d\]\.parts: .*{problem}"):
                await engine.create_chat(history=history)
        assert await engine.list_chats() == Page([], None)
        chat = await engine.create_chat(history=[{"role": "user", "parts": [good]}])
        assert (await engine.messages(chat.id))[0].parts == (good,)


async def test_import_charges_nothing(open_chat: OpenChat) -> None:
    origin = {"agent": "other", "model": "gpt-5", "provider": "openai", "response_id": "r", "finish_reason": "stop"}
    cost: dict[str, Any] = {"usage": Usage(input_tokens=1000), "tools_digest": "0" * 64, "parameters_digest": "1" * 64}
    text, time = (TextPart(text="Hello!"),), datetime(2020, 1, 1, tzinfo=UTC)
    paid = Message(id="x", role="assistant", parts=text, turn=9, step=9, created_at=time, **origin, **cost)
    async with open_chat(ScriptedModel([Reply("ok", usage=(3, 4))]), history=[HI, paid]) as (engine, chat, _):
        assert (chat.usage.input_tokens, chat.usage.output_tokens) == (Usage().input_tokens, Usage().output_tokens)
        assert await engine.usage(chat.id) == []
        (stored,) = [one for one in await engine.messages(chat.id) if one.role == "assistant"]
        assert {name: getattr(stored, name) for name in (*origin, *cost)} == origin | dict.fromkeys(cost)
        assert (stored.created_at, stored.turn, stored.step) == (paid.created_at, 1, 1)
        result = await engine.ask(chat.id, "Go on")
        assert (result.usage.input_tokens, result.chat.usage.input_tokens) == (3, 3)


async def test_import_drops_provider_metadata(open_chat: OpenChat) -> None:
    """Ids and signatures of another chat would be refused, or would name another account's items."""
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
    async with open_chat(ScriptedModel([]), history=history) as (engine, chat, _):
        messages = await engine.messages(chat.id, view="model")
        everything = [part for one in messages for part in one.parts]
        assert [part.metadata for part in everything] == [None] * 7
        assert [part.signature for part in everything if isinstance(part, ReasoningPart)] == [None]
        (result,) = [one.result for one in messages if one.result]
        assert [(file.data, file.metadata) for file in result.attachments] == [("aGk=", None)]


CALL: dict[str, Any] = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}}
RESULT: dict[str, Any] = answer("a")["parts"][0]
TEXT: dict[str, Any] = {"type": "text", "text": "Hi"}
NO_FILE = FilePart(media_type="text/plain", data="%")
STORED = FilePart(media_type="text/plain", blob="0" * 64)
"""By another chat."""


def message(role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "parts": [*parts], **more}


ASKS = message("assistant", CALL)
WRONG: dict[str, tuple[Any, str, str]] = {
    "text": ("Hi", "history", "must be a sequence"),
    "number": ([HI, 3], "history[1]", "must be a Message, or a mapping .* it was 3"),
    "no role": ([{"content": "Hi"}], "history[0]", ".*missing required field `role`"),
    "system": ([message_of("system", "x")], "history[0]", ".*give the system prompt as system="),
    "field": ([{**HI, "tool_calls": []}], "history[0]", "has a field 'tool_calls'; a message has role, parts"),
    "part's field": ([HI, message("assistant", {**CALL, "id": 1})], "history[1]", ".*field 'id'; it may have"),
    "no content": ([HI, {"role": "assistant"}], "history[1]", "needs either content, .*; it has neither"),
    "both": ([{**HI, "parts": []}], "history[0]", ".*it has both"),
    "no parts": ([HI, message("assistant")], "history[1].parts", "must say something"),
    "blank": ([message("user", {**TEXT, "text": " "})], "history[0]", ".*it was empty"),
    "source": ([message("user", SourcePart(url="https://a.example"))], "history[0].parts", "must not hold a source"),
    "script": ([HI, message("assistant", SourcePart(url="javascript:x"))], "history[1].parts", ".*address of the web"),
    "no file": ([HI, message("assistant", NO_FILE)], "history[1].parts", ".*base64"),
    "no attachment": ([HI, ASKS, answer("a", attachments=[NO_FILE])], "history[2].parts", ".*base64"),
    "stored file": ([message("user", STORED)], "history[0].parts", "must not refer to a file.*or fork that chat"),
    "partial": ([{**HI, "partial": True}], "history[0].partial", "is for answers"),
    "no name": ([HI, message("assistant", {**CALL, "name": " "})], "history[1].name", "must say something"),
    "bytes": ([HI, ASKS, answer("a", output=b"x")], "history[2]", "must hold JSON values only"),
    "surrogate": ([message_of("user", "\ud800")], "history[0]", ".*lone surrogate"),
    "naive time": ([{**HI, "created_at": datetime(2020, 1, 1)}], "history[0]", ".*a time with its zone"),  # noqa: DTZ001
    "far": ([{**HI, "created_at": datetime(9999, 1, 1, tzinfo=UTC)}], "history[0]", ".*a time since 1970"),
    "old": ([{**HI, "created_at": datetime(1, 1, 1, tzinfo=UTC)}], "history[0]", ".*a time since 1970"),
    "call without result": ([HI, ASKS], "history[1].parts", "call 'a' needs its result right behind"),
    "result too late": ([HI, ASKS, HI, answer("a")], "history[1].parts", "call 'a' needs its result"),
    "one of two results": ([HI, ASKED, answer("a")], "history[1].parts", "call 'b' needs its result"),
    "result without call": ([HI, answer("z")], "history[1].parts", ".*'z', which no message before it asks for"),
    "result twice": ([HI, ASKS, answer("a"), answer("a")], "history[3].parts", ".*whose one result stands behind"),
    "call twice": ([HI, ASKS, answer("a"), ASKS], "history[3].parts", r".*call 'a' again: history\[1\]"),
    "another tool": ([HI, ASKS, answer("a", "hear")], "history[2].parts", "must name the tool of call 'a', 'look'"),
    "two results": (
        [HI, ASKS, message("tool", RESULT, RESULT)],
        "history[2].parts",
        "must hold exactly one tool_result",
    ),
    "result inside": (
        [HI, message("assistant", CALL, RESULT)],
        "history[1].parts",
        "must answer a call that the provider",
    ),
    "open result": ([HI, ASKS, answer("a", outcome="planned")], "history[2].parts", "must tell how call 'a' ended"),
    "large": (
        [HI, message_of("assistant", "x" * 3000)],
        "history[1]",
        r"holds .* at most 2,000 \(Settings.message_limit",
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_invalid_history_is_refused_and_writes_nothing(name: str) -> None:
    history, argument, problem = WRONG[name]
    limits = Settings(message_limit_bytes=2000)
    async with Engine("sqlite://", model=ScriptedModel([]), settings=limits) as engine:
        with pytest.raises(InvalidArgument, match=f"^{re.escape(argument)}: {problem}.*nothing was written") as refused:
            await engine.create_chat(history=history)
        assert refused.value.argument == argument
        assert (await engine.list_chats()).items == []


async def test_import_keeps_given_times(open_chat: OpenChat) -> None:
    clock = ManualClock()
    east = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    history = [
        HI | {"created_at": east},
        message_of("assistant", "x", created_at="2020-01-01T10:00:01Z"),
        message_of("user", "y"),
    ]
    async with open_chat(ScriptedModel([]), clock=clock, history=history) as (engine, chat, _):
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


async def test_imported_call_id_is_never_reused(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    again = Reply(calls=[Call("ask", {}, id="a")])
    async with open_engine(strict_model([again, again])) as engine:
        for hidden, call_id in ((False, "a-4"), (True, "a-5")):
            chat = await engine.create_chat(history=[*TALK, message_of("assistant", "A door.")], client_tools=[ASK])
            if hidden:
                await engine.request_compaction(chat.id)
                await engine.wait(chat.id)
            asked = await engine.ask(chat.id, "more")
            assert [call.call_id for call in asked.open_calls] == [call_id]


# A history of ours


@tool
async def peek(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


SIGN = ClientTool("sign", "Sign.", {"type": "object"})


def _as_the_model_sees(message: Message) -> tuple[Any, ...]:
    parts = tuple(
        replace(part, signature=None) if isinstance(part, ReasoningPart) else replace(part, metadata=None)
        for part in message.parts
    )
    return message.role, parts, message.partial, message.audience, message.synthetic


async def test_copied_history_shows_the_model_the_same() -> None:
    """After every turn of a chat with reasoning, files, calls of all kinds, an erasure and a compaction."""
    script: list[Reply] = []
    model = StrictModel(lambda _: script.pop(0))
    picture = FilePart(media_type="image/png", data="aGk=")
    looks = [Call("peek", {"at": "door"}), Call("peek", {"at": "wall"})]
    life: list[tuple[Any, list[Reply]]] = [
        ("Hi", [Reply("hello", reasoning="hm", signature="s")]),
        ([TextPart(text="Look."), picture], [Reply("I look.", calls=looks[:1]), Reply("A door.")]),
        ("Again.", [Reply(calls=looks), Reply("Both.")]),
        ("Sign.", [Reply("Sign here.", calls=[Call("sign", {})]), Reply("Signed.")]),
        ("erase", []),
        ("compact", []),
    ]
    async with Engine("sqlite://", model=model, tools=[peek]) as engine:
        chat = await engine.create_chat(client_tools=[SIGN])
        for number, (content, replies) in enumerate(life):
            script += replies
            if replies:
                result = await engine.ask(chat.id, content)
                if result.open_calls:
                    await engine.submit_tool_results(chat.id, [ToolResult(one.call_id, 1) for one in result.open_calls])
            else:
                await (
                    engine.erase_message(chat.id, "m1") if content == "erase" else engine.request_compaction(chat.id)
                )
            await engine.wait(chat.id)
            history: list[Any] = [*await engine.messages(chat.id, view="model")]
            if number % 2:
                history = [json.loads(one.model_dump_json()) for one in history]
            other = await engine.create_chat(history=history, client_tools=[SIGN])
            script += [Reply("one"), Reply("two")]
            for one in (chat, other):
                await engine.ask(one.id, "And now?")
            first, second = ([_as_the_model_sees(one) for one in request.messages] for request in model.requests[-2:])
            assert second == first
            assert len(first) == len(history) + 1
            assert (await engine.verify(other.id)).ok
    assert model.faults == []


async def test_imported_partial_answer_continues(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """The model's view ends with a request to continue, which is not stored."""
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
async def test_synthetic_message_is_no_question(open_engine: OpenEngine, marks: dict[str, Any]) -> None:
    """It starts no turn, cannot be edited and becomes no title: readers may not see it."""
    async with open_engine(ScriptedModel([])) as engine:
        chat = await engine.create_chat(
            history=[HI, message_of("user", "Before: a door.", **marks), message_of("assistant", "?")]
        )
        messages = await engine.messages(chat.id, view="model")
        assert [(one.turn, one.step) for one in messages] == [(1, 0), (1, 1), (1, 2)]
        assert [one.text for one in await engine.messages(chat.id, view="raw")] == ["Hi", "?"]
        hidden = message_of("user", "Suspected of fraud.", **marks)
        other = await engine.create_chat(history=[hidden, HI, message_of("assistant", "Hello!")])
        messages = await engine.messages(other.id, view="model")
        with pytest.raises(MessageNotFound):
            await engine.edit_message(other.id, messages[0].id, "Trusted.")
        source = source_of(messages)
        assert source.question == messages[1]


# One message


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_message_size_limit_is_inclusive(role: str) -> None:
    entry: dict[str, Any] = {"role": role, "content": "é" * 10}
    known = read("here", entry, 1000)
    size = 20 if role == "user" else len(msgspec.json.encode(known.parts))
    assert read("here", entry, size) == known
    with pytest.raises(InvalidContent, match=f"holds {size} bytes; a message holds at most {size - 1}"):
        read("here", entry, size - 1)


def test_generated_messages_are_left_out() -> None:
    """The user's notice of a compaction is dropped; the request to continue is generated again where needed."""
    original = Message(
        id="m1", role="user", parts=(TextPart(text="Hi"),), turn=1, step=0, created_at=datetime(2020, 1, 1, tzinfo=UTC)
    )
    assert read("here", original, 1000) is not None
    assert read("here", replace(original, audience=Audience.user), 1000) is None
    assert read("here", replace(original, id=GO_ON), 1000) is None
    assert read("here", message("user", TEXT, audience="user"), 1000) is None
    assert read("here", message("user", TEXT, id=GO_ON), 1000) is None


def test_blank_and_signed_parts_are_left_out() -> None:
    blank, thought = {**TEXT, "text": " "}, {"type": "reasoning", "text": "hm", "signature": "s"}
    signed = {**thought, "text": ""}
    source, file = SourcePart(url="https://a.example"), FilePart(media_type="text/plain", data="aGk=")
    for parts, stored in (
        ([blank, TEXT, signed], ["text"]),
        ([thought, blank], ["reasoning"]),
        ([CALL, blank, signed], ["tool_call"]),
        ([blank, source], ["source"]),
        ([file, signed], ["file"]),
    ):
        taken = read("here", message("assistant", *parts), 1000)
        assert [part.type for part in taken.parts] == stored
    for nothing in ([signed], [signed, blank]):
        assert read("here", message("assistant", *nothing), 1000) is None
