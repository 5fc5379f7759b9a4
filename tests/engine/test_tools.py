"""Tools: how they run beside each other, and that whatever goes wrong is a result the model sees."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from pydantic import AfterValidator, BaseModel, SecretStr

from support.chats import lines_of
from support.events import events_of
from support.latches import Latch
from turnwise import (
    ClientTool,
    CompactionPolicy,
    Engine,
    FatalToolError,
    FilePart,
    FolderFiles,
    Settings,
    SettingsError,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
    ToolResult,
    tool,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock


class Crowd:
    """Tools that note who runs beside whom: each waits until `peak` of them are inside, or all were started."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.inside = self.peak = 0
        self.order: list[str] = []
        self._full = anyio.Event()

    def tool(self, name: str, **options: Any) -> Tool:
        @tool(name=name, description="Note who is beside.", **options)
        async def enter() -> str:
            self.order.append(name)
            self.inside += 1
            self.peak = max(self.peak, self.inside)
            if self.inside == self.expected:
                self._full.set()
            await self._full.wait()
            await anyio.lowlevel.checkpoint()
            self.inside -= 1
            return name

        return enter


def result_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("tool:")]


async def run(open_engine: Any, model: Any, tools: Sequence[Any], **options: Any) -> Any:
    async with open_engine(model, tools=tools, **options) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        return result, await events_of(engine, chat.id)


async def test_calls_run_one_by_one_in_order_unless_declared_safe(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=1)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    await run(open_engine, model, [crowd.tool(name) for name in "abc"])
    assert (crowd.peak, crowd.order) == (1, ["a", "b", "c"])


async def test_safe_calls_run_side_by_side(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=3)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    await run(open_engine, model, [crowd.tool(name, parallel_safe=True) for name in "abc"])
    assert (crowd.peak, sorted(crowd.order)) == (3, ["a", "b", "c"])


async def test_one_unsafe_call_makes_the_whole_batch_sequential(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=1)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    await run(open_engine, model, [crowd.tool(name, parallel_safe=name != "b") for name in "abc"])
    assert (crowd.peak, crowd.order) == (1, ["a", "b", "c"])


async def test_all_calls_count_as_safe_where_the_settings_say_so(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=3)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    await run(open_engine, model, [crowd.tool(name) for name in "abc"], settings=Settings(tools_parallel="all"))
    assert crowd.peak == 3


async def test_fifteen_safe_calls_never_exceed_the_cap_and_none_is_dropped(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=10)
    names = [f"t{number}" for number in range(15)]
    model = strict_model([Reply(calls=[Call(name, {}) for name in names]), "done"])
    result, _ = await run(open_engine, model, [crowd.tool(name, parallel_safe=True) for name in names])
    assert (crowd.peak, sorted(crowd.order)) == (10, sorted(names))
    expected = [f"tool: call_{number + 1}={name}" for number, name in enumerate(names)]
    assert result_lines(lines_of(result.messages)) == expected
    assert result_lines(lines_of(model.requests[1].messages)) == expected


