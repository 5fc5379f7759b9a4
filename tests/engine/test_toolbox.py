"""The toolbox: the tools of a chat, and plans, concurrency and results of calls."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
from base64 import b64decode
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import structlog
from msgspec.structs import replace
from pydantic import BaseModel, SecretStr

from support.engines import OpenChat
from support.events import events_of
from turnwise import (
    ClientTool,
    CompactionPolicy,
    FilePart,
    FolderFiles,
    Reconciled,
    Settings,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
    tool,
)
from turnwise.engine.tools.toolbox import Toolbox, idempotency_key
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError, SettingsError
from turnwise.states.facts import Facts, Profile, StepFacts
from turnwise.states.messages import ToolCallPart
from turnwise.states.names import CallStatus, Executor

NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@tool
async def add(n: int) -> int:
    """Add one."""
    return n + 1


@tool(policy="ask", crash="at_least_once", stop_after=True)
async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@tool(parallel_safe=True, timeout=7)
def look(context: ToolContext, where: str = "here") -> str:
    """Look."""
    return f"{context.call_id} {where}"


ASK = ClientTool("ask_user", "Ask.", NUMBERS, deadline=50)
THEIR_ADD = ClientTool("add", "Add at the client's.", {"type": "object"})
CALL = ToolCall(call_id="c", name="add", arguments={"n": 1}, executor=Executor.local, index=0, step=1)


def box(*tools: Tool, **settings: Any) -> Toolbox:
    return Toolbox({known.name: known for known in tools or (add, pay, look)}, Settings(**settings))


def facts(*client_tools: ClientTool) -> Facts:
    profile = Profile(created_at=datetime(2026, 1, 1, tzinfo=UTC), client_tools=client_tools)
    return Facts(chat_id="chat", profile=profile, step=StepFacts(number=4))


def context(**fields: Any) -> ToolContext:
    return ToolContext.for_tests(**{"call_id": "c", **fields})


def named(toolbox: Toolbox, *client_tools: ClientTool) -> list[tuple[str, str]]:
    return [(spec.name, spec.description) for spec in toolbox.list_offered(client_tools)]


@pytest.mark.parametrize("active", [None, ["look"], ["client:add"]], ids=str)
def test_client_tool_cannot_replace_the_answer_tool(active: list[str] | None) -> None:
    """Otherwise the answer would go to the client when an agent takes over its chat."""
    toolbox = Toolbox({"add": add, "look": look}, Settings(active_tools=active), answer=add)
    assert ("add", "Add one.") in named(toolbox, THEIR_ADD)
    assert "add" not in [spec.name for spec in toolbox.list_offered((THEIR_ADD,), with_answer=False)]
    planned = toolbox.plan_call(part("add", n=1), facts(THEIR_ADD), 0)
    assert (planned.executor, planned.answers, planned.refusal) == (Executor.local, True, None)


def test_unknown_active_tool_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"active_tools: .*'clientadd'; tools: add, look;.*client:NAME"):
        box(look, add, active_tools=["add", "clientadd"])
    with pytest.raises(SettingsError, match="tools: none;"):
        Toolbox({}, Settings(active_tools=["add"]))


@pytest.mark.parametrize(
    ("active", "offered"),
    [
        (None, [("add", "Add one."), ("pay", "Pay."), ("look", "Look."), ("ask_user", "Ask.")]),
        (["pay"], [("pay", "Pay.")]),
        (["add"], [("add", "Add one.")]),
        (["client:add"], []),
        (["client:ask_user", "add"], [("add", "Add one."), ("ask_user", "Ask.")]),
        ([], []),
    ],
    ids=str,
)
def test_active_tools_are_offered(active: list[str] | None, offered: list[tuple[str, str]]) -> None:
    """A client's tool with a local tool's name is not offered: its client would answer the local tool's calls."""
    toolbox = box(active_tools=active)
    client_tools = (THEIR_ADD, ASK)
    assert named(toolbox, *client_tools) == offered
    for name in ("add", "pay", "look", "ask_user", "else"):
        found = toolbox.tool_for(name, client_tools)
        offers = [(known.name, known.description) for known in [found] if known is not None]
        assert offers == [known for known in offered if known[0] == name]


