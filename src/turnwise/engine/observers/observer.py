"""Observers: they watch an engine, for metrics, traces or a log of their own.

An observer must not change what it is given. If it raises, that is logged, and the chat goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutinefunction
from operator import methodcaller
from time import perf_counter
from typing import Final, Literal, TypeVar

import msgspec

from turnwise.engine.config.results import Budget
from turnwise.foreign import guarded
from turnwise.logger import logger
from turnwise.providers.protocol import Model, ModelReply, ModelRequest
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.decide import Decision
from turnwise.states.errors import FatalToolError, SettingsError, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.messages import length_of
from turnwise.states.model_errors import INTERNAL, NOTHING_FOLDED, ModelError
from turnwise.states.values.plain import type_name, well_formed


class ModelCall(msgspec.Struct, kw_only=True):
    """One call of a model. Fields with a default are filled in at its end."""

    provider: str
    model: str
    request: ModelRequest
    trace: str | None = None
    """What `turn_trace` gave for the turn, in whatever process."""
    reply: ModelReply | None = None
    """The reply, as far as it came."""
    error: Exception | None = None
    first_part_after: float | None = None
    """Seconds until the first part of a streamed reply."""
    seconds: float = 0.0

    @property
    def characters(self) -> int:
        """About how many characters the prompt has, system prompt included."""
        spoken = sum(length_of(part) for message in self.request.messages for part in message.parts)
        return spoken + len(self.request.system or "")

    @property
    def reminders(self) -> int:
        """How many reminders the request holds."""
        return len(self.request.reminders)

    @property
    def outcome(self) -> str:
        """`succeeded`, `cancelled`, or the kind of the error."""
        if self.error is not None:
            return _error_kind(self.error)
        finished = self.reply is not None and self.reply.finish.stop_reason is not None
        return "succeeded" if finished else "cancelled"


class ToolRun(msgspec.Struct, kw_only=True):
    """One run of a local tool. Fields with a default are filled in at its end."""

    chat_id: str
    call: ToolCall
    known: bool
    """Whether there is a tool of that name: a model may invent one."""
    trace: str | None = None
    """What `turn_trace` gave for the turn, in whatever process."""
    result: CallOutcome | FatalToolError | None = None
    """How it ended; `None` if it was cancelled."""
    error: BaseException | None = None
    """The error that the tool raised."""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """`succeeded`, `failed`, `timed_out`, `cancelled`, or `fatal`."""
        if isinstance(self.result, FatalToolError):
            return "fatal"
        return self.result.status.value if self.result is not None else "cancelled"


class CompactionRun(msgspec.Struct, kw_only=True):
    """One attempt to fold a history. Fields with a default are filled in at its end."""

    chat_id: str
    step: int
    attempt: int
    strategy: Literal["summary", "custom"]
    """Who folds: a model that writes a summary, or `CompactionPolicy.strategy`."""
    messages_before: int
    """The number of messages that the model saw before."""
    trace: str | None = None
    """What `turn_trace` gave for the turn, in whatever process."""
    messages_after: int | None = None
    """The number of messages that it sees from now on."""
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """`succeeded`, `cancelled`, `declined` if nothing was to be folded, or the kind of the error."""
        if self.error is not None:
            kind = _error_kind(self.error)
            return "declined" if kind == NOTHING_FOLDED else kind
        return "succeeded" if self.messages_after is not None else "cancelled"


class ChatFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all chats of the store. Archived chats count in `archived` alone."""

    states: Mapping[str, int]
    """How many chats are in each state."""
    archived: int
    oldest_actions: Mapping[str, float]
    """For how many seconds a chat in `requires_action` waits at most, by whose action it needs: `operator` or `owner`
    to allow a call, `client`, or `subagents`."""
    oldest_work: Mapping[str, float]
    """For how many seconds a chat that a worker holds is in its state at most, by state."""


def _error_kind(error: Exception) -> str:
    return error.kind if isinstance(error, ModelError) else INTERNAL


Ended = Callable[[], object]


class Observer:
    """Watches an engine: override the methods you need. They are called from the event loop, so be quick.

    They are plain functions: an engine refuses an observer whose method is a coroutine, which nothing would await.
    """

    def turn_trace(self, chat_id: str) -> str | None:  # noqa: ARG002 - for those who override it
        """Return a text to store with a turn that is about to begin, so that any process can continue its trace.

        It comes back with every model call and tool run of the turn, and in `decision.ended` when the turn ends.
        """
        return None

    def transitioned(self, decision: Decision) -> None:
        """Receive a committed transition; those of a chat arrive in order."""

    def running(self, chats: int) -> None:
        """Receive the number of chats that run in this engine."""

    def waiting(self, seconds: Mapping[str, float]) -> None:
        """Receive, with every sweep, how long the oldest waiting chat of each agent has waited for a worker.

        The times are those of the whole store. If one grows, no worker runs that agent or has its tools, or there are
        too few workers.
        """

    def budgets(self, budgets: Sequence[Budget]) -> None:
        """Receive, with every sweep, the first thousand budgets of the store."""

    def measured(self, figures: ChatFigures) -> None:
        """Receive figures of all chats of the store, every 15 seconds or more rarely."""

    def refused(self, command: str, error: TurnwiseError) -> None:
        """Receive an error that the method `command` of the engine raised."""

    def model_called(self, call: ModelCall) -> Ended | None:  # noqa: ARG002 - for those who override it
        """A model call begins; return a function to call at its end, in the same context."""
        return None

    def compaction_started(self, run: CompactionRun) -> Ended | None:  # noqa: ARG002 - as above
        """An attempt to compact begins; return a function to call at its end.

        The model calls of a summary come in between.
        """
        return None

    def tool_started(self, run: ToolRun) -> Ended | None:  # noqa: ARG002 - as above
        """A tool begins to run; return a function to call at its end, in the same context."""
        return None