async def test_results_are_shown_as_they_finish_and_read_in_the_order_of_their_calls(
    open_engine: Any, strict_model: Any
) -> None:
    slow = Latch()

    @tool(parallel_safe=True)
    async def first() -> str:
        """Wait for the second."""
        await slow.pass_through()
        return "1"

    @tool(parallel_safe=True)
    async def second() -> str:
        """Be quick."""
        return "2"

    model = strict_model([Reply(calls=[Call("first", {}), Call("second", {})]), "done"])
    async with open_engine(model, tools=[first, second]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "tool_result":
                assert (event.call_id, event.index) == ("call_2", 1)
                break
        assert result_lines(lines_of(await engine.messages(chat.id))) == ["tool: call_2=2"]
        slow.open()
        await engine.wait(chat.id)
        expected = ["tool: call_1=1", "tool: call_2=2"]
        assert result_lines(lines_of(model.requests[1].messages)) == expected
        for view in ("user", "model", "raw"):
            assert result_lines(lines_of(await engine.messages(chat.id, view=view))) == expected


async def test_a_failing_tool_is_a_result_the_model_sees(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def query() -> str:
        """Query."""
        raise RuntimeError("db locked")

    model = strict_model([Reply(calls=[Call("query", {})]), "I see"])
    result, events = await run(open_engine, model, [query])
    seen = model.requests[1].messages[-1].result
    assert (seen.is_error, seen.outcome, "db locked" in seen.output) == (True, "failed", True)
    assert result.text == "I see"
    (shown,) = [event for event in events if event.kind == "tool_result"]
    assert (shown.is_error, shown.output) == (True, seen.output)


async def test_a_tool_over_its_limit_is_answered_without_a_claim_that_nothing_happened(
    open_engine: Any, strict_model: Any
) -> None:
    clock, latch = ManualClock(), Latch()

    @tool(timeout=5)
    async def pay() -> str:
        """Pay."""
        await latch.pass_through()
        return "paid"

    model = strict_model([Reply(calls=[Call("pay", {})]), "I shall look"])
    async with open_engine(model, tools=[pay], clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await latch.entered.wait()
        await clock.advance(5)
        await engine.wait(chat.id)
        seen = model.requests[1].messages[-1].result
        assert (seen.is_error, seen.outcome) == (True, "timed_out")
        assert "timed out after 5 s" in seen.output
        assert "unknown" in seen.output
        assert (await engine.messages(chat.id))[-1].text == "I shall look"


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_call_that_is_over_its_limit_before_it_begins_does_not_run_and_the_model_is_told_so(
    open_engine: Any, strict_model: Any, *, blocks: bool
) -> None:
    """Here its arguments take the time, to check."""
    clock, ran = ManualClock(), False

    def check(amount: int) -> int:
        clock.advance(5)
        return amount

    def act(amount: int) -> None:
        nonlocal ran
        ran = True

    async def act_async(amount: int) -> None:
        act(amount)

    acts = act if blocks else act_async
    acts.__annotations__["amount"] = Annotated[int, AfterValidator(check)]
    pay = tool(name="pay", description="Pay.", timeout=5)(acts)
    model = strict_model([Reply(calls=[Call("pay", {"amount": 3})]), "I shall pay again"])
    result, _ = await run(open_engine, model, [pay], clock=clock)
    seen = result.messages[2].result
    assert (seen.outcome, ran) == ("timed_out", False)
    assert seen.output == "pay timed out after 5 s. It had not begun, and did not run."


async def test_a_tool_that_ignores_its_cancellation_holds_nobody_up(open_engine: Any, strict_model: Any) -> None:
    clock, latch = ManualClock(), Latch()

    @tool(timeout=5)
    async def stubborn() -> str:
        """Go on whatever happens."""
        with anyio.CancelScope(shield=True):
            await latch.pass_through()
        return "too late"

    model = strict_model([Reply(calls=[Call("stubborn", {})]), "done"])
    async with open_engine(model, tools=[stubborn], clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await latch.entered.wait()
        await clock.advance(5)
        await engine.wait(chat.id)
        latch.open()
        history = lines_of(await engine.messages(chat.id))
        assert len(result_lines(history)) == 1
        assert "too late" not in str(history)


async def test_repaired_arguments_are_the_same_for_tool_event_and_history(open_engine: Any, strict_model: Any) -> None:
    got: list[Any] = []

    @tool
    async def listing(recursive: bool, limit: int) -> str:  # noqa: FBT001 - called by name, by the model
        """List."""
        got.append((recursive, limit))
        return "listed"

    model = strict_model([Reply(calls=[Call("listing", {"recursive": "true", "limit": "30"})]), "done"])
    result, events = await run(open_engine, model, [listing])
    repaired = {"recursive": True, "limit": 30}
    assert got == [(True, 30)]
    assert result.messages[1].calls[0].arguments == repaired
    assert model.requests[1].messages[1].calls[0].arguments == repaired
    told_calls = [
        event.message.calls[0].arguments for event in events if event.kind == "message" and event.message.calls
    ]
    shown = [event.part.complete["arguments"] for event in events if event.kind == "part" and event.part.complete]
    assert told_calls == [repaired]
    assert shown in ([], [repaired])
    assert [type(value) for value in told_calls[0].values()] == [bool, int]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"command":"pwd"', {"command": "pwd"}),
        ('{"command":"pw', {"command": "pw"}),
        ('{"command": "pwd",}', {"command": "pwd"}),
    ],
)
async def test_truncated_json_is_closed(
    open_engine: Any, strict_model: Any, text: str, arguments: dict[str, str]
) -> None:
    got: list[str] = []

    @tool
    async def shell(command: str) -> str:
        """Run."""
        got.append(command)
        return "ran"

    model = strict_model([Reply(calls=[Call("shell", text)]), "done"])
    result, _ = await run(open_engine, model, [shell])
    assert got == [arguments["command"]]
    assert result.messages[1].calls[0].arguments == arguments


@pytest.mark.parametrize(
    "text",
    ["I would rather not", "[1, 2]", '"pwd"', "7", "null", *('{"a":' * deep + "1" + "}" * deep for deep in (488, 900))],
    ids=lambda text: text[:10],
)
async def test_hopeless_arguments_are_answered_with_an_error(open_engine: Any, strict_model: Any, text: str) -> None:
    @tool
    async def shell(command: str) -> str:
        """Run."""
        raise AssertionError(command)

    model = strict_model([Reply(calls=[Call("shell", text)]), "sorry"])
    result, _ = await run(open_engine, model, [shell])
    answer = result.messages[2].result
    assert (answer.is_error, "shell" in answer.output, result.open_calls) == (True, True, [])
    assert result.text == "sorry"


async def test_an_empty_argument_text_means_no_arguments(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("ping", "")]), "done"]), [ping])
    assert "tool: call_1=pong" in lines_of(result.messages)


