"""Receipts: how a client's message is recognised when it is sent again."""

from __future__ import annotations

from turnwise.states.draft import Draft
from turnwise.states.errors import WrongCall
from turnwise.states.triggers import EditMessage, SendMessage
from turnwise.states.values.digests import guarded
from turnwise.states.writes import RecordReceipt


def record_receipt(draft: Draft[SendMessage | EditMessage], message_id: str, *, queued: bool) -> None:
    """Record the `client_id` under which the message was accepted, if it has one."""
    message = draft.trigger
    if message.client_id is None:
        return
    if message.content_digest is None:
        raise WrongCall("content_digest", f"{message.name} needs it with a client_id")
    salt = draft.salt_of("receipt", message.client_id)
    digest = guarded(salt, message.content_digest)
    draft.writes.append(RecordReceipt(message.client_id, digest, message_id, queued, draft.before.last_seq, salt))