_METHODS: Final = tuple(name for name in vars(Observer) if not name.startswith("_"))
Watched = TypeVar("Watched", ModelCall, CompactionRun, ToolRun)


class Observers(msgspec.Struct, frozen=True):
    """The observers of an engine. Without any, nothing is created or measured."""

    every: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        """Refuse coroutine methods, which nothing would await."""
        for observer in self.every:
            for name in _METHODS:
                if iscoroutinefunction(getattr(type(observer), name)):
                    method = f"{type_name(observer)}.{name}"
                    raise SettingsError(
                        "observers", f"{method} must be no coroutine: observers are called, not awaited"
                    )

    def transitioned(self, decisions: Sequence[Decision]) -> None:
        for observer in self.every:
            with _harmless(observer):
                for decision in decisions:
                    observer.transitioned(decision)

    def running(self, chats: int) -> None:
        self._report(methodcaller("running", chats))

    def waiting(self, seconds: Mapping[str, float]) -> None:
        self._report(methodcaller("waiting", seconds))

    def budgets(self, budgets: Sequence[Budget]) -> None:
        self._report(methodcaller("budgets", budgets))

    def measured(self, figures: ChatFigures) -> None:
        self._report(methodcaller("measured", figures))

    def refused(self, command: str, error: TurnwiseError) -> None:
        self._report(methodcaller("refused", command, error))

    def _report(self, call: Callable[[Observer], object]) -> None:
        for observer in self.every:
            with _harmless(observer):
                call(observer)

    def turn_trace(self, chat_id: str) -> str | None:
        """Return the trace of the first observer that traces, to store it with a turn."""
        for observer in self.every:
            with _harmless(observer):
                trace = observer.turn_trace(chat_id)
                if trace is not None:
                    if not isinstance(trace, str):
                        raise TypeError(f"turn_trace must return text or None; it returned {type_name(trace)}")
                    return well_formed(trace)
        return None

    def model_call(
        self, model: Model, request: ModelRequest, *, trace: str | None
    ) -> AbstractContextManager[ModelCall | None]:
        """Report the model call made inside; it yields an object that takes the reply, `None` without observers."""
        if not self.every:
            return nullcontext()
        call = ModelCall(provider=model.provider, model=model.name, request=request, trace=trace)
        return self._during(call, methodcaller("model_called", call))

    def compaction(
        self, facts: Facts, *, by_strategy: bool, messages: int
    ) -> AbstractContextManager[CompactionRun | None]:
        """Report the folding done inside; it yields an object that takes the result, `None` without observers."""
        if not self.every:
            return nullcontext()
        run = CompactionRun(
            chat_id=facts.chat_id,
            step=facts.step.number,
            attempt=facts.step.attempt,
            strategy="custom" if by_strategy else "summary",
            messages_before=messages,
            trace=facts.turn.trace,
        )
        return self._during(run, methodcaller("compaction_started", run))

    def tool_run(
        self, chat_id: str, call: ToolCall, *, known: bool, trace: str | None
    ) -> AbstractContextManager[ToolRun | None]:
        """Report the tool run made inside; it yields an object that takes the result, `None` without observers."""
        if not self.every:
            return nullcontext()
        run = ToolRun(chat_id=chat_id, call=call, known=known, trace=trace)
        return self._during(run, methodcaller("tool_started", run))

    @contextmanager
    def _during(self, watched: Watched, report: Callable[[Observer], Ended | None]) -> Iterator[Watched]:
        started: list[tuple[Observer, Ended]] = []
        for observer in self.every:
            with _harmless(observer):
                ended = report(observer)
                if ended is not None:
                    started.append((observer, ended))
        began = perf_counter()
        try:
            yield watched
        except Exception as error:
            if not isinstance(watched, ToolRun):  # it has its result
                watched.error = error
            raise
        finally:
            watched.seconds = perf_counter() - began
            for observer, ended in reversed(started):
                with _harmless(observer):
                    ended()


@contextmanager
def _harmless(observer: Observer) -> Iterator[None]:
    try:
        with guarded():
            yield
    except Exception:  # noqa: BLE001 - an observer's error must not reach the chat
        logger.exception("observer_failed", observer=type_name(observer))