async def test_an_unknown_tool_is_an_error_result(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    model = strict_model([Reply(calls=[Call("invented", {"a": 1}), Call("ping", {})]), "sorry"])
    result, _ = await run(open_engine, model, [ping])
    unknown, known = result.messages[2].result, result.messages[3].result
    assert unknown.is_error
    assert "'invented'" in unknown.output
    assert "ping" in unknown.output
    assert known.output == "pong"
    assert result.text == "sorry"


async def test_invalid_arguments_are_described_without_their_values(open_engine: Any, strict_model: Any) -> None:
    """What the model sent may be a secret, and may be long."""

    @tool
    async def transfer(amount: int, to: str) -> str:
        """Transfer."""
        raise AssertionError(amount, to)

    secret = "s3cret" * 20
    model = strict_model([Reply(calls=[Call("transfer", {"amount": secret, "too": "x"})]), "sorry"])
    result, _ = await run(open_engine, model, [transfer])
    said = result.messages[2].result.output
    for word in ("transfer", "amount", "to", "too", "120 characters"):
        assert word in said
    assert "s3cret" not in said


async def test_a_tool_declared_by_json_schema_is_checked_too(open_engine: Any, strict_model: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "tags": {"type": "array"}}, "required": ["n"]}
    got: list[Any] = []

    @tool(schema=schema)
    async def pick(**arguments: Any) -> str:
        """Pick."""
        got.append(arguments)
        return "picked"

    calls = [Call("pick", {"n": "3", "tags": '["a"]'}), Call("pick", {"tags": []}), Call("pick", {"n": "three"})]
    result, _ = await run(open_engine, strict_model([Reply(calls=calls), "done"]), [pick])
    assert got == [{"n": 3, "tags": ["a"]}]
    _, missing, wrong = [message.result for message in result.messages if message.role == "tool"]
    assert (missing.is_error, wrong.is_error) == (True, True)
    assert "missing n" in missing.output
    assert "three" not in wrong.output


