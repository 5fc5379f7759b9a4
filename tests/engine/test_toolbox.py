"""The toolbox: what a chat is offered, how a call is planned, which calls run at once, and what becomes of each."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import structlog
from msgspec.structs import replace

from support.runtimes import tool_context
from turnwise import (
    ClientTool,
    FatalToolError,
    FilePart,
    Settings,
    SettingsError,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
    tool,
)
from turnwise.engine.tools.toolbox import Toolbox, failed, idempotency_key
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.facts import Facts, Profile, StepFacts
from turnwise.states.messages import ToolCallPart
from turnwise.states.names import CallStatus, Executor, Stage
from turnwise.states.step_calls import StepCalls

NUMBERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


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


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Leave structlog as unconfigured as it was: other tests ask the standard library."""
    yield
    structlog.reset_defaults()


def box(*tools: Tool, **settings: Any) -> Toolbox:
    return Toolbox({known.name: known for known in tools or (add, pay, look)}, Settings(**settings))


def facts(*client_tools: ClientTool, calls: tuple[ToolCall, ...] = (), stage: Stage = Stage.acting) -> Facts:
    profile = Profile(created_at=datetime(2026, 1, 1, tzinfo=UTC), client_tools=client_tools)
    return Facts(chat_id="chat", profile=profile, step=StepFacts(number=4, stage=stage), calls=StepCalls(calls))


def context(**fields: Any) -> ToolContext:
    return tool_context(**{"chat_id": "chat", "call_id": "c", **fields})


def named(toolbox: Toolbox, *client_tools: ClientTool) -> list[tuple[str, str]]:
    return [(spec.name, spec.description) for spec in toolbox.offered(client_tools)]


@pytest.mark.parametrize("active", [None, ["look"], ["client:add"]], ids=str)
def test_the_tool_by_which_the_model_answers_is_the_agents_whatever_the_client_declares(
    active: list[str] | None,
) -> None:
    """An agent may take over a chat whose client has such a tool: the answer would go to the client instead."""
    toolbox = Toolbox({"add": add, "look": look}, Settings(active_tools=active), answer=add)
    assert ("add", "Add one.") in named(toolbox, THEIR_ADD)
    assert "add" not in [spec.name for spec in toolbox.offered((THEIR_ADD,), with_answer=False)]
    planned = toolbox.planned(part("add", n=1), facts(THEIR_ADD), 0)
    assert (planned.executor, planned.answers, planned.refusal) == (Executor.local, True, None)


@pytest.mark.parametrize("active", [["add"], ["client:add"], ["client:whatever"], [], None], ids=str)
def test_an_active_tool_is_a_local_one_or_may_be_any_of_a_client(active: list[str] | None) -> None:
    box(active_tools=active)


