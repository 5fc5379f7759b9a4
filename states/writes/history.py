"""Writes about the history that come from outside: what the user says, edits and erases."""

from __future__ import annotations

import dataclasses

from turnwise.states.draft import Draft
from turnwise.states.effects import CutHistory, EraseMessage, RecordReceipt
from turnwise.states.events import HistoryResetEvent, MessageEvent
from turnwise.states.names import Audience, Need, Tail
from turnwise.states.writes.steps import lose_attempt


def append_user_message(draft: Draft) -> None:
    """Append what the user said to the history."""
    arguments = draft.arguments
    message = draft.append("user", arguments["parts"], tail=Tail.awaits_answer)
    client_id = arguments.get("client_id")
    if client_id is not None:
        draft.writes.append(RecordReceipt(client_id, arguments["content_digest"], message.id, queued=False))


def cut_history(draft: Draft) -> None:
    """Take the edited message and all that followed out of the history, and with them an attempt under way."""
    cut = draft.arguments["cut"]
    lose_attempt(draft, "the history was edited")
    draft.writes.append(CutHistory(cut.position, cut.first_removed))
    draft.history = dataclasses.replace(draft.history, boundary=cut.boundary, foldable=cut.foldable)
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none, unproven=False)
    draft.history_changed()
    draft.events.append(HistoryResetEvent(first_removed=cut.first_removed))


def blank_message(draft: Draft) -> None:
    """Take the payload out of a message; its digest stays in the audit log."""
    message = draft.arguments["erased"]
    draft.writes.append(EraseMessage(message))
    blanked = {call.call_id: call.arguments for call in message.calls}
    draft.calls = tuple(
        dataclasses.replace(call, arguments=blanked.get(call.call_id, call.arguments)) for call in draft.calls
    )
    draft.history_changed()
    if message.audience is not Audience.model:
        draft.events.append(MessageEvent(message=message))
