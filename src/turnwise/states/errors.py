"""The errors of turnwise.

    TurnwiseError
    |-- ChatNotFound            no chat of that id
    |   `-- ChatDeleted         the chat was deleted; a tombstone is left
    |-- MessageNotFound         no message of that id where one was asked for
    |-- FileNotFound            no such file in the chat, or its bytes are gone
    |-- IllegalTransition       the table has no row for the trigger in that state
    |-- ToolResultMismatch      a submission that does not name exactly the open client calls
    |-- ConflictingReplay       a call was answered, or a message accepted, with other content
    |-- DeadlineExpired         a result for a call that was answered by its deadline
    |-- ChatBusy                `when_busy="reject"` and the chat works
    |   `-- NotResting          only a resting chat can be deleted
    |-- QueueFull               the queue has reached its limit of messages or bytes
    |-- BudgetSpent             the chat or its owner has spent a budget of tokens or money
    |-- VersionMismatch         the chat has changed since the caller read it
    |-- ChatArchived            an archived chat accepts nothing but `unarchived`
    |-- NothingToCompact        no message to summarize
    |-- StaleLease              the lease was lost: another holder, or none
    |-- BrokenInvariant           a decision would break an invariant: a defect
    |-- SettingsError           an invalid setting, tool, model name or URL
    |   `-- InvalidArgument     an invalid argument of a public function
    |       |-- InvalidContent  a message or a result that is blank or not JSON
    |       `-- WrongCall       a missing or unknown argument
    |-- StoreError              the database refused or could not be reached
    |   |-- ChatExists          a chat with that id exists already
    |   `-- ChatUnreadable      stored values of one chat cannot be read
    |-- ImportRefused           the lines are not those of one whole exported chat
    |-- EngineClosed            the engine is not open, or was closed during the call
    |-- EngineInUse             the engine is entered while it is open
    |-- ModelError              the provider failed, classified
    |-- ToolFailed              raised BY a tool: the model sees its text unchanged
    |-- ToolOutcomeUnknown      raised BY a tool that does not know whether it took effect
    `-- FatalToolError          raised BY a tool to end the chat in `error`

Each carries its facts as attributes and makes its own text from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

_LONGEST_ID: Final = 200


def _id(value: str | None) -> str:
    """Return an id as texts show it: callers name ids of any length."""
    return (
        repr(value)
        if value is None or len(value) <= _LONGEST_ID
        else f"{value[:_LONGEST_ID]!r}... ({len(value):,} long)"
    )


class TurnwiseError(Exception):
    """The root of every error that turnwise raises.

    Pickling and copying keep its class, text, attributes and notes.
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Python would call the class again, with the text in the place of the facts that the text was made from.
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[TurnwiseError], args: tuple[object, ...]) -> TurnwiseError:
    return kind.__new__(kind, *args)