def part(name: str, call_id: str = "c", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name=name, arguments=arguments)


def test_local_call_is_planned_as_declared() -> None:
    def stored(_context: ToolContext) -> None: ...

    saved = dataclasses.replace(pay, name="save", policy="auto", reconcile=stored)
    toolbox = box(add, saved)
    assert toolbox.plan_call(part("add", n=1), facts(), 2) == replace(CALL, index=2, step=4)
    planned = toolbox.plan_call(part("save", n=1), facts(), 0)
    assert (planned.crash, planned.stop_after, planned.reconciles) == ("at_least_once", True, True)
    unfit = toolbox.plan_call(part("add", n="x"), facts(), 0)
    assert (unfit.refusal, unfit.executor) == (None, Executor.local)  # it is checked as it runs


def test_approvals_and_client_calls_go_to_the_client() -> None:
    pays = box().plan_call(part("pay", n=1), facts(ASK), 0)
    assert (pays.executor, pays.approval, pays.refusal, pays.within) == (Executor.client, "asked", None, None)
    assert (pays.crash, pays.stop_after) == ("at_least_once", True)
    assert pays.approver == "operator"
    lenient = dataclasses.replace(pay, approver="owner")
    assert box(lenient).plan_call(part("pay", n=1), facts(ASK), 0).approver == "owner"
    with pytest.raises(SettingsError, match="tool 'add': approver='owner' needs policy='ask'"):
        dataclasses.replace(add, approver="owner")
    theirs = box().plan_call(part("ask_user", n=1), facts(ASK), 0)
    assert (theirs.executor, theirs.approval, theirs.refusal) == (Executor.client, None, None)
    assert theirs.within == 50
    assert (theirs.crash, theirs.stop_after, theirs.reconciles) == ("at_most_once", False, False)
    assert box().plan_call(part("add", n="x"), facts(THEIR_ADD), 0).executor is Executor.local


@pytest.mark.parametrize(
    ("call_part", "word"),
    [
        (part("ask_user", n="soon"), "Invalid arguments for ask_user"),
        (part("pay"), "Invalid arguments for pay"),
        (part("steal"), "There is no tool named 'steal'. Tools: add, ask_user, pay."),
    ],
    ids=lambda value: str(getattr(value, "name", "")),
)
def test_invalid_call_is_refused_as_it_is_planned(call_part: ToolCallPart, word: str) -> None:
    def stored(_context: ToolContext) -> None: ...

    toolbox = box(add, dataclasses.replace(pay, reconcile=stored))
    planned = toolbox.plan_call(call_part, facts(ASK), 0)
    assert word in (planned.refusal or "")
    assert (planned.executor, planned.approval) == (Executor.local, None)
    assert (planned.crash, planned.reconciles) == ("at_least_once", False)


def test_refusal_names_the_offered_tools() -> None:
    name = "n" * 70
    refusal = box(active_tools=["look", "client:ask_user"]).plan_call(part(name), facts(ASK, THEIR_ADD), 0).refusal
    assert refusal == f"There is no tool named '{'n' * 64}'. Tools: ask_user, look."
    assert "Tools: none." in (Toolbox({}, Settings()).plan_call(part("add"), facts(), 0).refusal or "")


