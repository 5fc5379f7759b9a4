"""Client calls: the worker releases the chat until the client answers, and each answer takes effect once."""

from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import JsonValue
from tests.engine.chats import lines_of, path_of, untouched

from support.events import events_of
from support.lives import SLOW_STORES, lives_in
from turnwise import (
    ClientTool,
    Engine,
    FilePart,
    InvalidContent,
    Settings,
    SettingsError,
    SubmissionReceipt,
    ToolResult,
    VersionMismatch,
    tool,
)
from turnwise.engine.jobs.call_names import CallNames
from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.providers.reply_builder import join
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ConflictingReplay, DeadlineExpired
from turnwise.states.model_errors import ModelError
from turnwise.testing import ManualClock

ASK = ClientTool("ask_user", "Ask the user.", {"type": "object", "properties": {"question": {"type": "string"}}})
PICK = ClientTool("pick_file", "Pick a file.", {"type": "object"}, deadline=60)
TWO_CALLS = Reply(calls=[Call("ask_user", {"question": "why?"}), Call("ask_user", {"question": "how?"})])
ANSWERS = [ToolResult("call_1", "because"), ToolResult("call_2", {"so": [1]})]


async def waiting_chat(engine: Engine, *, tools: Sequence[ClientTool] = (ASK, PICK)) -> str:
    """Return a chat whose model called the client."""
    chat = await engine.create_chat(client_tools=tools)
    result = await engine.ask(chat.id, "go")
    assert result.chat.state == "requires_action"
    return chat.id


def results_in(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("tool: ") for line in lines if line.startswith("tool: ")]


