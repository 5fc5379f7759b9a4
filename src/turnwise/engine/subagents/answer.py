"""Answers of subagents, and their usage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.engine.subagents.family import answers_in, subagents_in
from turnwise.engine.tools.arguments import BadArguments
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.reply_outcome import ReplyOutcome, outcome_of
from turnwise.states.arguments import SubagentAnswer
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.model_errors import INVALID_ANSWER
from turnwise.states.names import Audience, CallStatus, ChatState, Executor, StopReason
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.values.limits import shared_within, size_in_json
from turnwise.states.values.values import Json

_WITHOUT_FORM: Final = "[This answer does not have the form that the subagent's agent wants. Its work stands.]"


class CallAnswer(msgspec.Struct, frozen=True):
    """The answer to a call."""

    output: Json
    subagents: Sequence[SubagentAnswer] = ()
    is_error: bool = False


def result_of(subagent: Facts, messages: Sequence[Message], agents: Agents) -> tuple[Json, bool]:
    """Return the answer to a call, and whether it is an error. An answer without the wanted form gets a note."""
    replies = [one for one in messages if one.role == "assistant" and one.audience is not Audience.model]
    if (
        subagent.last_error is not None
        and subagent.last_error.kind == INVALID_ANSWER
        and subagent.state is ChatState.error
    ):
        words = _last_words(replies[-1]) if replies else ""
        if words:
            return f"{words}\n{_WITHOUT_FORM}", False
    if subagent.state is ChatState.error:
        problem = subagent.last_error.message if subagent.last_error else "an unknown error"
        return f"The subagent could not finish its task: {problem}", True
    if subagent.state is ChatState.interrupted:
        return "The subagent was stopped before it had finished its task.", True
    if replies and replies[-1].erased:
        return "The subagent's last message was erased.", True
    answer = next(_find_answers(replies[-1], messages, subagent, agents), None) if replies else None
    if answer not in (None, ""):
        return answer, False
    words = next((reply.text for reply in reversed(replies) if reply.text), "")
    problem = f"The subagent ended without an answer: {subagent.stop_reason or 'it was never asked'}."
    return f"{problem} Its last words: {words}" if words else problem, True


def _last_words(reply: Message) -> str:
    given = (call.arguments for call in reply.calls if call.name == ANSWER_TOOL)
    return "" if reply.erased else reply.text or "\n".join(json.dumps(one, ensure_ascii=False) for one in given)


def _find_answers(reply: Message, messages: Sequence[Message], subagent: Facts, agents: Agents) -> Iterator[Json]:
    """Yield the answer in a subagent's last reply: by the tool, as text that fits, or as any text.

    A worker that lacks the agent does not know its form.
    """
    agent = reply.agent or subagent.profile.agent
    form = agents.answer(agent)
    if form is not None or agent not in agents:
        results = [message.result for message in messages if message.result is not None]
        accepted = {result.call_id for result in results if result.outcome is CallStatus.succeeded}
        yield from (call.arguments for call in reply.calls if call.name == ANSWER_TOOL and call.call_id in accepted)
    asks_for_more = any(call.executor is not Executor.provider for call in reply.calls)  # an empty reply followed
    if outcome_of(subagent.stop_reason) is ReplyOutcome.complete and not asks_for_more:
        with suppress(BadArguments):
            yield reply.text if form is None else form.arguments_in(reply.text)
    if subagent.stop_reason is StopReason.stop_after_tool and form is None:
        yield reply.text


def lost(name: str, error: Exception) -> SubagentAnswer:
    """Return the record of a subagent that cannot answer; a deleted or unreadable one has unknown usage."""
    is_gone = isinstance(error, ChatNotFound | ChatUnreadable)
    return SubagentAnswer(chat_id=name, usage=NO_USAGE.marked_partial() if is_gone else NO_USAGE)


def combined_answers(answers: Mapping[str, CallAnswer], limit: int) -> list[Json]:
    """Join the answers of subagents into one result, each cut to its fair share."""
    outputs = [answer.output for answer in answers.values()]
    kinds = ["error" if answer.is_error else "answer" for answer in answers.values()]
    frames: list[dict[str, Json]] = [{"subagent": name, kind: ""} for name, kind in zip(answers, kinds, strict=True)]
    cut = shared_within(outputs, limit - size_in_json([*frames]) + len('""') * len(frames))
    return [{**frame, kind: output} for frame, kind, output in zip(frames, kinds, cut, strict=True)]


async def unreported_usage(store: ChatStore, chat_id: str, subagent: Facts) -> Usage:
    """Return the usage of a subagent, and of those below it, that no answer has reported to a chat yet.

    Usage below the subagent counts once the subagent has reported it. Subagents that were stopped with it report their
    usage with a later answer, if they get another message. The chat may know some of them directly. Usage of a chat
    that is deleted, unreadable, or restored from an older backup is unknown.
    """
    logs = _Logs(store)
    own = answers_in(await logs.of(chat_id))
    if logs.are_partial:
        return NO_USAGE.marked_partial()
    reported = await logs.reported_by(subagent.chat_id, len(await logs.of(subagent.chat_id)))
    before: dict[str, int] = {}
    for name in [*reported, *await _find_chats_between(store, chat_id, subagent)]:
        newest = max((answer.version for answer in own.get(name, ())), default=0)
        for below, version in (await logs.reported_by(name, newest)).items():
            before[below] = max(version, before.get(below, 0))
    used = NO_USAGE
    for name, until in reported.items():
        used += await logs.sum_usage(name, before.get(name, 0), until)
    return used.marked_partial() if logs.are_partial else used


async def _find_chats_between(store: ChatStore, chat_id: str, subagent: Facts) -> list[str]:
    """Return the chats between a chat and a subagent below it, which may have reported the subagent to the chat."""
    chats: list[str] = []
    above = subagent.profile.parent
    with suppress(ChatNotFound, ChatUnreadable):
        while above is not None and above not in (chat_id, *chats):
            chats.append(above)
            above = (await store.facts(above)).profile.parent
    return chats


class _Logs:
    """The logs of a family, each read once, and the usage in them."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self._read: dict[str, Sequence[AuditRecord]] = {}
        self.are_partial = False

    async def of(self, chat_id: str) -> Sequence[AuditRecord]:
        if chat_id not in self._read:
            self._read[chat_id] = ()
            try:
                self._read[chat_id] = await self._store.audit(chat_id)
            except (ChatNotFound, ChatUnreadable):
                self.are_partial = True
        return self._read[chat_id]

    async def reported_by(self, chat_id: str, version: int) -> dict[str, int]:
        """Return the versions of the chats that this chat, at a version, has reported, directly and below."""
        reported: dict[str, int] = {}
        pending = [(chat_id, version)]
        while pending:
            name, until = pending.pop()
            if until <= reported.get(name, 0):
                continue
            reported[name] = until
            for below, answers in answers_in(await self.of(name)).items():
                pending += [(below, answer.version) for answer in answers if answer.at <= until]
        return reported

    async def sum_usage(self, chat_id: str, after: int, until: int) -> Usage:
        records = await self.of(chat_id)
        self.are_partial |= len(records) < max(after, until)
        if min(until, len(records)) <= after:
            return NO_USAGE
        try:
            entries = await self._store.ledger(chat_id)
        except (ChatNotFound, ChatUnreadable):
            self.are_partial = True
            return NO_USAGE
        # The ledger has the order of the log; later entries follow.
        versions = [record.version for record in records for write in record.writes if write.kind == "usage"]
        self.are_partial |= len(entries) < len(versions)
        used = NO_USAGE
        for version, entry in zip(versions, entries, strict=False):
            if after < version <= until:
                used += entry.usage
        return used


async def family_usage(store: ChatStore, chat_id: str) -> Usage:
    """Return the usage of a chat and all subagents below it, reported or not.

    It is partial if some of them are deleted or cannot be read.
    """
    used = (await store.facts(chat_id)).usage
    for name in subagents_in(await store.audit(chat_id)):
        try:
            used += await family_usage(store, name)
        except (ChatDeleted, ChatUnreadable):
            used = used.marked_partial()
        except ChatNotFound:
            continue
    return used
