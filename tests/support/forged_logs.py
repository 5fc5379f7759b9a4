"""Forged logs: one thing in each is not as it was, and every hash is computed anew, so that only the rules can tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from support.logged_life import LOG, OVERFLOWED
from turnwise.persistence.audit.record import GENESIS, AuditRecord, WriteRecord, export, hash_of
from turnwise.states.names import Trigger

T = Trigger


def exported(records: list[AuditRecord]) -> str:
    """Return the records as a log, with a checkpoint that fits."""
    return export("chat-1", records)


def rehashed(records: list[AuditRecord]) -> list[AuditRecord]:
    """Return the records renumbered and chained anew, as one who rewrites the whole log would."""
    chained: list[AuditRecord] = []
    for version, record in enumerate(records, start=1):
        prev = chained[-1].hash if chained else GENESIS
        moved = dataclasses.replace(record, version=version, prev=prev)
        chained.append(dataclasses.replace(moved, hash=hash_of(moved)))
    return chained


def place_of(trigger: Trigger, *, last: bool = False) -> int:
    places = [place for place, record in enumerate(LOG) if record.trigger == trigger]
    return places[-1 if last else 0]


def _taking() -> int:
    """Return the first place where the queue's head enters the history, and nothing else happens to the queue."""
    return next(
        place for place, record in enumerate(LOG) if any(write.kind == "dequeue:taken" for write in record.writes)
    )


def _answer() -> int:
    """Return the place where a helper answers."""
    return next(place for place, record in enumerate(LOG) if any(write.kind == "helper" for write in record.writes))


def forgery(place: int, **changes: Any) -> str:
    """Change one record, hash everything anew, and return the log."""
    records = [*LOG]
    records[place] = dataclasses.replace(records[place], **changes)
    return export("chat-1", rehashed(records))


def with_write(place: int, kind: str, id_: str) -> str:
    return forgery(place, writes=(*LOG[place].writes, WriteRecord(kind, id_, "0" * 64)))