@pytest.mark.parametrize(
    ("tools", "active", "words"),
    [
        ((look, add), ["add", "ad"], ["'ad'", "add, look;", "client:NAME"]),
        ((add,), ["clientadd"], ["'clientadd'", "tools: add;"]),
    ],
)
def test_an_active_tool_that_there_is_not_is_refused_with_those_that_there_are(
    tools: tuple[Tool, ...], active: list[str], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as refused:
        box(*tools, active_tools=active)
    assert [word for word in ["active_tools", *words] if word not in str(refused.value)] == []
    with pytest.raises(SettingsError, match="tools: none;"):
        Toolbox({}, Settings(active_tools=active))


@pytest.mark.parametrize(
    ("active", "offered"),
    [
        (None, [("pay", "Pay."), ("look", "Look."), ("add", "Add at the client's."), ("ask_user", "Ask.")]),
        (["pay"], [("pay", "Pay.")]),
        (["add"], [("add", "Add one.")]),
        (["client:add"], [("add", "Add at the client's.")]),
        (["client:ask_user", "add"], [("add", "Add one."), ("ask_user", "Ask.")]),
        ([], []),
    ],
    ids=str,
)
def test_active_tools_are_offered_and_of_one_name_the_clients(
    active: list[str] | None, offered: list[tuple[str, str]]
) -> None:
    toolbox = box(active_tools=active)
    client_tools = (THEIR_ADD, ASK)
    assert named(toolbox, *client_tools) == offered
    for name in ("add", "pay", "look", "ask_user", "else"):
        found = toolbox.tool_for(name, client_tools)
        told = [(known.name, known.description) for known in [found] if known is not None]
        assert told == [known for known in offered if known[0] == name]


def test_what_a_model_does_with_an_offer_changes_no_other_offer() -> None:
    toolbox = box()
    for spec in toolbox.offered((ASK,)):
        schema: Any = spec.schema
        schema["properties"].clear()
    assert [spec.schema for spec in toolbox.offered((ASK,)) if spec.name in ("add", "ask_user")] == [
        add.schema,
        NUMBERS,
    ]


def part(name: str, call_id: str = "c", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name=name, arguments=arguments)


def test_a_local_call_is_planned_as_its_tool_was_declared() -> None:
    def kept(_context: ToolContext) -> None: ...

    saved = dataclasses.replace(pay, name="save", policy="auto", reconcile=kept)
    toolbox = box(add, saved)
    assert toolbox.planned(part("add", n=1), facts(), 2) == ToolCall(
        call_id="c",
        name="add",
        arguments={"n": 1},
        executor=Executor.local,
        index=2,
        step=4,
        crash="at_most_once",
    )
    planned = toolbox.planned(part("save", n=1), facts(), 0)
    assert (planned.crash, planned.stop_after, planned.reconciles) == ("at_least_once", True, True)
    unfit = toolbox.planned(part("add", n="x"), facts(), 0)
    assert (unfit.refusal, unfit.executor) == (None, Executor.local)  # it is checked as it runs


def test_a_call_that_needs_approval_and_a_call_of_the_clients_go_to_the_client() -> None:
    asked = box().planned(part("pay", n=1), facts(ASK), 0)
    assert (asked.executor, asked.approval, asked.refusal, asked.within) == (Executor.client, "asked", None, None)
    assert (asked.crash, asked.stop_after) == ("at_least_once", True)
    theirs = box().planned(part("ask_user", n=1), facts(ASK), 0)
    assert (theirs.executor, theirs.approval, theirs.refusal, theirs.within) == (
        Executor.client,
        "not_needed",
        None,
        50,
    )
    assert (theirs.crash, theirs.stop_after, theirs.reconciles) == ("at_most_once", False, False)
    assert box().planned(part("add", n="x"), facts(THEIR_ADD), 0).executor is Executor.client


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (part("ask_user", n="soon"), "Invalid arguments for ask_user"),
        (part("pay"), "Invalid arguments for pay"),
        (part("steal"), "There is no tool named 'steal'. Tools: add, ask_user, pay."),
    ],
    ids=lambda value: str(getattr(value, "name", "")),
)
def test_what_cannot_be_run_is_refused_before_anybody_is_asked(given: ToolCallPart, word: str) -> None:
    def kept(_context: ToolContext) -> None: ...

    toolbox = box(add, dataclasses.replace(pay, reconcile=kept))
    planned = toolbox.planned(given, facts(ASK), 0)
    assert word in (planned.refusal or "")
    assert (planned.executor, planned.approval, planned.crash, planned.reconciles) == (
        Executor.local,
        "not_needed",
        "at_least_once",
        False,
    )


def test_a_refusal_names_the_tools_that_are_offered_and_no_more_of_a_name_than_fits() -> None:
    name = "n" * 70
    refusal = box(active_tools=["look", "client:ask_user"]).planned(part(name), facts(ASK, THEIR_ADD), 0).refusal
    assert refusal == f"There is no tool named '{'n' * 64}'. Tools: ask_user, look."
    assert "Tools: none." in (Toolbox({}, Settings()).planned(part("add"), facts(), 0).refusal or "")


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
        ([call("look", "a"), call("look", "b", status=CallStatus.started), call("look", "c")], ["a"]),
        ([call("add", "a", status=CallStatus.succeeded), call("look", "b"), call("look", "c")], ["b"]),
    ],
    ids=lambda value: " ".join(getattr(one, "call_id", one) for one in value),
)
def test_one_call_starts_or_a_batch_that_is_safe(calls: list[ToolCall], first: list[str]) -> None:
    toolbox = box(parallel_cap=2)
    assert [known.call_id for known in toolbox.first_calls(facts(calls=tuple(calls)))] == first
    assert toolbox.first_calls(facts(calls=tuple(calls), stage=Stage.asking)) == ()


def test_where_the_settings_say_so_every_call_is_safe() -> None:
    calls = [call("add", "a"), call("gone", "b")]
    assert box(parallel_cap=3).width(calls) == 1
    assert box(parallel_cap=3, tools_parallel="all").width(calls) == 3