def call(name: str, call_id: str, **fields: Any) -> ToolCall:
    return replace(CALL, name=name, call_id=call_id, **fields)


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        ([], []),
        ([call("add", "a"), call("add", "b")], ["a"]),
        ([call("look", "a"), call("look", "b"), call("look", "c")], ["a", "b"]),
        ([call("look", "a"), call("gone", "b")], ["a"]),
        ([call("look", "a"), call("gone", "b", refusal="there is none")], ["a", "b"]),
        ([call("look", "a"), call("add", "b", executor=Executor.client), call("look", "c")], ["a", "c"]),
        ([call("look", "a", status=CallStatus.succeeded), call("look", "b"), call("look", "c")], ["b", "c"]),
        ([call("look", "a", status=CallStatus.started), call("look", "b"), call("look", "c")], []),
        ([call("add", "a", status=CallStatus.succeeded), call("look", "b"), call("look", "c")], ["b"]),
    ],
    ids=lambda value: " ".join(getattr(one, "call_id", one) for one in value),
)
def test_one_call_starts_or_a_safe_batch(calls: list[ToolCall], first: list[str]) -> None:
    toolbox = box(parallel_cap=2)
    assert [known.call_id for known in toolbox.first_calls(calls)] == first


def test_timeout_is_the_tools_or_the_settings() -> None:
    toolbox = box(tool_timeout=9)
    assert [toolbox.timeout(call(name, "a")) for name in ("look", "add", "gone")] == [7, 9, 9]
    assert box(tool_timeout=None).timeout(CALL) is None


def test_argument_schemas_are_those_of_the_open_calls() -> None:
    asked = {"executor": Executor.client, "approval": "asked"}
    calls = [call("pay", "a", **asked), call("ask_user", "b", executor=Executor.client), call("gone", "c")]
    assert box().argument_schemas(calls, (ASK,)) == {"pay": pay.schema, "ask_user": NUMBERS}


async def outcome_of(toolbox: Toolbox, call: ToolCall, **fields: Any) -> CallOutcome:
    return await toolbox.run(call, context(**fields), lambda: None)


async def status_and_output(toolbox: Toolbox, call: ToolCall = CALL, **fields: Any) -> tuple[str, Any]:
    outcome = await outcome_of(toolbox, call, **fields)
    assert outcome.call_id == call.call_id
    assert outcome.is_error == (outcome.status is not CallStatus.succeeded)
    return outcome.status.value, outcome.output


async def test_call_runs_with_its_arguments_and_context() -> None:
    assert await status_and_output(box()) == ("succeeded", 2)
    assert await status_and_output(box(), call("look", "x", arguments={"where": "there"}), call_id="x") == (
        "succeeded",
        "x there",
    )
    assert await status_and_output(box(), call("pay", "p", approval="granted")) == ("succeeded", "paid 1")


async def test_approved_call_runs_although_its_tool_is_inactive() -> None:
    """A person has approved it; later offers to the model do not overrule that."""
    hides = box(active_tools=["look"])
    assert await status_and_output(hides, call("pay", "p", approval="granted")) == ("succeeded", "paid 1")
    assert await status_and_output(hides, call("pay", "p", approval="granted", refusal="Erased.")) == (
        "failed",
        "Erased.",
    )


@pytest.mark.parametrize(
    ("call", "settings", "word"),
    [
        (call("add", "a", refusal="It was refused."), {}, "It was refused."),
        (call("gone", "a"), {}, "There is no tool named 'gone'"),
        (call("add", "a"), {"active_tools": ["look"]}, "There is no tool named 'add'. Tools: look."),
        (call("pay", "a", approval="asked"), {}, "Not run: pay needs the user's approval"),
        (call("add", "a", arguments={}), {}, "Invalid arguments for add"),
    ],
    ids=str,
)
async def test_forbidden_call_is_answered_and_not_run(call: ToolCall, settings: dict[str, Any], word: str) -> None:
    status, output = await status_and_output(box(**settings), call)
    assert status == "failed"
    assert word in output


def group(*errors: BaseException) -> BaseExceptionGroup:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", errors)


