"""Erasure: its request, and its report to the caller."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from turnwise.engine.config.results import Chat
from turnwise.engine.prompt.views import erased, without_edits
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.erasure import writes_in
from turnwise.persistence.rows import PARSE_ERRORS, message_of, unreadable
from turnwise.states.arguments import Erasing
from turnwise.states.errors import InvalidArgument, MessageNotFound
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Message, recorded_calls
from turnwise.states.names import Audience
from turnwise.states.values.values import Value

Erasable = Literal["everything", "messages", "quarantine", "title", "metadata", "system", "errors", "reasons"]
"""Parts of a chat that can be erased: `messages` are all of the history, cut, queued or scheduled; `quarantine` are the
rows that repairs have set aside; `everything` is all of it."""

OUTSIDE: Final = (
    "Backups and copies of the database keep what they hold.",
    "So do logs and traces, if they are set to record content, and everyone who followed the chat.",
    "PostgreSQL keeps overwritten rows until VACUUM, and its write-ahead log until it is recycled.",
    "A SQLite file of more than 32 MB keeps copies of rows that SQLite has moved in it, until VACUUM.",
    "The model's provider keeps what it was sent for as long as it says.",
)
_WORDS: Final = get_args(Erasable)
_LABELS: Final = frozenset(_WORDS[3:])


class Erasure(Value, frozen=True, kw_only=True):
    """The erased messages and labels, and the places where copies may remain."""

    chat: Chat
    """The chat after the erasure."""
    messages: tuple[str, ...]
    """The ids of the messages that are blank now: in the history, cut out of it, or meant for the model alone."""
    queued: tuple[str, ...]
    """The ids of messages that waited in the queue and never became part of the history: they are gone."""
    labels: tuple[str, ...]
    """Which of `title`, `metadata`, `system`, `errors` and `reasons` were erased."""
    quarantined: int
    """How many rows in `quarantine` were deleted: all of them, because it is unknown whose words they hold."""
    may_quote: tuple[str, ...]
    """Summaries made after what was erased: they may quote it, and can be erased like any message. With the system
    prompt that is all of them."""
    forks: tuple[str, ...]
    """Chats that began with this one's history: they hold copies of their own, under the same message ids."""
    overwritten: bool
    """Whether the database's files are free of it. `False` on PostgreSQL, in a SQLite file of more than 32 MB, and
    where readers, a full disk or a store out of reach were in the way."""
    outside: tuple[str, ...] = OUTSIDE
    """Places outside the store that turnwise cannot reach."""


class ErasureRequest(msgspec.Struct, frozen=True):
    """The messages and labels that a caller wants to erase."""

    messages: tuple[str, ...]
    what: frozenset[str]
    """The words of `Erasable`; all of them if one is `everything`."""

    @property
    def labels(self) -> frozenset[str]:
        """Which of the title, metadata, system prompt, errors and reasons are to be erased."""
        return self.what & _LABELS

    def of(self, rows: ChatRows, facts: Facts) -> Erasing:
        try:
            messages = {message.id: (message, cut) for message, cut in _read_messages(rows)}
            queued = _queued_ids(rows) - messages.keys()
        except PARSE_ERRORS as error:
            raise unreadable(facts.chat_id, "events.body", error) from error
        for name in self.messages:
            if name not in messages and name not in queued:
                raise MessageNotFound(facts.chat_id, name, expected="message of its history or queue")
        chosen = messages.keys() | queued if "messages" in self.what else set(self.messages)
        call_ids = {call_id for name in messages.keys() & chosen for call_id in recorded_calls(messages[name][0])}
        return Erasing(
            messages=tuple(erased(messages[name][0]) for name in messages if name in chosen),
            results=tuple(
                without_edits(message)
                for message, _ in messages.values()
                if message.id not in chosen
                and message.result is not None
                and message.result.call_id in call_ids
                and message.result.edited_arguments is not None
            ),
            cut=frozenset(name for name in messages if messages[name][1]),
            queued=frozenset(queued & chosen),
            profile=self._profile(facts),
            errors="errors" in self.what,
            reasons="reasons" in self.what,
            schedules=bool(facts.schedules) and "messages" in self.what,
            quarantine=rows.quarantined > 0 or "quarantine" in self.what,
        )

    def _profile(self, facts: Facts) -> Profile | None:
        blank: dict[str, Any] = {"title": None, "metadata": {}, "system": None}
        changes = {name: value for name, value in blank.items() if name in self.what}
        return replace(facts.profile, **changes) if changes else None


def parse_request(messages: Sequence[str], what: Collection[str]) -> ErasureRequest:
    unknown = sorted(set(what) - set(_WORDS))
    if unknown:
        raise InvalidArgument("what", f"must be of {', '.join(_WORDS)}; found {unknown[0]!r}")
    if not messages and not what:
        raise InvalidArgument("messages", "names no message, and `what` names nothing either: nothing would be erased")
    return ErasureRequest(tuple(messages), frozenset(_WORDS if "everything" in what else what))


def summaries_after(rows: ChatRows, names: Collection[str], labels: Collection[str]) -> tuple[str, ...]:
    """Return the remaining summaries that may quote one of the messages or labels."""
    messages = (message for message, _ in _read_messages(rows))
    later = messages if "system" in labels else dropwhile(lambda message: message.id not in names, messages)
    return tuple(
        message.id
        for message in later
        if message.audience is Audience.model and not message.erased and message.id not in names
    )


def _read_messages(rows: ChatRows) -> Iterator[tuple[Message, bool]]:
    for row in rows.tables["messages"]:
        yield message_of(row["format"], row["body"], rows.chat["id"]), row["cut"] is not None


def _queued_ids(rows: ChatRows) -> set[str]:
    logged = {write.id for entry in rows.audit for write in writes_in(entry) if write.kind.startswith("enqueue")}
    events = [json.loads(row["body"]) for row in rows.tables["events"] if row["kind"] == "queue"]
    queued = {event["message"]["id"] for event in events if "message" in event}
    if not all(isinstance(name, str) for name in queued):
        raise TypeError("a queued message has no name")
    return logged | queued