def test_a_call_may_take_as_long_as_its_tool_or_the_settings_say() -> None:
    toolbox = box(tool_timeout=9)
    assert [toolbox.timeout(call(name, "a")) for name in ("look", "add", "gone")] == [7, 9, 9]
    assert box(tool_timeout=None).timeout(CALL) is None


async def outcome_of(toolbox: Toolbox, given: ToolCall, **fields: Any) -> CallOutcome:
    return await toolbox.run(given, context(**fields), lambda: None)


async def ran(toolbox: Toolbox, given: ToolCall = CALL, **fields: Any) -> tuple[str, Any]:
    outcome = await outcome_of(toolbox, given, **fields)
    assert outcome.call_id == given.call_id
    assert outcome.is_error == (outcome.status is not CallStatus.succeeded)
    return outcome.status.value, outcome.output


async def test_a_call_runs_with_what_the_model_sent_and_the_context_where_it_is_asked_for() -> None:
    assert await ran(box()) == ("succeeded", 2)
    assert await ran(box(), call("look", "x", arguments={"where": "there"}), call_id="x") == ("succeeded", "x there")
    assert await ran(box(), call("pay", "p", approval="granted")) == ("succeeded", "paid 1")


async def test_a_call_that_was_approved_runs_even_if_its_tool_is_not_active_any_more() -> None:
    """A person has been asked and has said yes: that is not overruled by what the model is offered since."""
    hides = box(active_tools=["look"])
    assert await ran(hides, call("pay", "p", approval="granted")) == ("succeeded", "paid 1")
    assert await ran(hides, call("pay", "p", approval="granted", refusal="Erased.")) == ("failed", "Erased.")


@pytest.mark.parametrize(
    ("given", "settings", "word"),
    [
        (call("add", "a", refusal="It was refused."), {}, "It was refused."),
        (call("gone", "a"), {}, "There is no tool named 'gone'"),
        (call("add", "a"), {"active_tools": ["look"]}, "There is no tool named 'add'. Tools: look."),
        (call("pay", "a"), {}, "Not run: pay needs the user's approval"),
        (call("pay", "a", approval="asked"), {}, "Not run: pay needs the user's approval"),
        (call("add", "a", arguments={}), {}, "Invalid arguments for add"),
    ],
    ids=str,
)
async def test_what_must_not_run_is_answered_and_not_run(given: ToolCall, settings: dict[str, Any], word: str) -> None:
    status, told = await ran(box(**settings), given)
    assert status == "failed"
    assert word in told


async def test_what_a_tool_raises_is_a_result_and_the_observers_know_the_error() -> None:
    problem = OSError("no disk")

    async def fails() -> None:
        raise problem

    failing = tool(description="Fail.")(fails)
    outcome = await outcome_of(box(failing), call("fails", "a", arguments={}))
    assert (outcome.status, outcome.is_error, outcome.error) == (CallStatus.failed, True, problem)
    assert "no disk" in str(outcome.output)
    kinds = box(failing, describe_error=lambda error: f"a {type(error).__name__}")
    assert await ran(kinds, call("fails", "a", arguments={})) == ("failed", "a OSError")


@pytest.mark.parametrize("problem", [OSError("no disk"), SystemExit(3)])
async def test_the_log_tells_which_call_failed_and_what_its_tool_raised(problem: BaseException) -> None:
    async def fails() -> None:
        raise problem

    with structlog.testing.capture_logs() as logs:
        outcome = await outcome_of(box(tool(description="Fail.")(fails)), call("fails", "a", arguments={}))
    assert (outcome.status, outcome.error) == (CallStatus.failed, problem)
    (line,) = logs
    assert (line["event"], line["tool"], line["call_id"], line["exc_info"]) == ("tool_failed", "fails", "a", problem)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_may_end_the_chat_and_only_by_the_error_for_it(is_async: bool) -> None:  # noqa: FBT001
    async def ends() -> None:
        raise FatalToolError("broken")

    def blocks() -> None:
        raise FatalToolError("broken")

    ending = tool(name="ends", description="End.")(ends if is_async else blocks)
    with pytest.raises(FatalToolError, match="broken"):
        await outcome_of(box(ending), call("ends", "a", arguments={}))


def group(*errors: BaseException) -> BaseExceptionGroup:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", errors)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (group(ToolFailed("no such host")), "no such host"),
        (group(group(ValueError("odd"))), "ValueError: odd"),
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
async def test_a_group_of_one_error_means_that_error(raised: BaseException, told: Any) -> None:
    """It is how an error leaves a task group."""

    async def fails() -> None:
        raise raised

    failing, given = box(tool(description="Fail.")(fails)), call("fails", "a", arguments={})
    if told is FatalToolError:
        with pytest.raises(FatalToolError, match=r"^broken$"):
            await outcome_of(failing, given)
    else:
        assert await ran(failing, given) == ("failed", told)


