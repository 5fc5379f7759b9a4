"""Hooks: functions with which a service changes single requests. They never change the stored history."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeVar

import msgspec

from turnwise.providers.protocol import SentReminder, Severity
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, ToolCallPart
from turnwise.states.names import Audience, Purpose
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.values.plain import type_name
from turnwise.states.values.values import CheckedCall, Value

T = TypeVar("T")

WINDOW = 5
"""How many of the last calls a reminder producer sees."""


class PastCall(Value, frozen=True):
    """A call that has its result."""

    name: str
    succeeded: bool
    call_id: str = ""
    arguments: Mapping[str, Any] = {}
    output: Any = None
    """The result that the model saw."""


class LoopState(Value, frozen=True, kw_only=True):
    """The state of the turn's loop, for reminder producers."""

    chat_id: str
    step: int
    """The next step of the turn, from 1."""
    call_count: int
    """Calls answered in this turn, those before a compaction too."""
    last_call: PastCall | None
    last_calls: tuple[PastCall, ...]
    """The last calls of the turn, at most five, oldest first."""
    compactions: int
    """Compactions committed in this chat so far."""
    usage: Usage = NO_USAGE
    """The usage of the turn so far."""
    context_tokens: int | None = None
    """How full the context was at the last step; `None` if unknown, as right after a compaction."""
    context_limit: int | None = None
    folded: bool = False
    """Whether the model sees a compacted history. An edit or `clear_context` may end that."""


class ReminderText(Value, metaclass=CheckedCall, frozen=True):
    """A reminder that says how urgent it is. The model sees the text alone; metrics count the severity.

    Raises:
        InvalidArgument: the severity is none.
    """

    text: str
    severity: Severity = "info"


OneReminder = ReminderText | str
Reminded = Sequence[OneReminder] | OneReminder | None
"""Reminders for one request, several or one; each becomes a system message of that request only."""

Reminder = Callable[[LoopState], Reminded | Awaitable[Reminded]]
"""Produces reminders."""


class RequestContext(Value, frozen=True, kw_only=True):
    """The purpose of a request, for a hook that prepares its messages."""

    chat_id: str
    owner: str | None
    metadata: Mapping[str, Any]
    purpose: Purpose
    """`"step"` for an answer, `"summary"` for a compaction, `"title"` for the name of a chat."""
    step: int


Prepared = list[Message] | None
"""Messages for one request; `None` means: no change."""

PrepareMessages = (
    Callable[[list[Message]], Prepared | Awaitable[Prepared]]
    | Callable[[list[Message], RequestContext], Prepared | Awaitable[Prepared]]
)
"""Replaces the messages of one request. A hook with a second parameter gets the purpose of the request."""


class Hooks(msgspec.Struct, frozen=True):
    """The hooks of an agent; those of an engine are for agents without any."""

    reminders: tuple[Reminder, ...] = ()
    prepare_messages: PrepareMessages | None = None


NO_HOOKS: Final = Hooks()


def history_was_compacted(state: LoopState) -> Sequence[str]:
    """Remind the model that its history was compacted.

    This reminder comes first, wherever it stands among the reminders.
    """
    if not state.folded:
        return ()
    return (
        f"The conversation so far was compacted {state.compactions} time(s); the summary stands for what is not shown.",
    )


async def collect_reminders(reminders: Sequence[Reminder], state: LoopState) -> list[tuple[str, SentReminder]]:
    """Return the texts of the reminders, `history_was_compacted` first."""
    texts: list[tuple[str, SentReminder]] = []
    for produce in sorted(reminders, key=lambda one: one is not history_was_compacted):
        name = getattr(getattr(produce, "func", produce), "__qualname__", type_name(produce))
        answer = produce(state)
        produced: Any = await answer if inspect.isawaitable(answer) else answer
        if produced is None or isinstance(produced, ReminderText | str):
            produced = [produced]
        right = "a reminder has to return text, texts or None"
        for each in _check_list(ReminderText | str | None, produced, right):
            reminder = each if isinstance(each, ReminderText) else ReminderText(each or "")
            if reminder.text:
                texts.append((reminder.text, SentReminder(name, reminder.severity)))
    return texts


async def run_prepare_hook(hook: PrepareMessages, messages: list[Message], context: RequestContext) -> list[Message]:
    """Return the hook's messages; it gets copies."""
    copies = [copy.deepcopy(message) for message in messages]
    answer: Any = hook(copies, context) if _wants_context(hook) else hook(copies)  # type: ignore[call-arg]
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        return messages
    return _check_list(Message, answer, "prepare_messages has to return a list of Message, or None")


def _check_list(kind: Any, given: Any, right: str) -> list[Any]:
    if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
        raise TypeError(f"{right}; it returned {type_name(given)}")
    items = [*given]
    if wrong := [type_name(item) for item in items if not isinstance(item, kind)]:
        raise TypeError(f"{right}; it returned one of {wrong[0]}")
    return items


def _wants_context(hook: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(hook).parameters.values())
    except (TypeError, ValueError):
        return False
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(by_place) > 1 and (by_place[1].default is inspect.Parameter.empty or by_place[1].name == "context")


def loop_state(facts: Facts, turn: Sequence[Message], seen: Sequence[Message]) -> LoopState:
    """Return the loop state, given the messages of the turn and those that the model sees."""
    results = {message.result.call_id: message.result for message in turn if message.result is not None}
    answered = [
        (part, results[part.call_id])
        for message in turn
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.call_id in results
    ]
    past = [
        PastCall(
            part.name,
            succeeded=not result.is_error,
            call_id=part.call_id,
            arguments=deepcopy(part.arguments),
            output=deepcopy(result.output),
        )
        for part, result in answered[-WINDOW:]
    ]
    compaction, boundary = facts.compaction, facts.history.boundary
    # If the boundary is a compaction's, the first message that the model sees is a new one, or one carried over.
    return LoopState(
        chat_id=facts.chat_id,
        step=facts.turn.steps,
        call_count=len(answered),
        last_call=past[-1] if past else None,
        last_calls=tuple(past),
        compactions=compaction.count,
        usage=facts.turn.usage,
        context_tokens=compaction.context_tokens,
        context_limit=compaction.context_limit,
        folded=boundary > 0 and any(one.position < boundary or one.audience is Audience.model for one in seen[:1]),
    )