class ChatNotFound(TurnwiseError):
    """There is no chat of that id in this store. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        super().__init__(f"there is no chat {_id(chat_id)} in this store; nothing was written")


class ChatDeleted(ChatNotFound):
    """The chat was deleted at `deleted_at`, and its id is never used again. Nothing was written."""

    def __init__(self, chat_id: str, deleted_at: datetime) -> None:
        super().__init__(chat_id)
        self.deleted_at = deleted_at
        at = deleted_at.isoformat(timespec="seconds")
        self.args = (f"chat {_id(chat_id)} was deleted at {at}, for good; nothing was written",)


class MessageNotFound(TurnwiseError):
    """The chat has no such message in the place that was asked for. Nothing was written."""

    def __init__(self, chat_id: str, message_id: str, *, expected: str) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.expected = expected
        super().__init__(f"chat {_id(chat_id)} has no {expected} {_id(message_id)}; nothing was written")


class FileNotFound(TurnwiseError):
    """The chat holds no file of that digest, or the bytes are gone. Nothing was written.

    Files of other chats are indistinguishable from files that never existed.
    """

    def __init__(self, chat_id: str, digest: str, problem: str = "is not there") -> None:
        self.chat_id = chat_id
        self.digest = digest
        name = digest if digest.isalnum() and len(digest) <= _LONGEST_ID else _id(digest)
        self.problem = f"the file {name} {problem}"
        super().__init__(
            f"chat {_id(chat_id)}: {self.problem}; put it into this chat with put_file first; nothing was written"
        )


class IllegalTransition(TurnwiseError):
    """The table has no row for this trigger in this state. Nothing was written.

    `allowed` are the triggers that are possible in `state` as the chat stands.
    """

    def __init__(self, state: str, trigger: str, allowed: Sequence[str]) -> None:
        self.state = state
        self.trigger = trigger
        self.allowed = tuple(allowed)
        super().__init__(
            f"{trigger!s} is not possible in state {state!s} as the chat stands; "
            f"possible are: {_listed(self.allowed)}; nothing was written"
        )


class ToolResultMismatch(TurnwiseError):
    """A submission did not name exactly the open client calls of the step. Nothing was written."""

    def __init__(self, missing: Sequence[str], extra: Sequence[str], duplicate: Sequence[str]) -> None:
        self.missing = tuple(missing)
        self.extra = tuple(extra)
        self.duplicate = tuple(duplicate)
        problems = [
            f"{word}: {_listed(ids)}"
            for word, ids in (("missing", missing), ("not open", extra), ("given twice", duplicate))
            if ids
        ]
        problem = "; ".join(problems) or "no call is open, and no result was given"
        super().__init__(f"a submission must name each open client call exactly once ({problem}); nothing was written")


class ConflictingReplay(TurnwiseError):
    """The call was answered before, or the message accepted, with other content. Nothing was written.

    `message_id` is the id of the accepted message.
    """

    def __init__(
        self,
        *,
        call_id: str | None = None,
        client_id: str | None = None,
        outcome: str | None = None,
        message_id: str | None = None,
    ) -> None:
        self.call_id = call_id
        self.client_id = client_id
        self.outcome = outcome
        self.message_id = message_id
        if call_id is None:
            text = f"client_id {_id(client_id)} was used before for a message with other content"
        elif outcome is None:
            text = f"call {_id(call_id)} was answered before with another result"
        else:
            text = f"call {_id(call_id)} was closed before any result came: {outcome}"
        super().__init__(f"{text}; the first one stays; nothing was written")


class DeadlineExpired(TurnwiseError):
    """The calls expired: their deadline passed and they were answered `timed_out`. Nothing was written."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        self.call_ids = tuple(call_ids)
        super().__init__(f"the deadline of {_listed(call_ids)} has passed; nothing was written")


class ChatBusy(TurnwiseError):
    """The chat works and the message came with `when_busy="reject"`. Nothing was written."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"the chat is busy ({state!s}); send with when_busy='queue', 'steer' or 'interrupt', or wait; "
            "nothing was written"
        )


class NotResting(ChatBusy):
    """The chat works, and only a resting chat can be deleted. Nothing was written."""

    def __init__(self, chat_id: str, state: str) -> None:
        super().__init__(state)
        self.chat_id = chat_id
        text = f"chat {_id(chat_id)} is at work ({state!s}): interrupt it, and delete it once it rests"
        self.args = (f"{text}; nothing was written",)


class QueueFull(TurnwiseError):
    """The queue holds as much as it may: `limit` messages, or bytes if `unit` says so. Nothing was written."""

    def __init__(self, limit: int, unit: str = "messages") -> None:
        self.limit = limit
        self.unit = unit
        super().__init__(f"the queue is full: it holds at most {limit} {unit}; nothing was written")


class BudgetSpent(TurnwiseError):
    """The chat, or its owner, has spent a budget: too little is left for another model call. Nothing was written."""

    def __init__(self, until: datetime | None, *, unit: str = "tokens", retry_after: float | None = None) -> None:
        self.until = until
        """When the next period begins; `None` if only an operator can raise the budget."""
        self.unit = unit
        """What is spent: `tokens` or `cost`."""
        self.retry_after = retry_after
        """Seconds from the refusal to `until`."""
        wait = "" if until is None else f"wait until {until:%Y-%m-%d %H:%M:%S} UTC, or "
        what = "tokens" if unit == "tokens" else "money"
        super().__init__(f"the budget of {what} is spent; {wait}ask an operator to raise it; nothing was written")


class ChatArchived(TurnwiseError):
    """The chat is archived and accepts no trigger but `unarchived`. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        super().__init__(f"chat {_id(chat_id)} is archived; unarchive it first; nothing was written")


class VersionMismatch(TurnwiseError):
    """The chat has changed since the caller saw it: it is not at version `if_version`. Nothing was written."""

    def __init__(self, chat_id: str, if_version: int, version: int) -> None:
        self.chat_id = chat_id
        self.if_version = if_version
        self.version = version
        super().__init__(
            f"chat {_id(chat_id)} is at version {version}, not {if_version}; read it again and decide again; "
            "nothing was written"
        )