async def test_a_fatal_tool_fails_the_chat_once_every_call_has_a_result(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def launch() -> str:
        """Launch."""
        raise FatalToolError("the key is gone")

    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    model = strict_model([Reply(calls=[Call("ping", {}), Call("launch", {}), Call("ping", {})]), "I go on"])
    async with open_engine(model, tools=[launch, ping]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.chat.state, result.stop_reason, result.open_calls) == ("error", "error", [])
        assert "the key is gone" in result.chat.last_error.message
        outcomes = [message.result.outcome for message in result.messages if message.role == "tool"]
        assert outcomes == ["succeeded", "failed", "cancelled"]
        assert (await engine.ask(chat.id, "and now?")).text == "I go on"


async def test_a_repeated_call_id_is_renamed_and_each_call_has_its_own_result(
    open_engine: Any, strict_model: Any
) -> None:
    @tool
    async def echo(text: str) -> str:
        """Echo."""
        return text

    model = strict_model(
        [
            Reply(calls=[Call("echo", {"text": "a"}, id="x"), Call("echo", {"text": "b"}, id="x")]),
            Reply(calls=[Call("echo", {"text": "c"}, id="x")]),
            "done",
            Reply(calls=[Call("echo", {"text": "d"}, id="x")]),
            "done",
        ]
    )
    async with open_engine(model, tools=[echo]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        await engine.ask(chat.id, "again")
        results = [message.result for message in await engine.messages(chat.id) if message.role == "tool"]
        assert [result.output for result in results] == ["a", "b", "c", "d"]
        assert len({result.call_id for result in results}) == 4
        assert results[0].call_id == "x"


async def test_a_tool_learns_of_its_call_and_reports_progress(open_engine: Any, strict_model: Any) -> None:
    contexts: list[ToolContext] = []

    @tool
    async def build(target: str, context: ToolContext) -> str:
        """Build."""
        contexts.append(context)
        context.report({"done": 50})
        return target

    model = strict_model([Reply(calls=[Call("build", {"target": "all"})]), "done"])
    async with open_engine(model, tools=[build]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await engine.wait(chat.id)
        (context,) = contexts
        assert (context.chat_id, context.call_id, context.step) == (chat.id, "call_1", 1)
        assert "call_1" in context.idempotency_key
        assert "context" not in str(model.requests[0].tools[0].schema)


async def test_progress_is_shown_while_the_tool_runs(open_engine: Any, strict_model: Any) -> None:
    latch = Latch()

    @tool
    async def build(context: ToolContext) -> str:
        """Build."""
        context.report({"done": 50})
        await latch.pass_through()
        return "built"

    async with open_engine(strict_model([Reply(calls=[Call("build", {})]), "done"]), tools=[build]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "tool_progress":
                assert (event.call_id, event.progress) == ("call_1", {"done": 50})
                break
        latch.open()
        assert (await engine.wait(chat.id)).state == "waiting"


async def test_a_blocking_tool_reports_progress_from_its_thread(open_engine: Any, strict_model: Any) -> None:
    latch = Latch()

    @tool
    def build(context: ToolContext) -> str:
        """Build."""
        context.report("half-way")
        anyio.from_thread.run(latch.pass_through)
        return "built"

    async with open_engine(strict_model([Reply(calls=[Call("build", {})]), "done"]), tools=[build]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "tool_progress":
                break
        latch.open()
        await engine.wait(chat.id)
        assert "tool: call_1=built" in lines_of(await engine.messages(chat.id))


@pytest.mark.parametrize("progress", [object(), {"a": object()}])
async def test_progress_that_is_no_json_value_fails_the_call_and_nothing_else(
    open_engine: Any, strict_model: Any, progress: Any
) -> None:
    @tool
    async def build(context: ToolContext) -> str:
        """Build."""
        context.report(progress)
        return "built"

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("build", {})]), "sorry"]), [build])
    assert (result.text, result.messages[2].result.is_error) == ("sorry", True)


async def test_a_tool_that_is_cancelled_from_within_is_answered(open_engine: Any, strict_model: Any) -> None:
    """A library inside the tool may cancel its own task; the chat must not wait for ever."""

    @tool
    async def give_up() -> str:
        """Give up."""
        raise asyncio.CancelledError

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("give_up", {})]), "I see"]), [give_up])
    assert (result.text, result.messages[2].result.is_error) == ("I see", True)


async def test_a_blocking_tool_runs_in_a_thread(open_engine: Any, strict_model: Any) -> None:
    @tool
    def ask_home() -> str:
        """Ask the event loop from outside of it."""
        return anyio.from_thread.run_sync(lambda: "from a thread")

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("ask_home", {})]), "done"]), [ask_home])
    assert "tool: call_1=from a thread" in lines_of(result.messages)


async def test_no_blocking_tool_waits_for_the_thread_of_another_nor_keeps_the_files_waiting(
    open_engine: Any, strict_model: Any, tmp_path: Path
) -> None:
    """More of them than the threads that all files share are at work, until all have put theirs."""
    count = 45
    all_began, page = threading.Barrier(count), tmp_path / "page.txt"
    page.write_text("a page")

    @tool(parallel_safe=True)
    def scan(context: ToolContext) -> ToolOutput:
        """Scan."""
        all_began.wait(60)
        put = partial(context.put_file, page if context.call_id.endswith("1") else iter([b"a picture"]))
        return ToolOutput("scanned", (anyio.from_thread.run(partial(put, media_type="image/png")),))

    model = strict_model([Reply(calls=[Call("scan", {})] * count), "done"])
    settings = Settings(parallel_cap=count, tool_timeout=60)
    result, _ = await run(open_engine, model, [scan], settings=settings, files=FolderFiles(tmp_path / "files"))
    assert [message.result.output for message in result.messages[2:-1]] == ["scanned"] * count


async def test_attachments_are_stored_and_shown(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def draw() -> ToolOutput:
        """Draw."""
        return ToolOutput("a cat", (FilePart(media_type="image/png", data="aGk=", name="cat.png"),))

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("draw", {})]), "done"]), [draw])
    assert [file.name for file in result.messages[2].result.attachments] == ["cat.png"]