FORGERIES: dict[str, tuple[Callable[[], str], int, str]] = {
    "a second boundary in one compaction": (
        lambda: with_write(place_of(T.compacted), "boundary:compaction", str(LOG[place_of(T.compacted) - 1].step)),
        place_of(T.compacted),
        "2 writes boundary:compaction",
    ),
    "a boundary outside a compaction": (
        lambda: with_write(place_of(T.step_finished), "boundary:compaction", "1"),
        place_of(T.step_finished),
        "belongs to another trigger",
    ),
    "a second result of a call": (
        lambda: with_write(place_of(T.tools_finished), "call:succeeded", "c1"),
        place_of(T.tools_finished),
        "has its result already",
    ),
    "a result without its message": (
        lambda: with_write(place_of(T.call_started), "call:failed", "c1"),
        place_of(T.call_started),
        "without the message",
    ),
    "a result of a call never planned": (
        lambda: with_write(place_of(T.tools_finished), "call:succeeded", "c99"),
        place_of(T.tools_finished),
        "never planned",
    ),
    "a start of a call that has its result": (
        lambda: forgery(place_of(T.call_started, last=True), writes=(WriteRecord("call:started", "c1", "0" * 64),)),
        place_of(T.call_started, last=True),
        "has its result already",
    ),
    "a start of a client's call": (
        lambda: forgery(place_of(T.call_started), writes=(WriteRecord("call:started", "c3", "0" * 64),)),
        place_of(T.call_started),
        "answered by the client",
    ),
    "an answer of a helper that nobody is": (
        lambda: forgery(_answer(), writes=tuple(write for write in LOG[_answer()].writes if write.kind != "helper")),
        _answer(),
        "the client answers call 'h1'",
    ),
    "a helper that answers nothing": (
        lambda: with_write(place_of(T.call_started), "helper", "h:3"),
        place_of(T.call_started),
        "who answers one call",
    ),
    "a start with other arguments": (
        lambda: forgery(place_of(T.call_started), writes=(WriteRecord("call:started", "c2", "0" * 64),)),
        place_of(T.call_started),
        "other arguments",
    ),
    "a call planned twice": (
        lambda: with_write(place_of(T.call_started), "call:planned:at_most_once", "c1"),
        place_of(T.call_started),
        "planned already",
    ),
    "a call planned after its result": (
        lambda: with_write(place_of(T.submit_tool_results), "call:planned:client", "c1"),
        place_of(T.submit_tool_results),
        "nothing comes after",
    ),
    "a lease token used twice": (
        lambda: forgery(place_of(T.claimed, last=True), writes=(WriteRecord("lease", "1", "0" * 64),)),
        place_of(T.claimed, last=True),
        "tokens only rise",
    ),
    "a token that is no number": (
        lambda: forgery(place_of(T.claimed), writes=(WriteRecord("lease", "9" * 5000, "0" * 64),)),
        place_of(T.claimed),
        "tokens only rise",
    ),
    "a second lease beside a live one": (
        lambda: with_write(place_of(T.attempt_started), "lease", "77"),
        place_of(T.attempt_started),
        "at most one live lease",
    ),
    "an end of a lease nobody holds": (
        lambda: with_write(place_of(T.send_message), "lease:dropped", "1"),
        place_of(T.send_message),
        "the live one is None",
    ),
    "work without a lease": (
        lambda: forgery(place_of(T.claimed), writes=()),
        place_of(T.claimed),
        "demands a live lease",
    ),
    "rest with a lease": (
        lambda: forgery(place_of(T.failed), writes=()),
        place_of(T.failed),
        "allows no lease",
    ),
    "a message id given twice": (
        lambda: with_write(place_of(T.send_message), "message", "m1"),
        place_of(T.send_message),
        "given once",
    ),
    "a message taken past the head of the queue": (
        lambda: with_write(place_of(T.claimed), "dequeue:taken", "m1"),
        place_of(T.claimed),
        "not the head",
    ),
    "a deletion of what does not wait": (
        lambda: with_write(place_of(T.claimed), "dequeue:deleted", "m1"),
        place_of(T.claimed),
        "does not wait",
    ),
    "a queued message that was said": (
        lambda: with_write(place_of(T.claimed), "enqueue", "m1"),
        place_of(T.claimed),
        "cannot be queued",
    ),
    "a client's message accepted twice": (
        lambda: with_write(place_of(T.send_message, last=True), "receipt", "look around"),
        place_of(T.send_message, last=True),
        "accepted once",
    ),
    "an edit of a message that is gone": (
        lambda: forgery(
            place_of(T.edit_message),
            writes=(WriteRecord("cut", "m999", "0" * 64), *LOG[place_of(T.edit_message)].writes[1:]),
        ),
        place_of(T.edit_message),
        "not in it",
    ),
    "a write of an unknown kind": (
        lambda: with_write(place_of(T.claimed), "graffiti", "m1"),
        place_of(T.claimed),
        "no write of kind",
    ),
    "an erasure of what was never said": (
        lambda: forgery(place_of(T.message_erased), writes=(WriteRecord("erase", "m999", "0" * 64),)),
        place_of(T.message_erased),
        "never in the history",
    ),
    "a boundary of another step": (
        lambda: forgery(place_of(T.clear_context), writes=(WriteRecord("boundary:clear", "1", "0" * 64),)),
        place_of(T.clear_context),
        "names step '1'",
    ),
    "a queued message that never entered the history": (
        lambda: forgery(
            _taking(), writes=tuple(write for write in LOG[_taking()].writes if write.kind == "dequeue:taken")
        ),
        _taking(),
        "did not enter the history",
    ),
    "a queue in a new order that forgets a message": (
        lambda: forgery(place_of(T.promote_queued), writes=()),
        place_of(T.promote_queued) + 1,
        "not the head of the queue",
    ),
    "a turn begun in the middle of a step": (
        lambda: forgery(place_of(T.attempt_started), turn=2),
        place_of(T.attempt_started),
        "turn, step and attempt",
    ),
    "a transition of an archived chat": (
        lambda: exported(rehashed([*LOG[: place_of(T.archived) + 1], *LOG[place_of(T.unarchived) + 1 :]])),
        place_of(T.archived) + 1,
        "archived",
    ),
    "an answered client call left open": (
        lambda: forgery(place_of(T.submit_tool_results), writes=()),
        place_of(T.submit_tool_results),
        "the client call 'c3' has no result",
    ),
    "a local call left open": (
        lambda: exported(rehashed([*LOG[: place_of(T.tools_finished) - 2], *LOG[place_of(T.tools_finished) :]])),
        place_of(T.tools_finished) - 2,
        "the local call 'c1' has no result",
    ),
    "a started call not given up after a crash": (
        lambda: forgery(place_of(T.lease_expired), writes=LOG[place_of(T.lease_expired)].writes[-1:]),
        place_of(T.lease_expired),
        "must end `unknown`",
    ),
    "an at-most-once call started again": (
        lambda: exported(
            rehashed(
                [
                    *LOG[: place_of(T.call_started) + 1],
                    LOG[place_of(T.call_started)],
                    *LOG[place_of(T.call_started) + 1 :],
                ]
            )
        ),
        place_of(T.call_started) + 1,
        "at most once",
    ),
    "an approval of a call that nobody was asked about": (
        lambda: with_write(place_of(T.call_started), "call:approved:at_most_once", "c1"),
        place_of(T.call_started),
        "did not wait for the client",
    ),
    "a deadline for a local call": (
        lambda: with_write(place_of(T.call_started), "deadline", "c1"),
        place_of(T.call_started),
        "but is not the client's",
    ),
    "an erasure of what never waited": (
        lambda: forgery(place_of(T.message_erased), writes=(WriteRecord("erase:queued", "m999", "0" * 64),)),
        place_of(T.message_erased),
        "never waited",
    ),
    "an erasure that does something else, too": (
        lambda: with_write(place_of(T.message_erased), "usage", "1"),
        place_of(T.message_erased),
        "a write usage belongs to another trigger",
    ),
    "a queue in a new order that names another message": (
        lambda: forgery(
            place_of(T.promote_queued),
            writes=tuple(
                WriteRecord("enqueue", "m1", write.digest) if write.kind == "enqueue" else write
                for write in LOG[place_of(T.promote_queued)].writes
            ),
        ),
        place_of(T.promote_queued),
        "names not exactly the messages that wait",
    ),
    "a trigger that there is not": (
        lambda: forgery(place_of(T.renamed), trigger="sing"),
        place_of(T.renamed),
        "knows no such trigger",
    ),
    "a rest with a message that waits": (
        lambda: with_write(place_of(T.clear_context), "enqueue", "m500"),
        place_of(T.clear_context),
        "waiting promises an empty queue",
    ),
    "a second compaction of a step": (lambda: exported(rehashed(OVERFLOWED)), 6, "had its compaction"),
}
"""What is forged, by name: the log, the place of the first record that is wrong, and words of the problem."""