@pytest.mark.parametrize(
    ("raised", "output"),
    [
        (group(ToolFailed("no such host")), "no such host"),
        (group(SystemExit(3)), "SystemExit: 3"),
        (group(group(TimeoutError())), "TimeoutError. The outcome is unknown: it may or may not have taken effect."),
        (
            group(ToolFailed("no such host"), ValueError("odd")),
            "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        ),
        (group(group(FatalToolError("broken"))), FatalToolError),
    ],
    ids=repr,
)
async def test_exception_group_of_one_error_is_that_error(raised: BaseException, output: Any) -> None:
    """Errors leave a task group in such a group."""

    async def fails() -> None:
        raise raised

    failing, given = box(tool(description="Fail.")(fails)), call("fails", "a", arguments={})
    if output is FatalToolError:
        with pytest.raises(FatalToolError, match=r"^broken$"):
            await outcome_of(failing, given)
    else:
        status = "unknown" if str(output).endswith("may not have taken effect.") else "failed"
        assert await status_and_output(failing, given) == (status, output)


async def test_blocking_tool_runs_in_a_thread() -> None:
    """It may return an awaitable, as a wrapper of an async function does."""

    def block(n: int) -> Any:
        """Block."""
        threads.append(threading.get_ident())
        return asyncio.sleep(0, n) if n else n

    threads: list[int] = []
    toolbox = box(tool(block))
    for n in (5, 0):
        assert await status_and_output(toolbox, call("block", "a", arguments={"n": n})) == ("succeeded", n)
    assert threading.get_ident() not in threads
    status, _ = await status_and_output(toolbox, call("block", "a", arguments={"n": 5}), cancelled=True)
    assert (status, len(threads)) == ("unknown", 2)  # given up while it waited for a thread


class Point(BaseModel):
    x: int


async def kept_of(returned: Any) -> tuple[str, Any]:
    """Return the stored form of a tool's output."""
    give = tool(name="give", description="Give.")(lambda: returned)
    return await status_and_output(box(give), call("give", "a", arguments={}))


@pytest.mark.parametrize(
    ("returned", "output"),
    [(None, None), ({"a": (1, 2)}, {"a": [1, 2]}), (Point(x=1), {"x": 1}), (b"raw", "raw"), (float("nan"), None)],
)
async def test_output_is_stored_as_json(returned: Any, output: Any) -> None:
    assert await kept_of(returned) == ("succeeded", output)


@pytest.mark.parametrize(
    "returned",
    [object(), {"\ud800": object()}, b"\xff", {"rows": [itertools.count()]}],
    ids=["object", "surrogate", "bytes", "endless"],
)
async def test_output_that_is_not_json_is_a_note(returned: Any) -> None:
    """The tool has run, so the result is no failure that anyone would retry."""
    status, output = await kept_of(returned)
    assert status == "succeeded"
    assert output.startswith("[give has run, but what it returned cannot be kept: ")


@pytest.mark.parametrize(
    ("sizes", "stored", "note"),
    [
        ([5, 5], [5, 5], ""),
        ([5, 6], [5], "[left out, over the limit of 10 bytes: f1 (6 bytes)]"),
        ([4, 20, 6, 1], [4, 6], "[left out, over the limit of 10 bytes: f1 (20 bytes), f3 (1 bytes)]"),
    ],
    ids=str,
)
async def test_files_over_the_limit_are_left_out(sizes: list[int], stored: list[int], note: str) -> None:
    files = tuple(FilePart.from_bytes(b"x" * size, "text/plain", name=f"f{at}") for at, size in enumerate(sizes))
    give = tool(name="give", description="Give.")(lambda: ToolOutput({"n": [1]}, files))
    outcome = await outcome_of(box(give, attachment_limit_bytes=10), call("give", "a", arguments={}))
    assert [len(b64decode(file.data or "")) for file in outcome.attachments] == stored
    assert outcome.output == ('{"n":[1]}\n' + note if note else {"n": [1]})


@pytest.mark.parametrize("crash", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    ("found", "decided"),
    [
        (ToolOutput("paid"), ("succeeded", "paid")),
        (False, ("succeeded", False)),
        (Reconciled.done(None), ("succeeded", None)),
        (Reconciled.done(ToolOutput("paid")), ("succeeded", "paid")),
        (Reconciled.not_done(), "not_done"),
        (Reconciled.unknown(), None),
        (None, None),
        (ToolFailed("no"), None),
        (SystemExit(3), None),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_reconcile_decides_after_a_crash(crash: Any, found: Any, decided: Any) -> None:
    def reconcile(known: ToolContext) -> Any:
        contexts.append(known)
        if isinstance(found, BaseException):
            raise found
        return found

    contexts: list[ToolContext] = []
    known = dataclasses.replace(add, reconcile=reconcile)
    cut_off, mine = replace(CALL, crash=crash, status=CallStatus.started), context()
    with structlog.testing.capture_logs() as logs:
        outcome = await box(known).after_crash(cut_off, mine)
    assert contexts == [mine]
    assert [(line["event"], line["tool"], line["call_id"]) for line in logs] == (
        [("reconcile_failed", "add", "c")] if isinstance(found, BaseException) else []
    )
    assert all(str(found) in str(line["exc_info"]) for line in logs)
    if isinstance(outcome, Reconciled):
        assert outcome.verdict == (decided or "unknown")
        assert decided is not None or crash == "at_least_once"
    elif decided is None:
        assert (crash, outcome.status, outcome.is_error) == ("at_most_once", CallStatus.unknown, True)
    else:
        assert (outcome.status.value, outcome.output) == decided


async def test_reconciled_output_that_is_not_json_is_a_note() -> None:
    known = dataclasses.replace(add, reconcile=lambda _: Reconciled.done(object()))
    outcome = await box(known).after_crash(replace(CALL, status=CallStatus.started), context())
    assert (outcome.status, "add has run" in str(outcome.output)) == (CallStatus.succeeded, True)


async def test_erased_call_is_reconciled_and_not_run_again() -> None:
    started = replace(CALL, crash="at_least_once", status=CallStatus.started)
    erased, outcomes = started.blanked(arguments=True, answer=False), []
    for found in ("it was done", None, Reconciled.not_done()):
        known = dataclasses.replace(add, reconcile=lambda _context, found=found: found)
        outcomes.append(await box(known).after_crash(erased, context()))
    outcomes.append(await box(add).after_crash(erased, context()))
    statuses = [outcome.status for outcome in outcomes if isinstance(outcome, CallOutcome)]
    assert statuses == ["succeeded", "unknown", "failed", "unknown"]
    before = replace(CALL, crash="at_least_once").blanked(arguments=True, answer=False)
    found = await box(known).after_crash(replace(before, status=CallStatus.started), context())
    assert found == Reconciled.unknown()  # it is refused as it runs


def test_idempotency_key_is_of_one_call_of_one_chat() -> None:
    keys = {idempotency_key(chat, call("add", one)) for chat in ("a", "b") for one in ("c", "d")}
    assert len(keys) == 4
    assert idempotency_key("a", CALL) == idempotency_key("a", replace(CALL, status=CallStatus.started))


# Tools run concurrently, and every fault becomes a result for the model


class Crowd:
    """Tools that record concurrency: each waits until `peak` of them are inside, or all were started."""

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


async def run(open_engine: Any, model: Any, tools: Sequence[Any], **options: Any) -> Any:
    async with open_engine(model, tools=tools, **options) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        return result, await events_of(engine, chat.id)


@pytest.mark.parametrize(("safe", "parallel", "peak"), [("abc", "safe", 3), ("ac", "safe", 1), ("", "all", 3)])
async def test_only_safe_calls_run_in_parallel(
    open_engine: Any, strict_model: Any, safe: str, parallel: Any, peak: int
) -> None:
    crowd = Crowd(expected=peak)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    tools = [crowd.tool(name, parallel_safe=name in safe) for name in "abc"]
    await run(open_engine, model, tools, settings=Settings(tools_parallel=parallel))
    assert (crowd.peak, crowd.order) == (peak, ["a", "b", "c"])


async def test_blocking_tools_do_not_share_threads(open_engine: Any, strict_model: Any, tmp_path: Path) -> None:
    """They outnumber the threads that all files share, and run until each has put its file."""
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


def test_tool_without_a_description_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs a docstring or a description"):
        tool(schema={"type": "object"})(lambda: "x")


SECRET = "postgres://user:hunter2@host"  # noqa: S105 - none at all


def failing(error: BaseException, **options: Any) -> Tool:
    @tool(name="fail", **options)
    async def fail() -> str:
        """Fail."""
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (ToolFailed("the file is locked; try later"), "the file is locked; try later"),
        (ValueError("bad"), "ValueError: bad"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
    ],
)
async def test_tool_error_is_a_result_and_its_traceback_is_logged(
    open_engine: Any, strict_model: Any, caplog: pytest.LogCaptureFixture, error: Exception, output: str
) -> None:
    caplog.set_level(logging.INFO, "turnwise")
    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("fail", {}, id="f")]), "ok"]), [failing(error)])
    answered = result.messages[2].result
    assert (answered.output, answered.is_error, answered.outcome) == (output, True, "failed")
    (line,) = [record for record in caplog.records if "tool_failed" in record.getMessage()]
    if isinstance(error, ToolFailed):
        assert (line.levelname, line.exc_info) == ("INFO", None), "its text is complete"
        assert "problem=" in line.getMessage()
    else:
        assert (line.levelname, line.exc_info[1]) == ("ERROR", error)
    assert all(word in line.getMessage() for word in ("tool=fail", "call_id=f", f"chat_id={result.chat.id}"))