@pytest.mark.parametrize("returned", ["x" * 200, ["x" * 200], "é" * 100])
async def test_an_output_over_the_limit_is_cut_and_says_how_much(
    open_engine: Any, strict_model: Any, returned: Any
) -> None:
    @tool
    async def talk() -> Any:
        """Talk."""
        return returned

    model = strict_model([Reply(calls=[Call("talk", {})]), "done"])
    result, _ = await run(open_engine, model, [talk], settings=Settings(output_limit_bytes=99))
    kept, note = result.messages[2].result.output.rsplit("\n", 1)
    assert len(kept.encode()) <= 99
    size = len(returned.encode()) if isinstance(returned, str) else 204
    assert note == f"[cut: {size - len(kept.encode())} of {size} bytes are not shown]"


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("returned", "output"),
    [(None, None), ({"a": (1, 2)}, {"a": [1, 2]}), (Point(x=1), {"x": 1}), (b"raw", "raw"), (float("nan"), None)],
)
async def test_whatever_json_can_say_is_a_result(
    open_engine: Any, strict_model: Any, returned: Any, output: Any
) -> None:
    @tool
    async def give() -> Any:
        """Give."""
        return returned

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("give", {})]), "done"]), [give])
    assert result.messages[2].result.output == output


@pytest.mark.parametrize("returned", [object(), {"\ud800": object()}, {"a": {1: object()}}, b"\xff", lambda: None])
async def test_a_result_that_is_no_json_value_is_an_error_the_model_sees(
    open_engine: Any, strict_model: Any, returned: Any
) -> None:
    @tool
    async def give() -> Any:
        """Give."""
        return returned

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("give", {})]), "sorry"]), [give])
    assert result.chat.state == "waiting"
    assert result.text == "sorry"
    assert result.messages[2].result.is_error


async def test_an_exception_with_lone_surrogates_is_a_result_too(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def read() -> str:
        """Read."""
        raise OSError("no file \udcff")

    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("read", {})]), "sorry"]), [read])
    assert (result.text, result.messages[2].result.is_error) == ("sorry", True)


def test_a_tool_without_a_schema_is_refused() -> None:
    def bare(x):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        """Do."""

    with pytest.raises(SettingsError, match="parameter 'x' has no type hint; add one, or give schema="):
        tool(bare)


def test_a_tool_that_nothing_describes_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs a docstring or a description"):
        tool(schema={"type": "object"})(lambda: "x")


@pytest.mark.parametrize("schema", [{}, {"type": "string"}])
async def test_a_tool_whose_schema_is_no_object_schema_is_refused(
    open_engine: Any, strict_model: Any, schema: Any
) -> None:
    declared = tool(name="odd", description="Odd.", schema=schema)(lambda: "x")
    with pytest.raises(SettingsError, match=r'tool .odd.: needs a JSON schema of type "object"'):
        async with open_engine(strict_model("done"), tools=[declared]):
            raise AssertionError


async def test_two_tools_of_one_name_are_refused(open_engine: Any, strict_model: Any) -> None:
    declared = tool(name="twice", description="Twice.", schema={"type": "object"})(lambda: "x")
    with pytest.raises(SettingsError, match="two tools are named 'twice'"):
        async with open_engine(strict_model("done"), tools=[declared, declared]):
            raise AssertionError


async def test_a_tool_that_asks_needs_the_clients_approval(open_engine: Any, strict_model: Any) -> None:
    ran: list[str] = []

    @tool(policy="ask")
    async def delete(path: str) -> str:
        """Delete."""
        ran.append(path)
        return "deleted"

    async with open_engine(
        strict_model([Reply(calls=[Call("delete", {"path": "/"})]), "done"]), tools=[delete]
    ) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.chat.state, ran) == ("requires_action", [])


SECRET = "postgres://user:hunter2@host"  # noqa: S105 - none at all


def failing(error: BaseException, **options: Any) -> Tool:
    @tool(name="fail", **options)
    async def fail() -> str:
        """Fail."""
        raise error

    return fail


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolFailed("the file is locked; try later"), "the file is locked; try later"),
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable: its text cannot be had"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
    ],
)
async def test_what_a_tool_raises_is_told_and_its_traceback_logged(
    open_engine: Any, strict_model: Any, caplog: pytest.LogCaptureFixture, error: Exception, told: str
) -> None:
    caplog.set_level(logging.INFO, "turnwise")
    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("fail", {}, id="f")]), "ok"]), [failing(error)])
    answered = result.messages[2].result
    assert (answered.output, answered.is_error, answered.outcome) == (told, True, "failed")
    (line,) = [record for record in caplog.records if "tool_failed" in record.getMessage()]
    if isinstance(error, ToolFailed):
        assert (line.levelname, line.exc_info) == ("INFO", None), "it has said what it had to say"
        assert "problem=" in line.getMessage()
    else:
        assert line.exc_info is not None
        assert (line.levelname, line.exc_info[1]) == ("ERROR", error)
    assert all(word in line.getMessage() for word in ("tool=fail", "call_id=f", f"chat_id={result.chat.id}"))


