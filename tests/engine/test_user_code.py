"""Any error of user code fails that one call: the engine lives, and every other chat ends its turn."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pydantic
import pytest
from anyio.lowlevel import checkpoint

from turnwise import (
    Agent,
    Chat,
    ChatState,
    CompactionPolicy,
    Engine,
    LoopState,
    ModelReply,
    ModelRequest,
    RequestContext,
    RetryPolicy,
    Settings,
    tool,
)
from turnwise.engine.isolation import user_code
from turnwise.engine.isolation.user_code import UserCalls
from turnwise.engine.observers.observer import Observer
from turnwise.foreign import UserCodeError, described, guarded, only_error_in
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ChatNotFound, StaleLease, StoreError
from turnwise.states.values.plain import type_name


class Mute(Exception):
    """An exception whose `str` raises."""

    def __str__(self) -> str:
        raise SystemExit("no text either")

    __repr__ = __str__


Fault = Callable[[], BaseException]


async def inner_task_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def strike(fault: Fault) -> None:
    """Raise the fault as user code would: a `CancelledError` comes from an inner task."""
    error = fault()
    if type(error) is asyncio.CancelledError:
        await inner_task_is_cancelled()
    raise error


RAISED: dict[str, Fault] = {
    "ValueError": lambda: ValueError("v"),
    "Mute": Mute,
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(2),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("many", [SystemExit(1), asyncio.CancelledError()]),
    "StopIteration": StopIteration,
}


OF_TURNWISE: dict[str, Fault] = {
    "StoreError": lambda: StoreError("the cache is away", passing=True),
    "StaleLease": lambda: StaleLease("c", 1, None),
    "ChatNotFound": lambda: ChatNotFound("c"),
}
"""Errors of turnwise itself, since user code may use a store or an engine."""
FAULTS: dict[str, Fault] = RAISED | OF_TURNWISE
BAD = "bad"
"""The message of a chat in which components fail."""


def is_bad(request: ModelRequest) -> bool:
    return any(message.text == BAD for message in request.messages)


class RaisingModel(ScriptedModel):
    """A model that raises in bad chats: at once, after a part, or in its summary."""

    def __init__(self, fault: Fault, where: str) -> None:
        super().__init__(lambda _: Reply("fine", usage=(90, 1) if where in ("generate", "strategy") else None))
        self.fault, self.where = fault, where

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        if is_bad(request) and self.where == "stream":
            raise self.fault()
        count = 0
        async for part in super().stream(request):
            yield part
            count += 1
            if is_bad(request) and self.where == "midway":
                await strike(self.fault)

    async def generate(self, request: ModelRequest) -> ModelReply:
        if is_bad(request) and self.where == "generate":
            await strike(self.fault)
        return await super().generate(request)


def raise_if_bad(text: str, fault: Fault) -> None:
    if text == BAD:
        raise fault()


def last_words(messages: Sequence[Any]) -> str:
    return next((message.text for message in messages if message.role == "user" and not message.synthetic), "")


def is_bad_turn(messages: Sequence[Any], fault: Fault) -> bool:
    raise_if_bad(last_words(messages), fault)
    return False


def with_tool(fault: Fault, *, blocks: bool = False) -> dict[str, Any]:
    async def work(what: str) -> str:
        """Work."""
        if what == BAD:
            await strike(fault)
        return "done"

    def blocking(what: str) -> str:
        """Work in a thread."""
        raise_if_bad(what, fault)
        return "done"

    return {"model": a_caller(), "tools": [tool(name="work")(blocking if blocks else work)]}


def a_caller() -> ScriptedModel:
    """Return a model that calls the tool `work` with the text it gets, and says "fine"."""

    def answer(request: ModelRequest) -> Reply:
        if request.messages[-1].role == "tool":
            return Reply("fine")
        return Reply(calls=[Call("work", {"what": request.messages[-1].text})], usage=(90, 1))

    return ScriptedModel(answer)


@tool
async def work(what: str) -> str:
    """Work, and raise nothing."""
    return what


def with_type(fault: Fault) -> dict[str, Any]:
    def read(what: str) -> str:
        raise_if_bad(what, fault)
        return what

    async def work(what: str) -> str:
        """Work."""
        return what

    work.__annotations__["what"] = Annotated[str, pydantic.AfterValidator(read)]
    return {"model": a_caller(), "tools": [tool(work)]}


def with_observer(fault: Fault, *, at_the_end: bool) -> dict[str, Any]:
    def raising(*_: Any) -> Any:
        raise fault()

    def ending(*_: Any) -> Any:
        return raising

    hooks = [name for name in vars(Observer) if not name.startswith("_")]
    methods = {"model_called", "tool_started", "compaction_started"} if at_the_end else hooks
    observer = type("Raising", (Observer,), dict.fromkeys(methods, ending if at_the_end else raising))()
    return {"model": a_caller(), "tools": [work], "observers": [observer]}


def with_deps(fault: Fault, *, at_the_end: bool) -> dict[str, Any]:
    @asynccontextmanager
    async def deps(chat: Chat) -> AsyncIterator[str]:
        if chat.title == BAD and not at_the_end:
            await strike(fault)
        yield "deps"
        if chat.title == BAD:
            await strike(fault)

    return {"model": a_caller(), "tools": [work], "deps": deps}


def with_system(fault: Fault) -> dict[str, Any]:
    async def system(chat: Chat) -> str:
        if chat.title == BAD:
            await strike(fault)
        return "You help."

    return {"model": None, "agents": [Agent("default", ScriptedModel(lambda _: "fine"), system=system)]}


def with_reminder(fault: Fault) -> dict[str, Any]:
    bad: set[str] = set()

    def note(messages: Sequence[Any], context: RequestContext) -> None:
        if last_words(messages) == BAD:
            bad.add(context.chat_id)

    def remind(state: LoopState) -> None:
        if state.chat_id in bad:
            raise fault()

    return {"prepare_messages": note, "reminders": [remind]}


def with_words(fault: Fault, options: dict[str, Any]) -> dict[str, Any]:
    def describe(error: BaseException) -> str:
        raise fault() from error

    return {**options, "describe_error": describe}


COMPONENTS: dict[str, Callable[[Fault], dict[str, Any]]] = {
    **dict.fromkeys(("stream", "midway", "generate"), lambda _: {}),
    "system": with_system,
    "deps": lambda fault: with_deps(fault, at_the_end=False),
    "deps that close": lambda fault: with_deps(fault, at_the_end=True),
    "tool": with_tool,
    "blocking tool": lambda fault: with_tool(fault, blocks=True),
    "type": with_type,
    "describe_error of a tool": lambda fault: with_words(fault, with_tool(ValueError)),
    "prepare_messages": lambda fault: {"prepare_messages": lambda messages: raise_if_bad(last_words(messages), fault)},
    "reminder": with_reminder,
    "strategy": lambda fault: {"strategy": lambda messages, _: raise_if_bad(last_words(messages), fault)},
    "should_compact": lambda fault: {"should_compact": lambda messages, _: is_bad_turn(messages, fault)},
    "observer": lambda fault: with_observer(fault, at_the_end=False),
    "observer of what ends": lambda fault: with_observer(fault, at_the_end=True),
}
"""Options of an engine in which one component raises, in bad chats."""


def parts(where: str, fault: Fault) -> dict[str, Any]:
    return {"model": RaisingModel(fault, where), **COMPONENTS[where](fault)}


HARMLESS = {"observer", "observer of what ends", "strategy", "generate", "should_compact", "deps that close"}
"""Components whose failure is logged, or fails a compaction: the turn continues."""
ANSWERED = {"tool", "blocking tool", "type", "describe_error of a tool"}
"""Components whose failure becomes a result for the model, which continues."""


PLAIN = ("CancelledError", "SystemExit", "StoreError")


def in_tiers(faults: dict[str, Fault], *plain: str) -> list[Any]:
    """Return the faults as parameters; those not named in `plain` are for `make prove` only."""
    return [pytest.param(name, marks=() if name in plain else pytest.mark.deep) for name in faults]


@pytest.mark.parametrize("fault", in_tiers(FAULTS, *PLAIN))
@pytest.mark.parametrize("where", COMPONENTS)
async def test_component_failure_stays_in_its_call(where: str, fault: str) -> None:
    raised_errors: list[BaseException] = []

    def noted() -> BaseException:
        raised_errors.append(FAULTS[fault]())
        return raised_errors[-1]

    options = parts(where, noted)
    policy = CompactionPolicy(
        context_limit=None if where in ANSWERED else 100,
        strategy=options.pop("strategy", None),
        should_compact=options.pop("should_compact", None),
    )
    own = {"describe_error": options.pop("describe_error")} if "describe_error" in options else {}
    settings = Settings(compaction=policy, retry=RetryPolicy(attempts=1), coalesce=0, shutdown_grace=0, **own)
    async with Engine("sqlite://", settings=settings, **options) as engine:
        bad, good = await engine.create_chat(title=BAD), await engine.create_chat()
        await engine.send_message(bad.id, BAD)
        await engine.send_message(good.id, "good")
        ended = await engine.wait(bad.id, timeout=60)
        assert (await engine.wait(good.id, timeout=60)).stop_reason == "end_turn"
        if where in HARMLESS | ANSWERED:
            assert (ended.state, ended.stop_reason) == (ChatState.waiting, "end_turn")
        else:
            assert ended.state is ChatState.error
            assert ended.last_error is not None
            assert ended.last_error.kind in ("internal", "deps", "tool")
            raised = type_name(only_error_in(FAULTS[fault]()))
            last_error = (await engine.explain(bad.id)).last_error
            assert raised in f"{last_error.detail} {last_error.message}" or "Stop" in raised
            assert "has no attribute" not in last_error.detail
        if where in ANSWERED:
            (answer,) = [m.result for m in await engine.messages(bad.id) if m.result is not None]
            assert answer.is_error
            cut_off = where in ("tool", "blocking tool") and isinstance(FAULTS[fault](), asyncio.CancelledError)
            assert answer.outcome == ("unknown" if cut_off else "failed")
        assert (await engine.verify(bad.id)).ok
        assert (await engine.ask(good.id, "still there?", timeout=60)).text == "fine"
    assert raised_errors


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def caught(strike: Callable[[], object]) -> BaseException:
    """Return the error that leaves user code with this behaviour."""
    try:
        with guarded():
            strike()
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        return error
    raise AssertionError


@pytest.mark.usefixtures("default_ctrl_c")
def test_signals_end_the_program_inside_user_code() -> None:
    """A signal handler runs on top of any frame; its exception is not the code's."""

    def exits(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGUSR1, exits)
    try:
        assert isinstance(caught(lambda: signal.raise_signal(signal.SIGINT)), KeyboardInterrupt)
        assert isinstance(caught(lambda: signal.raise_signal(signal.SIGUSR1)), SystemExit)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("exit_error", [SystemExit, KeyboardInterrupt])