@pytest.mark.parametrize("raises", ["deps", "a strategy", "a model that summarises"])
async def test_describe_error_covers_deps_and_compaction(
    raises: str, caplog: pytest.LogCaptureFixture, open_chat: OpenChat
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
    async with open_chat(model, tools=[look], settings=settings, deps=deps) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        if raises != "deps":
            await engine.request_compaction(chat.id)
        await engine.wait(chat.id, until=["error" if raises == "deps" else "waiting"], timeout=60)
        visible = str([event async for event in engine.events(chat.id, follow=False)])
        visible += f"{await engine.get_chat(chat.id)} {await engine.explain(chat.id)}"
    assert "something went wrong (OSError)" in visible
    assert SECRET not in visible
    assert SECRET in caplog.text, "the log has the traceback"


async def test_progress_is_limited_and_must_be_json(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def build(context: ToolContext) -> str:
        """Build."""
        context.report(["x" * 500])
        context.report({"a": object()})
        return "built"

    model = strict_model([Reply(calls=[Call("build", {})]), "sorry"])
    result, events = await run(open_engine, model, [build], settings=Settings(output_limit_bytes=100, coalesce=0))
    (progress,) = [event.progress for event in events if event.kind == "tool_progress"]
    stored, note = progress.split("\n")
    assert (len(stored), note) == (100, "[cut: 404 of 504 bytes are not shown]")
    assert (result.text, result.messages[2].result.is_error) == ("sorry", True)


class Inner(BaseModel):
    count: int
    when: date
    secret: SecretStr | None = None


async def test_tool_history_and_events_agree_on_arguments(open_engine: Any, strict_model: Any) -> None:
    got: list[Any] = []

    @tool
    async def take(inner: Inner, more: list[int], at: datetime) -> None:
        """Take."""
        got.append((inner, more, at.isoformat()))

    arguments = {"inner": '{"count": "3", "when": "2026-01-02", "secret": "s"}', "more": ["4", 5.0], "at": 0}
    model = strict_model([Reply(calls=[Call("take", arguments)]), "done"])
    result, events = await run(open_engine, model, [take])
    stored = result.messages[1].calls[0].arguments
    inner = {"count": 3, "when": "2026-01-02", "secret": "s"}
    assert stored == {"inner": inner, "more": [4, 5], "at": "1970-01-01T00:00:00Z"}
    shown = [event.part.complete for event in events if event.kind == "part" and event.part.complete is not None]
    assert [part["arguments"] for part in shown if part["type"] == "tool_call"] == [stored]
    assert got == [(Inner(**inner), [4, 5], "1970-01-01T00:00:00+00:00")]