async def test_a_blocking_tool_runs_in_a_thread_of_its_own_and_may_return_what_is_awaited() -> None:
    async def later(value: int) -> int:
        await asyncio.sleep(0)
        return value

    def block(n: int) -> Any:
        """Block."""
        threads.append(threading.get_ident())
        return later(n) if n else n

    threads: list[int] = []
    toolbox = box(tool(block))
    assert await ran(toolbox, call("block", "a", arguments={"n": 5})) == ("succeeded", 5)
    assert await ran(toolbox, call("block", "a", arguments={"n": 0})) == ("succeeded", 0)
    assert threading.get_ident() not in threads
    status, _ = await ran(toolbox, call("block", "a", arguments={"n": 5}), cancelled=True)
    assert (status, len(threads)) == ("failed", 2)  # given up while it waited for a thread


async def test_what_a_blocking_tool_yields_is_read_in_its_thread() -> None:
    """It may take its time, as the rows of a database do: no other chat waits for it."""

    def rows() -> Iterator[str]:
        threads.append(threading.get_ident())
        yield "a"

    def all_of_it() -> Any:
        return rows()

    def in_part() -> ToolOutput:
        return ToolOutput({"rows": cast("Any", rows())})

    threads: list[int] = []
    for function, output in ((all_of_it, ["a"]), (in_part, {"rows": ["a"]})):
        give = tool(name="give", description="Give.")(function)
        assert await ran(box(give), call("give", "a", arguments={})) == ("succeeded", output)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_tool_that_yields_without_an_end_has_failed() -> None:
    def blocking() -> Any:
        return itertools.count()

    async def deep() -> Any:
        return {"n": [itertools.count()]}

    async def in_a_dataclass() -> Any:
        return dataclasses.make_dataclass("Page", ["rows"])(itertools.count())

    for function in (blocking, deep, in_a_dataclass):
        give = tool(name="give", description="Give.")(function)
        status, told = await ran(box(give), call("give", "a", arguments={}))
        problem = "it must yield fewer than 100,000 items"
        assert (status, told) == ("failed", f"What the tool returned cannot be kept: {problem}.")


@pytest.mark.parametrize(
    ("sizes", "kept", "note"),
    [
        ([5, 5], [5, 5], ""),
        ([5, 6], [5], "[left out, over the limit of 10 bytes: f1 (6 bytes)]"),
        ([11, 10], [10], "[left out, over the limit of 10 bytes: f0 (11 bytes)]"),
        ([4, 20, 6, 1], [4, 6], "[left out, over the limit of 10 bytes: f1 (20 bytes), f3 (1 bytes)]"),
    ],
    ids=str,
)
async def test_files_that_fit_together_are_kept_and_the_others_named(
    sizes: list[int], kept: list[int], note: str
) -> None:
    files = tuple(FilePart.from_bytes(b"x" * size, "text/plain", name=f"f{at}") for at, size in enumerate(sizes))
    for output, told in (("done", "done"), ({"n": [1]}, '{"n":[1]}')):
        give = tool(name="give", description="Give.")(lambda: ToolOutput(output, files))  # noqa: B023 - it runs before the next one
        outcome = await outcome_of(box(give, attachment_limit_bytes=10), call("give", "a", arguments={}))
        assert [len(b64decode(file.data or "")) for file in outcome.attachments] == kept
        assert outcome.output == (f"{told}\n{note}" if note else output)


async def test_a_file_without_a_name_is_told_by_its_kind_and_one_without_bytes_has_no_size() -> None:
    files = (
        FilePart.from_bytes(b"x" * 3, "image/png"),
        FilePart(media_type="image/png", url="https://a.example/b.png"),
        FilePart(media_type="image/gif", url="data:,four"),
    )
    give = tool(name="give", description="Give.")(lambda: ToolOutput("done", files))
    outcome = await outcome_of(box(give, attachment_limit_bytes=2), call("give", "a", arguments={}))
    assert outcome.attachments == files[1:2]
    assert "image/png (3 bytes), image/gif (4 bytes)" in str(outcome.output)


async def test_what_no_json_can_keep_is_a_failure() -> None:
    give = tool(name="give", description="Give.")(lambda: {"n": object()})
    status, told = await ran(box(give), call("give", "a", arguments={}))
    assert status == "failed"
    assert "cannot be kept" in told