async def test_mixed_step_runs_local_tools_first(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = strict_model([Reply(calls=[Call("ask_user", {}), Call("look", {}), Call("ask_user", {})]), "done"])
    async with open_engine(model, tools=[look]) as engine:
        chat_id = await waiting_chat(engine)
        assert results_in(lines_of(await engine.messages(chat_id))) == ["call_2=seen"]
        assert await path_of(engine, chat_id) == [
            *("waiting", "pending", "streaming", "executing_tools", "requires_action")
        ]
        assert len(model.requests) == 1
        await engine.submit_tool_results(chat_id, [ToolResult("call_3", "c"), ToolResult("call_1", "a")])
        await engine.wait(chat_id)
        expected = ["call_1=a", "call_2=seen", "call_3=c"]
        assert results_in(lines_of(model.requests[1].messages)) == expected
        assert results_in(lines_of(await engine.messages(chat_id))) == expected


@pytest.mark.parametrize("output", [object(), {"a": ["\udfff"]}], ids=["object", "surrogate"])
async def test_submission_refuses_values_that_are_not_json(open_engine: Any, strict_model: Any, output: Any) -> None:
    async with open_engine(strict_model([TWO_CALLS])) as engine:
        chat_id = await waiting_chat(engine)
        async with untouched(engine, chat_id):
            with pytest.raises(InvalidContent, match="call_2"):
                await engine.submit_tool_results(chat_id, [ANSWERS[0], ToolResult("call_2", output)])


async def replayed(engine: Engine, chat_id: str, first: SubmissionReceipt) -> None:
    """Check that a repeated submission, or part of it, returns the first receipt, and a different one conflicts."""
    async with untouched(engine, chat_id):
        again = await engine.submit_tool_results(chat_id, ANSWERS)
        assert (again.receipt_id, again.replayed) == (first.receipt_id, True)
        for same in (ANSWERS[::-1], ANSWERS[:1]):
            again = await engine.submit_tool_results(chat_id, same)
            assert (again.receipt_id, again.replayed) == (first.receipt_id, True)
        for other in (ToolResult("call_1", "otherwise"), ToolResult("call_1", "because", is_error=True)):
            with pytest.raises(ConflictingReplay) as refused:
                await engine.submit_tool_results(chat_id, [other, ANSWERS[1]])
            assert refused.value.call_id == "call_1"


async def test_submission_honours_if_version(open_engine: Any, strict_model: Any) -> None:
    """Any change since then refuses the results, except these results themselves."""
    async with open_engine(strict_model([TWO_CALLS, "done"])) as engine:
        chat_id = await waiting_chat(engine)
        seen = (await engine.update_chat(chat_id, title="A table")).version
        async with untouched(engine, chat_id):
            for other in (seen - 1, seen + 1):
                with pytest.raises(VersionMismatch):
                    await engine.submit_tool_results(chat_id, ANSWERS, if_version=other)
        first = await engine.submit_tool_results(chat_id, ANSWERS, if_version=seen)
        await engine.wait(chat_id)
        again = await engine.submit_tool_results(chat_id, ANSWERS, if_version=seen)
        assert (again.receipt_id, again.replayed) == (first.receipt_id, True)


async def test_deadline_times_the_call_out(open_engine: Any, strict_model: Any) -> None:
    clock = ManualClock()
    model = strict_model([Reply(calls=[Call("pick_file", {})]), "I go on"])
    async with open_engine(model, clock=clock) as engine:
        chat_id = await waiting_chat(engine)
        (call,) = (await engine.get_chat(chat_id)).open_calls
        assert (call.deadline - clock.now()).total_seconds() == 60
        await clock.advance(59)
        assert (await engine.get_chat(chat_id)).state == "requires_action"
        await clock.advance(2)
        await engine.wait(chat_id, until={"waiting"})
        result = (await engine.messages(chat_id))[2]
        assert (result.synthetic, result.result.outcome, result.result.is_error) == (True, "timed_out", True)
        assert (await engine.messages(chat_id))[-1].text == "I go on"
        async with untouched(engine, chat_id):
            with pytest.raises(DeadlineExpired, match="deadline of call_1 has passed") as refused:
                await engine.submit_tool_results(chat_id, [ToolResult("call_1", "late")])
        assert refused.value.call_ids == ("call_1",)


BOX = ClientTool(
    "box", "Draw a box.", {"type": "object", "properties": {"wide": {"type": "integer"}}, "required": ["wide"]}
)


@pytest.mark.parametrize("arguments", ["no JSON at all", {"wide": "three"}], ids=["text", "schema"])
async def test_invalid_arguments_never_reach_the_client(open_engine: Any, strict_model: Any, arguments: Any) -> None:
    """Valid arguments reach the client as the schema describes them."""
    calls = [Call("box", arguments, id="bad"), Call("box", {"wide": "1"}, id="good")]
    model = strict_model([Reply(calls=calls), "done"])
    async with open_engine(model) as engine:
        chat_id = await waiting_chat(engine, tools=[BOX])
        (event,) = await events_of(engine, chat_id, "action_required")
        for open_calls in (event.calls, (await engine.get_chat(chat_id)).open_calls):
            assert [(call.call_id, call.arguments) for call in open_calls] == [("good", {"wide": 1})]
        await engine.submit_tool_results(chat_id, [ToolResult("good", "drawn")])
        await engine.wait(chat_id)
        results = [message.result for message in model.requests[-1].messages if message.result is not None]
        assert [(result.call_id, result.is_error) for result in results] == [("bad", True), ("good", False)]
        assert "three" not in results[0].output
        assert "no JSON at all" not in results[0].output
        assert [part.executor for part in (await engine.messages(chat_id))[1].calls] == ["local", "client"]


async def test_cut_result_still_replays(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("ask_user", {})]), "done"])
    async with open_engine(model, settings=Settings(output_limit_bytes=100)) as engine:
        chat_id = await waiting_chat(engine)
        first = await engine.submit_tool_results(chat_id, [ToolResult("call_1", "x" * 1000)])
        await engine.wait(chat_id)
        output = next(message.result.output for message in await engine.messages(chat_id) if message.result is not None)
        assert output == "x" * 100 + "\n[cut: 900 of 1000 bytes are not shown]"
        again = await engine.submit_tool_results(chat_id, [ToolResult("call_1", "x" * 1000)])
        assert (again.replayed, again.receipt_id) == (True, first.receipt_id)
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat_id, [ToolResult("call_1", "x" * 1001)])


# Approvals


runs: list[str] = []


@tool(policy="ask")
async def pay(amount: int) -> str:
    """Pay money."""
    runs.append(f"pay {amount}")
    return f"paid {amount}"


@tool
async def look(at: str) -> str:
    """Look at something."""
    runs.append(f"look at {at}")
    return at


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    runs.clear()


def asking() -> ScriptedModel:
    calls = [Call("pay", {"amount": 3}, id="p"), Call("look", {"at": "it"}, id="l")]
    return ScriptedModel([Reply(calls=calls), Reply("done")])


def results(model: ScriptedModel) -> list[tuple[str, object, bool]]:
    found = [message.result for message in model.requests[-1].messages]
    return [(result.call_id, result.output, result.is_error) for result in found if result is not None]