async def test_a_service_says_what_is_seen_of_errors(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("fail", {})]), "ok"])
    settings = Settings(describe_error=lambda error: f"something went wrong ({type(error).__name__})")
    result, events = await run(open_engine, model, [failing(OSError(SECRET))], settings=settings)
    assert result.messages[2].result.output == "something went wrong (OSError)"
    assert SECRET not in str(events) + str(model.requests)


@pytest.mark.parametrize("raises", ["deps", "a strategy", "a model that summarises"])
async def test_a_service_says_what_is_seen_of_errors_around_tools_and_summaries(
    open_engine: Any, raises: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_given: Any) -> Any:
        raise OSError(SECRET)

    class Summariser(ScriptedModel):
        generate = fail

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    settings = Settings(
        describe_error=lambda error: f"something went wrong ({type(error).__name__})",
        compaction=CompactionPolicy(strategy=fail if raises == "a strategy" else None),
    )
    model = Summariser([Reply(calls=[Call("look", {})]), "hi"])
    deps = fail if raises == "deps" else None
    async with open_engine(model, tools=[look], settings=settings, deps=deps) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        if raises != "deps":
            await engine.request_compaction(chat.id)
        await engine.wait(chat.id, until=["error" if raises == "deps" else "waiting"], timeout=60)
        told = str([event async for event in engine.events(chat.id, follow=False)])
        told += f"{await engine.get_chat(chat.id)} {await engine.explain(chat.id)}"
    assert "something went wrong (OSError)" in told
    assert SECRET not in told
    assert SECRET in caplog.text, "the log has the traceback"


@pytest.mark.parametrize("describe", [lambda error: 3, lambda error: None, lambda error: " ", lambda error: 1 / 0])
async def test_a_description_that_fails_tells_no_more_than_the_type(
    open_engine: Any, strict_model: Any, describe: Any
) -> None:
    model = strict_model([Reply(calls=[Call("fail", {})]), "ok"])
    tools = [failing(OSError(SECRET))]
    result, _ = await run(open_engine, model, tools, settings=Settings(describe_error=describe))
    assert (result.text, result.messages[2].result.output) == ("ok", "OSError")


def test_what_describes_errors_must_be_a_function() -> None:
    with pytest.raises(SettingsError, match="describe_error"):
        Settings(describe_error="short")  # type: ignore[arg-type]


async def test_a_tools_own_timeout_is_a_failure_of_the_tool_whose_outcome_is_unknown(
    open_engine: Any, strict_model: Any
) -> None:
    model = strict_model([Reply(calls=[Call("fail", {})]), "ok"])
    result, _ = await run(open_engine, model, [failing(TimeoutError("no answer"))])
    answered = result.messages[2].result
    assert answered.outcome == "failed"
    assert answered.output.startswith("TimeoutError: no answer")
    assert "outcome is unknown" in answered.output


@pytest.mark.parametrize("error", [ToolFailed("é" * 300), ValueError("é" * 300), FatalToolError("é" * 300)])
async def test_what_is_told_of_an_error_is_cut_at_the_limit(
    open_engine: Any, strict_model: Any, error: Exception
) -> None:
    model = strict_model([Reply(calls=[Call("fail", {})]), "ok"])
    result, _ = await run(open_engine, model, [failing(error)], settings=Settings(output_limit_bytes=100))
    kept, note = result.messages[2].result.output.split("\n")[:2]
    assert len(kept.encode()) <= 100
    assert note.startswith("[cut: ")
    if result.chat.last_error is not None:
        assert len(result.chat.last_error.message.encode()) < 200


async def test_an_error_of_unbounded_length_is_cut_by_default(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("fail", {})]), "ok"])
    result, _ = await run(open_engine, model, [failing(ValueError("x" * 1_000_000))])
    assert len(result.messages[2].result.output) < 2100


