"""Actions on the queue, and on schedules: messages that the clock sends."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.actions.turns import begin_turn
from turnwise.states.draft import Draft
from turnwise.states.errors import WrongCall
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import ChatState, Tail
from turnwise.states.triggers import (
    DeleteQueued,
    EditMessage,
    EditQueued,
    PromoteQueued,
    Resume,
    Schedule,
    ScheduleFired,
    SendMessage,
    Trigger,
    Unschedule,
)
from turnwise.states.values.digests import guarded
from turnwise.states.writes import (
    DropQueued,
    DropSchedule,
    FireSchedule,
    MoveQueued,
    PutQueued,
    PutSchedule,
    RecordReceipt,
)


def record_receipt(draft: Draft[SendMessage | ScheduleFired | EditMessage], message_id: str, *, queued: bool) -> None:
    """Record the `client_id` under which the message was accepted, if it has one."""
    message = draft.trigger
    if message.client_id is None:
        return
    if message.content_digest is None:
        raise WrongCall("content_digest", f"{message.name} needs it with a client_id")
    salt = draft.salt_of("receipt", message.client_id)
    digest = guarded(salt, message.content_digest)
    draft.writes.append(RecordReceipt(message.client_id, digest, message_id, queued, draft.before.last_seq, salt))


def enqueue(draft: Draft[SendMessage | ScheduleFired]) -> None:
    """Put the message behind the queue, or, if it steers, before those that wait for turns of their own."""
    steers, place = draft.trigger.when_busy == "steer", len(draft.queue)
    if steers:
        first = (queued.steers or queued.id in draft.ahead for queued in draft.queue)
        place = next((place for place, comes_first in enumerate(first) if not comes_first), place)
    is_next = not place and draft.state in (ChatState.interrupted, ChatState.error)
    _insert(draft, _accept(draft, is_next=is_next, steers=steers), place)


def enqueue_first(draft: Draft[SendMessage]) -> None:
    """Put the message before the queue, behind those that someone wanted next before."""
    place = len(draft.ahead)
    queued = _accept(draft, is_next=not place)
    draft.ahead = (*draft.ahead, queued.id)
    _insert(draft, queued, place)


def take_queue_head(draft: Draft[Trigger]) -> None:
    """Make the head of the queue the user message of a new turn."""
    draft.publish_closing()
    head = draft.take_queue_head()
    resumed_trace = draft.trigger.trace if isinstance(draft.trigger, Resume) else None
    begin_turn(draft, draft.traces.get(head.id, resumed_trace), draft.askers.get(head.id))
    draft.append("user", head.parts, message_id=head.id, tail=Tail.awaits_answer, wakeup=head.wakeup)
    draft.queue_changed("taken", head.id)


def take_steering(draft: Draft[Trigger]) -> None:
    """Let the messages that steer enter the history, as user messages of the turn under way."""
    steering = [queued for queued in draft.queue if queued.steers]
    if not steering:
        return
    draft.queue = tuple(queued for queued in draft.queue if not queued.steers)
    for queued in steering:
        draft.writes.append(DropQueued(queued.id, "steered"))
        draft.append(
            "user",
            queued.parts,
            message_id=queued.id,
            tail=Tail.awaits_answer,
            steered=True,
            wakeup=queued.wakeup,
        )
    draft.queue_changed("taken", *(queued.id for queued in steering))


def clear_queue(draft: Draft[Trigger]) -> None:
    """Empty the queue."""
    if draft.queue:
        ids = [queued.id for queued in draft.queue]
        draft.writes.extend(DropQueued(name, "deleted") for name in ids)
        draft.queue = ()
        draft.queue_changed("deleted", *ids)


def change_queued(draft: Draft[EditQueued]) -> None:
    """Replace the content of a queued message; it keeps its place."""
    place, queued = _named(draft)
    changed = replace(queued, parts=draft.trigger.parts)
    draft.queue = (*draft.queue[:place], changed, *draft.queue[place + 1 :])
    draft.writes.append(PutQueued(changed, None, draft.salt_of("queue", changed.id)))
    draft.queue_changed("edited", changed.id, message=changed)


def remove_queued(draft: Draft[DeleteQueued]) -> None:
    """Take a message out of the queue, for good."""
    place, queued = _named(draft)
    draft.queue = (*draft.queue[:place], *draft.queue[place + 1 :])
    draft.writes.append(DropQueued(queued.id, "deleted"))
    draft.queue_changed("deleted", queued.id)


def move_to_head(draft: Draft[PromoteQueued]) -> None:
    """Move a queued message to the head."""
    place, queued = _named(draft)
    if place:
        head = draft.queue[0].id
        draft.queue = (queued, *draft.queue[:place], *draft.queue[place + 1 :])
        _move(draft, queued.id, head)
        draft.queue_changed("moved", queued.id, before=head)


def _accept(draft: Draft[SendMessage | ScheduleFired], *, is_next: bool, steers: bool = False) -> QueuedMessage:
    sent = draft.trigger
    queued = QueuedMessage(
        id=draft.next_message_id(), parts=sent.parts, accepted_at=draft.now, steers=steers, wakeup=sent.wakeup
    )
    record_receipt(draft, queued.id, queued=not is_next)
    # The serial is above every rank in use: each queued message has taken its own number.
    draft.writes.append(PutQueued(queued, draft.serial, draft.salt_of("queue", queued.id)))
    trace, asker = draft.trigger.trace, draft.trigger.asker
    if trace is not None:
        draft.traces = {**draft.traces, queued.id: trace}
    if asker is not None:
        draft.askers = {**draft.askers, queued.id: asker}
    return queued


def _insert(draft: Draft[SendMessage | ScheduleFired], queued: QueuedMessage, place: int) -> None:
    behind = draft.queue[place:]
    draft.queue = (*draft.queue[:place], queued, *behind)
    before = behind[0].id if behind else None
    if before is not None:
        _move(draft, queued.id, before)
    draft.queue_changed("added", queued.id, message=queued, before=before)


def _move(draft: Draft[Trigger], queued_id: str, before: str) -> None:
    draft.writes.append(MoveQueued(queued_id, before, tuple(queued.id for queued in draft.queue)))


def _named(draft: Draft[EditQueued | DeleteQueued | PromoteQueued]) -> tuple[int, QueuedMessage]:
    queued_id = draft.trigger.queued_id
    return next((place, queued) for place, queued in enumerate(draft.queue) if queued.id == queued_id)


def put_schedule(draft: Draft[Schedule]) -> None:
    """Add a scheduled message, or replace the one of its id."""
    message = replace(draft.trigger.message, by=draft.at.actor)
    others = (other for other in draft.schedules if other.id != message.id)
    draft.schedules = (*others, message)
    draft.writes.append(PutSchedule(message))


def remove_schedule(draft: Draft[Unschedule]) -> None:
    """Cancel a scheduled message."""
    _drop(draft, draft.trigger.schedule_id)


def clear_schedules(draft: Draft[Trigger]) -> None:
    """Take back all that is scheduled."""
    for message in draft.schedules:
        _drop(draft, message.id)


def fire_schedule(draft: Draft[ScheduleFired]) -> None:
    """Note that a scheduled message was due, and when the series goes on. What is sent once is scheduled no more."""
    fired, due = draft.trigger.message, draft.trigger.next_due
    draft.writes.append(FireSchedule(fired.id, fired.due))
    if due is None:
        _drop(draft, fired.id)
    else:
        draft.schedules = tuple(replace(one, due=due) if one.id == fired.id else one for one in draft.schedules)


def _drop(draft: Draft[Trigger], schedule_id: str) -> None:
    draft.schedules = tuple(message for message in draft.schedules if message.id != schedule_id)
    draft.writes.append(DropSchedule(schedule_id))