class NothingToCompact(TurnwiseError):
    """No message since the last boundary can be summarized. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        problem = "has no message to compact since its last boundary; send one first; nothing was written"
        super().__init__(f"chat {_id(chat_id)} {problem}")


class StaleLease(TurnwiseError):
    """The lease is no longer held: another worker has the chat, or none. Nothing was written.

    `token` is the fencing token of the write; `current` is the valid one, `None` for no lease.
    """

    def __init__(self, chat_id: str, token: int | None, current: int | None) -> None:
        self.chat_id = chat_id
        self.token = token
        self.current = current
        held = "no worker holds the chat" if current is None else f"token {current} holds the chat"
        if token == current:
            held = "the database went back, and granted the same token to another worker"
        super().__init__(f"the lease of chat {_id(chat_id)} with token {token} is lost: {held}; nothing was written")


class BrokenInvariant(TurnwiseError):
    """A transition would leave the chat breaking an invariant of its state. Nothing was written.

    It is a defect of turnwise or of stored data; a worker's sweep repairs the latter.
    """

    def __init__(self, chat_id: str, trigger: str, invariants: Sequence[str]) -> None:
        self.chat_id = chat_id
        self.trigger = trigger
        self.invariants = tuple(invariants)
        super().__init__(
            f"{trigger!s} would leave chat {_id(chat_id)} breaking {_listed(self.invariants)}; nothing was written"
        )


class SettingsError(TurnwiseError):
    """A setting, a tool, a model name or a store URL is invalid. Nothing was stored.

    `field` names it, `problem` says what was wrong and what would have been right.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}; nothing was stored")


class InvalidArgument(SettingsError):
    """An argument has the wrong type, is too large, or is not one of the allowed values. Nothing was written.

    `argument` names it, with its place in a list, as in `tools[2]`; `problem` says what was wrong, and what would have
    been right.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument = argument
        self.args = (f"{argument}: {problem}; nothing was written",)


class InvalidContent(InvalidArgument):
    """The content cannot be stored: a blank message, broken text, not a JSON value. Nothing was written."""

    def __init__(self, problem: str, *, argument: str = "content") -> None:
        super().__init__(argument, problem)
        self.args = (f"{problem}; nothing was written",)


class WrongCall(InvalidArgument, TypeError):
    """An argument is missing, or the function has no argument of that name. Nothing was written.

    It is also a `TypeError`, as Python raises for such a call.
    """


class StoreError(TurnwiseError):
    """The database refused, or could not be reached.

    `written` is `"no"` if nothing was written, `"unknown"` if the answer was lost. `passing` says whether a later try
    may succeed, because the store is away, busy or full. A running chat then waits for it.
    """

    def __init__(self, problem: str, *, written: Literal["no", "unknown"] = "no", passing: bool = False) -> None:
        self.problem = problem
        self.written = written
        self.passing = passing
        super().__init__(problem)


class ChatExists(StoreError):
    """The store already has a chat of that id. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        super().__init__(f"there is a chat {_id(chat_id)} in this store already; nothing was written")


class ImportRefused(TurnwiseError):
    """The lines are not those of one whole chat, as it was exported. Nothing was written.

    `line` is the number, from 1, of the first line that is wrong or missing; `problem` says what was found there.
    """

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = problem
        super().__init__(f"line {line} of the exported chat: {problem}; nothing was written")


class EngineInUse(TurnwiseError):
    """The engine is open already. Nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "the engine is open already; enter it once and share it: every task of its event loop may use it"
        )


class EngineClosed(TurnwiseError):
    """The engine is not open, and nothing was written; or it was closed while a call waited.

    The chats stay in the store: open an engine again and continue after the last event that you have seen.

    Args:
        problem: what happened to the engine.
        waited: whether a call waited, for example for the answer to a message. The message is kept.
    """

    def __init__(self, problem: str, *, waited: bool = False) -> None:
        self.problem = problem
        super().__init__(f"{problem}; {'what was accepted is kept' if waited else 'nothing was written'}")


class ChatUnreadable(StoreError):
    """Stored values of one chat cannot be read. Nothing was written, and no other chat is affected.

    `column` names where it is, as `table.column`, `problem` what is wrong there. `turnwise doctor` says what to do.
    """

    def __init__(self, column: str, problem: str, *, chat_id: str = "") -> None:
        self.chat_id = chat_id
        self.column = column
        row = f"chat {_id(chat_id)}" if chat_id else "a row"
        super().__init__(
            f"{row} cannot be read: {column}: {problem}; nothing was written,"
            " other chats are not affected; `turnwise doctor` says what to do"
        )
        self.problem = problem


class ToolFailed(TurnwiseError):
    """Raised by a tool that failed, with a text for the model, which sees it unchanged. The turn goes on."""


class ToolOutcomeUnknown(TurnwiseError):
    """Raised by a tool that does not know whether it took effect: its call ends `unknown`, and the turn goes on."""


class FatalToolError(TurnwiseError):
    """Raised by a tool to end the chat in `error`, once every open call has a result."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(str(name) for name in names) or "nothing"