@pytest.mark.parametrize("crash", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    ("found", "decided"),
    [
        ("paid", ("succeeded", "paid")),
        (ToolOutput("paid"), ("succeeded", "paid")),
        (False, ("succeeded", False)),
        (None, None),
        (object(), None),
        (ToolFailed("no"), None),
        (ValueError("no"), None),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_after_a_crash_the_tool_is_asked_and_where_it_cannot_tell_the_policy_decides(
    crash: Any,
    found: Any,
    decided: Any,
    is_async: bool,  # noqa: FBT001
) -> None:
    def blocking(asked: ToolContext) -> Any:
        contexts.append(asked)
        if isinstance(found, Exception):
            raise found
        return found

    async def waiting(asked: ToolContext) -> Any:
        return blocking(asked)

    contexts: list[ToolContext] = []
    known = dataclasses.replace(add, reconcile=waiting if is_async else blocking)
    cut_off, mine = replace(CALL, crash=crash, status=CallStatus.started), context()
    with structlog.testing.capture_logs() as logs:
        outcome = await box(known).after_crash(cut_off, mine)
    assert contexts == [mine]
    assert [(line["event"], line["tool"], line["call_id"], line["exc_info"]) for line in logs] == (
        [("reconcile_failed", "add", "c", found)] if isinstance(found, Exception) else []
    )
    if decided is None:
        assert (outcome is None) == (crash == "at_least_once")
        assert outcome is None or (outcome.status, outcome.is_error) == (CallStatus.unknown, True)
        return
    assert outcome is not None
    assert (outcome.status.value, outcome.output) == decided


@pytest.mark.parametrize("crash", ["at_least_once", "at_most_once"])
async def test_a_call_whose_arguments_were_erased_after_its_start_is_asked_about_and_not_run_again(crash: Any) -> None:
    erased = replace(CALL, crash=crash, status=CallStatus.started).blanked(arguments=True, answer=False)
    outcomes = []
    for found in ("it was done", None):
        asked = dataclasses.replace(add, reconcile=lambda _context, found=found: found)
        outcomes.append(await box(asked).after_crash(erased, context()))
    outcomes.append(await box(add).after_crash(erased, context()))
    assert [outcome and outcome.status for outcome in outcomes] == ["succeeded", "unknown", "unknown"]
    before = replace(CALL, crash="at_least_once").blanked(arguments=True, answer=False)
    assert await box(asked).after_crash(replace(before, status=CallStatus.started), context()) is None  # it is refused


@pytest.mark.parametrize("given", [call("gone", "a"), call("add", "a"), call("pay", "a", refusal="Refused.")], ids=str)
async def test_nobody_is_asked_about_a_call_that_nobody_ran(given: ToolCall) -> None:
    asked = dataclasses.replace(pay, reconcile=lambda _context: "it was asked")
    with structlog.testing.capture_logs() as logs:
        outcome = await box(add, asked).after_crash(given, context())
    assert outcome is not None
    assert (outcome.status, logs) == (CallStatus.unknown, [])


async def test_a_tool_that_was_cancelled_with_its_task_failed_at_nothing() -> None:
    async def told(error: BaseException) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            box().failure(CALL, error)
            raise

    async def logged(error: BaseException) -> int:
        with structlog.testing.capture_logs() as logs:
            task = asyncio.create_task(told(error))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        return len(logs)

    with structlog.testing.capture_logs() as logs:
        box().failure(CALL, asyncio.CancelledError())
        box().failure(CALL, OSError())
    assert [log["event"] for log in logs] == ["tool_failed", "tool_failed"]
    assert (await logged(asyncio.CancelledError()), await logged(OSError())) == (0, 1)


def test_a_failure_is_told_in_text_that_a_store_can_keep_and_a_key_is_of_one_call_of_one_chat() -> None:
    outcome = failed(CALL, "half \ud800 a character", CallStatus.timed_out)
    assert (outcome.call_id, outcome.status, outcome.is_error) == ("c", CallStatus.timed_out, True)
    assert json.dumps(outcome.output, ensure_ascii=False).encode()
    assert failed(CALL, "no").status is CallStatus.failed
    keys = {idempotency_key(chat, call("add", one)) for chat in ("a", "b") for one in ("c", "d")}
    assert len(keys) == 4
    assert idempotency_key("a", CALL) == idempotency_key("a", replace(CALL, status=CallStatus.started))