async def test_progress_over_the_limit_is_cut(open_engine: Any, strict_model: Any) -> None:
    latch = Latch()

    @tool
    async def build(context: ToolContext) -> str:
        """Build."""
        context.report(["x" * 500])
        await latch.pass_through()
        return "built"

    model = strict_model([Reply(calls=[Call("build", {})]), "done"])
    async with open_engine(model, tools=[build], settings=Settings(output_limit_bytes=100)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "tool_progress":
                kept, note = event.progress.split("\n")
                assert (len(kept), note) == (100, "[cut: 404 of 504 bytes are not shown]")
                break
        latch.open()
        await engine.wait(chat.id)


async def test_files_over_the_limit_are_left_out_and_named(open_engine: Any, strict_model: Any) -> None:
    small, large = (FilePart.from_bytes(b"a" * size, "image/png", name=f"{size}.png") for size in (40, 80))

    @tool
    async def draw() -> ToolOutput:
        """Draw."""
        return ToolOutput("drawn", (small, large, small))

    model = strict_model([Reply(calls=[Call("draw", {})]), "done"])
    result, _ = await run(open_engine, model, [draw], settings=Settings(attachment_limit_bytes=100))
    answered = result.messages[2].result
    assert [file.name for file in answered.attachments] == ["40.png", "40.png"]
    assert answered.output == "drawn\n[left out, over the limit of 100 bytes: 80.png (80 bytes)]"


# Which tools there are


async def test_a_tool_that_is_not_offered_never_runs(open_engine: Any, strict_model: Any) -> None:
    ran: list[str] = []

    def named(name: str, **options: Any) -> Tool:
        return tool(name=name, description="Act.", schema={"type": "object"}, **options)(lambda: ran.append(name))

    tools = [named("on"), named("off"), named("asks", policy="ask")]
    model = strict_model([Reply(calls=[Call(name, {}) for name in ("on", "off", "asks", "there")]), "done"])
    result, _ = await run(open_engine, model, tools, settings=Settings(active_tools=["on"]))
    answered = [message.result for message in result.messages if message.result is not None]
    assert (result.chat.state, ran) == ("waiting", ["on"])
    assert [one.is_error for one in answered] == [False, True, True, True]
    assert answered[1].output == "There is no tool named 'off'. Tools: on."
    assert "'asks'" not in str(model.requests[0].tools)


async def test_a_client_tool_that_is_not_offered_never_reaches_the_client(open_engine: Any, strict_model: Any) -> None:
    choose, other = (ClientTool(name, "Choose.", {"type": "object"}) for name in ("choose", "other"))
    model = strict_model([Reply(calls=[Call("other", {}), Call("choose", {}, id="c")]), "done"])
    async with open_engine(model, settings=Settings(active_tools=["client:choose"])) as engine:
        chat = await engine.create_chat(client_tools=[choose, other])
        result = await engine.ask(chat.id, "go")
        assert [call.call_id for call in result.open_calls] == ["c"]
        assert [message.result.is_error for message in result.messages if message.result is not None] == [True]
        assert [spec.name for spec in model.requests[0].tools] == ["choose"]


async def test_what_was_not_offered_is_refused_by_another_worker_that_would_offer_it(
    open_engine: Any, strict_model: Any
) -> None:
    ran: list[str] = []
    hold = Latch()

    @tool(crash="at_least_once")
    async def on() -> str:
        """Hold on."""
        await hold.pass_through()
        return "on"

    @tool
    async def off() -> None:
        """Act."""
        ran.append("off")

    model = strict_model([Reply(calls=[Call("on", {}), Call("off", {})]), "done"])
    settings = Settings(active_tools=["on"], shutdown_grace=0)
    async with open_engine(model, tools=[on, off], settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await hold.entered.wait()
    hold.open()
    async with open_engine(model, tools=[on, off]) as engine:
        await engine.wait(chat.id)
        outputs = [message.result.output for message in await engine.messages(chat.id) if message.result is not None]
    assert ran == []
    assert outputs == ["on", "There is no tool named 'off'. Tools: on."]


@pytest.mark.parametrize("later", [{"settings": Settings(active_tools=["on"])}, {"asks": True}])
async def test_a_call_that_waits_is_refused_by_a_worker_that_must_not_run_it(
    open_engine: Any, strict_model: Any, later: dict[str, Any]
) -> None:
    """The tool was offered and may have been changed since: what it says now counts."""
    ran: list[str] = []
    hold = Latch()

    def tools(*, asks: bool = False) -> list[Tool]:
        @tool(crash="at_least_once")
        async def on() -> str:
            """Hold on."""
            await hold.pass_through()
            return "on"

        @tool(policy="ask" if asks else "auto")
        async def off() -> None:
            """Act."""
            ran.append("off")

        return [on, off]

    model = strict_model([Reply(calls=[Call("on", {}), Call("off", {})]), "done"])
    async with open_engine(model, tools=tools(), settings=Settings(shutdown_grace=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await hold.entered.wait()
    hold.open()
    asks = later.pop("asks", False)
    async with open_engine(model, tools=tools(asks=asks), **later) as engine:
        assert (await engine.wait(chat.id)).state == "waiting"
        results = [message.result for message in await engine.messages(chat.id) if message.result is not None]
    assert (ran, [result.is_error for result in results]) == ([], [False, True])


async def test_calls_that_were_approved_run_in_a_version_that_hides_their_tool_from_the_model(
    open_engine: Any, strict_model: Any
) -> None:
    """One was approved before, and cut off as it ran; the other is approved there. Neither may be answered unrun."""
    paid: list[str] = []
    hold = Latch()

    @tool(policy="ask", crash="at_least_once")
    async def pay(order: str) -> str:
        """Pay back."""
        await hold.pass_through()
        paid.append(order)
        return f"paid {order}"

    @tool
    async def look() -> None:
        """Look."""

    asks = Reply(calls=[Call("pay", {"order": "7"}, id="p")])
    model = strict_model([asks, asks, "done", "done"])
    async with open_engine(model, tools=[pay, look], settings=Settings(shutdown_grace=0)) as engine:
        cut_off, asked = [await engine.create_chat() for _ in range(2)]
        for chat in (cut_off, asked):
            await engine.ask(chat.id, "go")
        await engine.submit_tool_results(cut_off.id, [ToolResult("p", output=True)])
        await hold.entered.wait()
    hold.open()
    async with open_engine(model, tools=[pay, look], settings=Settings(active_tools=["look"])) as engine:
        await engine.submit_tool_results(asked.id, [ToolResult("p", output=True)])
        for chat in (cut_off, asked):
            assert (await engine.wait(chat.id)).state == "waiting"
            outputs = [message.result.output for message in await engine.messages(chat.id) if message.result]
            assert outputs == ["paid 7"]
    assert paid == ["7", "7"]
    assert [[spec.name for spec in request.tools] for request in model.requests[2:]] == [["look"], ["look"]]


@pytest.mark.parametrize("names", [["nope"], ["ping", "pnig"], ["choose"]])
def test_active_tools_that_there_are_not_are_refused(names: list[str]) -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    with pytest.raises(SettingsError, match=r"active_tools: there is no tool named '(nope|pnig|choose)'; tools: ping"):
        Engine("sqlite://", model=ScriptedModel([]), tools=[ping], settings=Settings(active_tools=names))


async def test_two_chats_with_one_call_id_have_keys_of_their_own(open_engine: Any, strict_model: Any) -> None:
    keys: list[str] = []

    @tool
    async def pay(context: ToolContext) -> None:
        """Pay."""
        keys.append(context.idempotency_key)

    reply = Reply(calls=[Call("pay", {}, id="same")])
    async with open_engine(strict_model([reply, "done", reply, "done"]), tools=[pay]) as engine:
        for _ in range(2):
            await engine.ask((await engine.create_chat()).id, "pay")
    assert len(set(keys)) == 2


class Inner(BaseModel):
    count: int
    when: date
    either: int | list[int] = 0
    secret: SecretStr | None = None


async def test_tool_history_and_events_agree_on_arguments_at_every_depth(open_engine: Any, strict_model: Any) -> None:
    got: list[Any] = []

    @tool
    async def take(inner: Inner, more: list[Inner], flag: bool, at: datetime, size: float = 1) -> None:  # noqa: FBT001
        """Take."""
        got.append([inner, more, flag, at, size])

    given = {
        "inner": '{"count": "3", "when": "2026-01-02", "either": ["4"], "secret": "s"}',
        "more": [{"count": 4.0, "when": "2026-01-02"}],
        "flag": "true",
        "at": 0,
    }
    model = strict_model([Reply(calls=[Call("take", given)]), "done"])
    result, events = await run(open_engine, model, [take])
    kept = result.messages[1].calls[0].arguments
    assert kept == {
        "inner": {"count": 3, "when": "2026-01-02", "either": [4], "secret": "s"} | kept["inner"],
        "more": [{"count": 4, "when": "2026-01-02"}],
        "flag": True,
        "at": "1970-01-01T00:00:00Z",
    }
    assert "s" in str(kept["inner"]["secret"])
    shown = [event.part.complete for event in events if event.kind == "part" and event.part.complete is not None]
    assert [part["arguments"] for part in shown if part["type"] == "tool_call"] == [kept]
    inner, more, flag, at, size = got[0]
    assert (inner, more) == (Inner(**kept["inner"]), [Inner(**kept["more"][0])])
    assert (flag, at.isoformat(), size) == (True, "1970-01-01T00:00:00+00:00", 1)