@pytest.mark.parametrize("allowed", [True, {"approved": True}])
async def test_approved_call_runs_once(allowed: JsonValue) -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        waiting = await engine.ask(chat.id, "pay")
        assert [(call.call_id, call.approval) for call in waiting.open_calls] == [("p", "asked")]
        assert (waiting.chat.state, runs) == ("requires_action", ["look at it"])

        receipt = await engine.submit_tool_results(chat.id, [ToolResult("p", allowed)])
        await engine.wait(chat.id)
        again = await engine.submit_tool_results(chat.id, [ToolResult("p", allowed)])

        assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)
        assert runs == ["look at it", "pay 3"]
        assert results(model) == [("p", "paid 3", False), ("l", "it", False)]
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat.id, [ToolResult("p", output=False)])
        assert (await engine.verify(chat.id)).ok


NOT_RUN = "Not run: the user did not approve this call."


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (ToolResult("p", output=False), NOT_RUN),
        (ToolResult("p", "no", is_error=True), NOT_RUN),
        (ToolResult("p", {"approved": False, "reason": "too much"}), f"{NOT_RUN} Reason: too much"),
        (ToolResult("p", {"approved": False, "reason": ""}), NOT_RUN),
    ],
)
async def test_denied_call_never_runs(answer: ToolResult, output: str) -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [answer])
        await engine.wait(chat.id)
        assert runs == ["look at it"]
        assert results(model)[0] == ("p", output, True)
        assert (await engine.verify(chat.id)).ok


async def test_approved_call_runs_with_edited_arguments() -> None:
    model = asking()
    answer = ToolResult("p", {"approved": True, "arguments": {"amount": "5"}, "reason": "less"})
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        planned = {record.writes[0].digest for record in await engine.audit(chat.id) if record.writes}
        receipt = await engine.submit_tool_results(chat.id, [answer])
        await engine.wait(chat.id)

        assert runs == ["look at it", "pay 5"]
        history = await engine.messages(chat.id)
        assert history[1].calls[0].arguments == {"amount": 3}
        result = next(message.result for message in history if message.result and message.result.call_id == "p")
        assert (result.output, result.edited_arguments) == ("paid 5", {"amount": 5})
        sent = {call_id: output for call_id, output, _ in results(model)}["p"]
        assert sent == '[The user allowed this call with other arguments: {"amount":5}]\npaid 5'

        approved = [w for record in await engine.audit(chat.id) for w in record.writes if "approved" in w.kind]
        assert len(approved) == 1
        assert approved[0].digest not in planned
        assert (await engine.verify(chat.id)).ok
        again = await engine.submit_tool_results(chat.id, [answer])
        assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": True, "arguments": {"amount": 6}})])


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("perhaps", "asks for approval"),
        ({"approved": True, "arguments": {"amount": "much"}}, "edited arguments.*amount"),
        ({"approved": True, "arguments": [3]}, "arguments are an object"),
        ({"approved": True, "arguments": {"amount": 3, "to": "x" * 1000}}, r"at most 1,000 bytes"),
        ({"approved": False, "arguments": {"amount": 3}}, "belong to an approval"),
        ({"approved": True, "args": {"amount": 3}}, "it held 'args'"),
        ({"approved": False, "reason": 3}, "a reason is text"),
        ({"approved": "yes"}, "answer true, false"),
    ],
)
async def test_invalid_approval_is_refused(output: JsonValue, problem: str) -> None:
    settings = Settings(message_limit_bytes=1000)
    async with Engine("sqlite://", model=asking(), tools=[pay, look], settings=settings) as engine:
        chat = await engine.create_chat()
        before = (await engine.ask(chat.id, "pay")).chat
        with pytest.raises(InvalidContent, match=problem):
            await engine.submit_tool_results(chat.id, [ToolResult("p", output)])
        assert await engine.get_chat(chat.id) == before
        assert runs == ["look at it"]
        await engine.submit_tool_results(chat.id, [ToolResult("p", output=True)])
        await engine.wait(chat.id)
        assert runs == ["look at it", "pay 3"]


