"""What commits changed in all chats, by their numbers, and how far the consumers of their events are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from turnwise.persistence.reading import ChangedEvent, Consumer, ConsumerPosition, Numbers, StoredChange, Undelivered
from turnwise.persistence.rows import PARSE_ERRORS, event_of, unreadable
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.stored_chat import facts_or_rest, is_count
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import EVENTS

_FLEETING = sorted(kind for kind, event in EVENTS.items() if event.fleeting)


async def numbers(db: SQLDatabase) -> Numbers:
    ((last,),) = await db.fetch("last_change")
    if not db.remote:  # the one writer holds a lock from before it takes a number until after its commit
        return Numbers(last, 0, 0)
    # Another statement, with a later snapshot: each transaction with a number up to `last` started before.
    ((oldest, following),) = await db.fetch("in_flight")
    return Numbers(last, oldest, following)


async def changes(
    db: SQLDatabase, *, after: int, limit: int, seen: Collection[int] = (), owner: str | None = None
) -> list[StoredChange]:
    rows = await db.fetch("changed_since", after=after, limit=limit, seen=[*seen], owner=owner)
    there = {row[0] for row in rows if row[2] is None}
    stored = await db.stored("WHERE chats.id = ANY (:ids)", ids=[*there]) if there else []
    facts = {one.id: facts_or_rest(one) for one in stored}
    return [StoredChange(number, chat_id, facts.get(chat_id), whose) for chat_id, number, whose in rows]


async def change_numbers(db: SQLDatabase, *, after: int) -> frozenset[int]:
    return frozenset(await db.fetch_column("changes_above", after=after))


async def changed_events(
    db: SQLDatabase, chat_id: str, /, *, after: int, seq: int, kinds: Collection[str], limit: int
) -> list[ChangedEvent]:
    values = {"after": after, "seq": seq, "kinds": [*kinds], "every": not kinds, "fleeting": _FLEETING}
    rows = await db.fetch("events_of_changes", chat_id=chat_id, limit=limit, **values)
    return [_changed_event(chat_id, row) for row in rows]


async def changed_event(db: SQLDatabase, chat_id: str, seq: int, /) -> ChangedEvent | None:
    row = await db.fetch_one("event", chat_id=chat_id, seq=seq)
    return None if row is None else _changed_event(chat_id, row)


def _changed_event(chat_id: str, row: Row) -> ChangedEvent:
    changed, seq, *rest = row
    number = changed if is_count(changed) else 0
    try:
        return ChangedEvent(number, seq, event_of(chat_id, seq, *rest))
    except ChatUnreadable as error:
        return ChangedEvent(number, seq, error)
    except PARSE_ERRORS as error:
        return ChangedEvent(number, seq, unreadable(chat_id, "events.body", error))


async def hold_consumer(
    db: SQLDatabase, name: str, worker: str, /, *, seconds: float, from_now: bool
) -> ConsumerPosition | None:
    position = (await db.fetch("last_change"))[0][0] if from_now else 0
    await db.execute("add_consumer", name=name, position=position)
    now = await db.now()
    lease = {"name": name, "now": now, "expires": now + timedelta(seconds=seconds)}
    await db.execute("cut_consumer_short", **lease)
    row = await db.fetch_one("hold_consumer", worker=worker, **lease)
    if row is None:
        return None
    held = ConsumerPosition(*row)
    if not is_count(held.position):
        raise ChatUnreadable(
            "consumers.position", f"the position of {name!r} is not a number; `drop_consumer` lets it start again"
        )
    return held


async def advance_consumer(
    db: SQLDatabase, name: str, worker: str, token: int, /, *, position: int, seconds: float
) -> bool:
    now = await db.now()
    values = {"name": name, "worker": worker, "token": token, "position": position}
    values |= {"now": now, "expires": now + timedelta(seconds=seconds)}
    return await db.fetch_one("advance_consumer", **values) is not None


async def consumers(db: SQLDatabase) -> list[Consumer]:
    """Return the consumers, by name; one whose position cannot be read stands at 0."""
    return [
        Consumer(
            name=name,
            position=position if is_count(position) else 0,
            delivering=worker is not None,
            undelivered=undelivered,
        )
        for name, position, worker, undelivered in await db.fetch("consumers")
    ]


async def drop_consumer(db: SQLDatabase, name: str, /) -> bool:
    if not await db.execute("drop_consumer", name=name, now=await db.now()):
        return False
    await db.execute("drop_undelivered", name=name)
    return True


async def set_aside(db: SQLDatabase, name: str, chat_id: str, seq: int, error: str, /) -> None:
    values = {"name": name, "chat_id": chat_id, "seq": seq, "error": error, "due": False}
    await db.execute("set_aside", **values, at=await db.now())


async def undelivered(db: SQLDatabase, name: str, /, *, limit: int) -> list[Undelivered]:
    return [
        Undelivered(chat_id=chat_id, seq=seq, error=error, at=db.time_or_none(at), due=bool(due))
        for chat_id, seq, error, at, due in await db.fetch("undelivered", name=name, limit=limit)
    ]


async def due_again(db: SQLDatabase, name: str, /, *, limit: int) -> Sequence[tuple[str, int]]:
    return [(chat_id, seq) for chat_id, seq in await db.fetch("due_again", name=name, limit=limit)]