def test_exit_in_user_code_is_an_error_of_the_code(exit_error: type[BaseException]) -> None:
    """`asyncio.run` handles Ctrl-C itself: a `KeyboardInterrupt` in user code is the code's own."""

    def fail() -> None:
        raise exit_error

    async def run() -> BaseException:
        return caught(fail)

    assert isinstance(asyncio.run(run()), UserCodeError)


def test_every_error_can_be_described() -> None:
    assert described(Mute()).startswith("Mute")
    assert described(UserCodeError(SystemExit(3))) == "SystemExit: 3"
    assert described(ValueError()) == "ValueError"
    assert described(ValueError("half \ud800")) == "ValueError: half \ufffd"


async def test_code_abandoned_before_its_start_never_runs() -> None:
    calls, runs = UserCalls(), []

    async def code() -> None:
        runs.append(1)

    call = calls.start(code, "code")
    call.abandon()
    call.abandon()
    await calls.close()
    assert (runs, call.task.done()) == ([], True)


async def test_code_that_ignores_cancellation_keeps_no_core_busy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library repeats the cancellation in every round of the event loop, which has to end."""
    monkeypatch.setattr(user_code, "UNRESPONSIVE_AFTER", 0)
    calls, end = UserCalls(), anyio.Event()
    count = 0

    async def unresponsive() -> None:
        nonlocal count
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                count += 1

    call = calls.start(unresponsive, "unresponsive")
    await anyio.wait_all_tasks_blocked()
    call.abandon()
    while "user_code_ignores_cancellation" not in caplog.text:
        await checkpoint()
    before = count
    for _ in range(200):
        await checkpoint()
    more = count - before
    end.set()
    await calls.close()
    assert more <= 5


async def test_cancelling_in_thread_returns_at_once() -> None:
    """For asyncio's own cancellation, which anyio's cancel scopes do not see."""
    entered, leave, noticed = anyio.Event(), threading.Event(), threading.Event()

    def work() -> None:
        anyio.from_thread.run_sync(entered.set)
        leave.wait(60)
        try:
            anyio.from_thread.check_cancelled()
        except asyncio.CancelledError:
            noticed.set()

    waiting = asyncio.create_task(user_code.in_thread(work))
    await entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    leave.set()
    assert await anyio.to_thread.run_sync(noticed.wait, 60)