async def test_edits_for_an_unknown_tool_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with Engine(url, model=asking(), tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
    async with Engine(url, model=asking(), settings=Settings(run_worker=False)) as elsewhere:
        before = await elsewhere.get_chat(chat.id)
        with pytest.raises(InvalidContent, match="this engine has no tool named 'pay'"):
            await elsewhere.submit_tool_results(
                chat.id, [ToolResult("p", {"approved": True, "arguments": {"amount": 5}})]
            )
        assert await elsewhere.get_chat(chat.id) == before


# Names of calls


TAKEN = {"a", "b", "b-4", "call"}
SHORTENED = f"{'x' * 64}-{sha256(b'x' * 513).hexdigest()[:24]}"


async def named(*ids: str | None, step: int = 4) -> list[str | None]:
    async def is_taken(call_id: str) -> bool:
        return call_id in TAKEN

    names = CallNames(is_taken, step)
    return [(await names.renamed(ModelPart("tool_call", id=one, name="look", arguments={}))).id for one in ids]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["a"], ["a-4"]),
        (["", None, ""], ["call-4", "call-4-2", "call-4-3"]),
        (["new", "new", "new"], ["new", "new-4", "new-4-2"]),
        (["a", "a"], ["a-4", "a-4-2"]),
        (["a\0b", "a\0b"], ["a\ufffdb", "a\ufffdb-4"]),
        (["b", "b", "b"], ["b-4-2", "b-4-3", "b-4-4"]),
        (["é" * 256], ["é" * 256]),
        (["x" * 513, "x" * 513], [SHORTENED, f"{SHORTENED}-4"]),
    ],
)
async def test_taken_id_gets_the_step_and_then_a_number(ids: list[str | None], expected: list[str]) -> None:
    assert await named(*ids) == expected
    assert await named(*ids) == expected, "the same reply in the same step gets the same names"


@pytest.mark.parametrize("missing", ["", None])
async def test_call_without_an_id_keeps_one_name(missing: str | None) -> None:
    async def is_taken(_call_id: str) -> bool:
        return False

    names = CallNames(is_taken, 4)
    found: list[str | None] = []
    for _ in range(2):
        parts = [
            ModelPart("tool_call_start", id="b", name="look"),
            ModelPart("tool_call_start", id=missing, name="look"),
            ModelPart("tool_call_delta", id=missing, arguments="{"),
            ModelPart("tool_call_delta", id="b", arguments="{}"),
            ModelPart("tool_call", id=missing, name="look", arguments={}, executor="provider"),
            ModelPart("tool_call", id="b", name="look", arguments={}),
        ]
        found += [(await names.renamed(part)).id for part in parts]
        found.append((await names.renamed(ModelPart("provider_result", call_id=missing, output=1))).call_id)
    pieces = ["b", "call", "call", "b", "call", "b", "call"]
    assert found == [*pieces, *(f"{name}-4" for name in pieces)]


PIECES = [
    ModelPart("tool_call_start", id="a", name="look"),
    ModelPart("tool_call_start", id="b", name="see"),
    ModelPart("tool_call_delta", id="a", arguments='{"at": 1}'),
    ModelPart("tool_call_delta", id="b", arguments='{"at": 2}'),
    ModelPart("tool_call_delta", arguments='{"at": 3}'),
    ModelPart("tool_call", id="a", name="look", arguments={"at": 4}),
    ModelPart("tool_call", id="b", name="see", arguments={"at": 5}),
]


@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(4, marks=pytest.mark.deep)])
async def test_renaming_never_changes_the_calls_of_a_reply(count: int) -> None:
    """A late fragment, or one without an id, starts no other call, which would run, too."""

    async def is_taken(_: str) -> bool:
        return False

    for pieces in product(PIECES, repeat=count):
        names = CallNames(is_taken, 4)
        parts = [*pieces, ModelPart("finish")]
        renamed = [await names.renamed(part) for part in parts]
        assert as_said(join(renamed)) == as_said(join(parts)), pieces


def as_said(reply: ModelReply) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize("wrong", [{"id": 5}, {"id": ["x"]}, {"call_id": {"a": 1}}], ids=str)
async def test_id_that_is_not_text_is_a_retryable_error(wrong: dict[str, Any]) -> None:
    async def is_taken(_: str) -> bool:
        return False

    with pytest.raises(ModelError, match="the id of a call has to be text") as failed:
        await CallNames(is_taken, 1).renamed(ModelPart("tool_call", name="look", **wrong))
    assert failed.value.retryable


async def test_long_ids_with_one_prefix_stay_unique() -> None:
    one, other = await named("é" * 5000, "x" + "é" * 5000)
    assert one.startswith("é" * 32 + "-")
    assert other.startswith("x" + "é" * 31 + "-")
    first, second = await named("x" * 4000 + "1", "x" * 4000 + "2")
    assert first != second


WEIGHED = {"type": "object", "properties": {"grams": {"type": "integer"}}, "required": ["grams"]}
WEIGH = ClientTool("weigh", "Weigh it.", {"type": "object", "properties": {}}, output_schema=WEIGHED)


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_client_result_fits_the_schema_of_its_tool(place: str, request: pytest.FixtureRequest) -> None:
    """An invalid result is refused with field and problem, and may be sent again; errors are not checked."""
    model = ScriptedModel([Reply(calls=[Call("weigh", {}, "w1"), Call("weigh", {}, "w2")]), Reply("Light.")])
    async with Engine(lives_in(place, request).url, model=model) as engine:
        chat = await engine.create_chat(client_tools=[WEIGH], message="How heavy?")
        await engine.wait(chat.id)
        failed = ToolResult("w2", "no scales", is_error=True)
        for output, problem in (({"grams": "5"}, "grams: must satisfy type"), ({}, "missing grams"), ("5", "output: ")):
            with pytest.raises(InvalidContent, match=f"output of call 'w1' .* of 'weigh': .*{problem}.*nothing was"):
                await engine.submit_tool_results(chat.id, [ToolResult("w1", output), failed])
        await engine.submit_tool_results(chat.id, [ToolResult("w1", {"grams": 5}), failed])
        assert (await engine.wait(chat.id)).stop_reason == "end_turn"
        with pytest.raises(SettingsError, match="its JSON schema is not valid at type"):
            await engine.create_chat(client_tools=[replace(WEIGH, output_schema={"type": "heavy"})])


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_client_tools_can_be_read_and_changed(place: str, request: pytest.FixtureRequest) -> None:
    model = ScriptedModel([Reply("Yes."), Reply("No.")])
    async with Engine(lives_in(place, request).url, model=model) as engine:
        chat = await engine.create_chat(client_tools=[WEIGH])
        assert (await engine.get_chat(chat.id)).client_tools == (WEIGH,)
        other = replace(WEIGH, name="measure")
        changed = await engine.configure(chat.id, client_tools=[other])
        assert (changed.client_tools, changed.version) == ((other,), 2)
        assert (await engine.configure(chat.id, client_tools=[other])).version == 2
        await engine.ask(chat.id, "Hi")
        assert (await engine.configure(chat.id, system="Be terse.")).client_tools == (other,)
        assert (await engine.configure(chat.id, client_tools=[])).client_tools == ()
        await engine.ask(chat.id, "Hi")
        assert [[spec.name for spec in one.tools] for one in model.requests] == [["measure"], []]
        with pytest.raises(SettingsError, match="needs a name of its own"):
            await engine.configure(chat.id, client_tools=[WEIGH, WEIGH])
        assert (await engine.verify(chat.id)).ok


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_client_result_may_have_files(place: str, request: pytest.FixtureRequest) -> None:
    """They are stored as files of messages are; the same bytes are a replay, other bytes a conflict."""
    photo = FilePart.from_bytes(b"a small photo", "image/png", name="parcel.png")
    large = FilePart.from_bytes(b"p" * 200_000, "text/plain", name="log.txt")
    model = ScriptedModel([Reply(calls=[Call("weigh", {}, "w1")]), Reply("I see.")])
    async with Engine(lives_in(place, request).url, model=model) as engine:
        chat = await engine.create_chat(client_tools=[replace(WEIGH, output_schema=None)], message="How heavy?")
        await engine.wait(chat.id)
        submitted = ToolResult("w1", "as on the photo", attachments=(photo, large))
        first = await engine.submit_tool_results(chat.id, [submitted])
        await engine.wait(chat.id)
        again = await engine.submit_tool_results(chat.id, [submitted])
        assert (again.receipt_id, again.replayed) == (first.receipt_id, True)
        other = FilePart.from_bytes(b"another photo", "image/png", name="parcel.png")
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat.id, [replace(submitted, attachments=(other, large))])
        (result,) = [one.result for one in await engine.messages(chat.id) if one.result is not None]
        assert [file.name for file in result.attachments] == ["parcel.png", "log.txt"]
        stored = [b"".join([piece async for piece in engine.open_file(chat.id, file)]) for file in result.attachments]
        assert stored == [b"a small photo", b"p" * 200_000]
        (seen,) = [one.result for one in model.requests[1].messages if one.result is not None]
        assert [file.name for file in seen.attachments] == ["parcel.png", "log.txt"]
        assert (await engine.verify(chat.id, files=True)).ok
