"""A log with everything: a life of the pure machine in which each trigger fires and each state is entered."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from support.life import own_of
from turnwise.persistence.audit.record import GENESIS, AuditRecord, entry_of, export, hash_of, record_in
from turnwise.states import triggers as t
from turnwise.states.arguments import Cut, Erasing, Partial, StepReply, SubagentAnswer, Summary
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.decide import decide
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import Message, Part, TextPart, ToolCallPart
from turnwise.states.names import CallStatus, Executor
from turnwise.states.triggers import Trigger
from turnwise.states.usage import Usage

START = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
LIMITS = Limits(context_limit=1000, action_deadline=60)
ERROR = ErrorInfo(kind="defect", message="the stored chat broke a promise", retryable=False)


class Life:
    """Drives the pure machine as a runner would, and records the log of a store."""

    def __init__(self) -> None:
        self.facts = Facts(chat_id="chat-1", profile=Profile(created_at=START))
        self.records: list[AuditRecord] = []
        self.now = START
        self.first = ""
        """The first message of the history."""
        self.fire(t.Create, profile=self.facts.profile)

    def fire(self, trigger: type[Trigger], **arguments: Any) -> None:
        self.now += timedelta(seconds=1)
        if self.facts.lease is not None:
            arguments.setdefault("token", self.facts.lease.token)
        decision = decide(self.facts, trigger, now=self.now, limits=LIMITS, **own_of(trigger, arguments))
        prev = self.records[-1].hash if self.records else GENESIS
        entry = entry_of(decision, prev=prev, at=self.now)
        self.records.append(record_in(entry, self.facts.chat_id, prev=prev))
        self.facts = decision.facts
        if not self.first or trigger is t.EditMessage:
            inserted = (write.id for write in decision.writes if write.kind == "message")
            self.first = next(inserted, "")

    def say(self, text: str, **arguments: Any) -> None:
        arguments = {"content_digest": text, "client_id": text, **arguments}
        self.fire(t.SendMessage, parts=(TextPart(text=text),), **arguments)

    def claim(self) -> None:
        self.fire(t.Claimed, worker="w1")

    def answer(self, text: str, *, tokens: int | None = None, calls: tuple[ToolCall, ...] = ()) -> None:
        parts: tuple[Part, ...] = (TextPart(text=text), *map(part_of, calls))
        self.fire(t.StepFinished, reply=StepReply(parts=parts, calls=calls, context_tokens=tokens))

    def call(self, call_id: str, **arguments: Any) -> ToolCall:
        arguments = {"executor": Executor.local, "index": 0, "step": self.facts.step.number, **arguments}
        return ToolCall(call_id=call_id, name="look", arguments={"at": call_id}, **arguments)

    def run(self, call_id: str) -> None:
        self.fire(t.CallStarted, call_id=call_id)
        self.finish(call_id)

    def finish(self, call_id: str) -> None:
        outcome = CallOutcome(call_id=call_id, status=CallStatus.succeeded, output=1, is_error=False)
        self.fire(t.CallFinished, outcome=outcome)


def part_of(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments, executor=call.executor)


def blank(message_id: str) -> Message:
    return Message(id=message_id, role="user", parts=(), turn=1, step=0, created_at=START, position=1, erased=True)


def _lived() -> list[AuditRecord]:
    life = Life()
    _use_tools(life)
    _queue_and_interrupt(life)
    _compact(life)
    _crash(life)
    _edit_fail_and_rest(life)
    _break_and_repair(life)
    _ask_a_subagent(life)
    return life.records


def summary_of(text: str) -> Summary:
    new = Message(id="", role="user", parts=(TextPart(text=text),), turn=0, step=0, created_at=START)
    return Summary(messages=(new,), folded=2)


def _use_tools(life: Life) -> None:
    life.say("look around")
    life.claim()
    life.fire(t.AttemptDiscarded, error=ERROR, delay=1.0, retry_at=life.now)
    life.fire(t.AttemptStarted)
    client = life.call("c3", executor=Executor.client, index=2)
    life.answer("I look", calls=(life.call("c1"), life.call("c2", index=1), client))
    life.run("c2")
    life.say("and then", client_id=None)
    life.run("c1")
    life.fire(t.ToolsFinished)
    life.fire(t.SubmitToolResults, results=(ToolResult("c3", "seen"),))
    life.claim()
    life.answer("I saw")
    life.claim()
    life.answer("Then nothing")


def _queue_and_interrupt(life: Life) -> None:
    life.say("tell me more")
    life.claim()
    life.say("second")
    life.say("third")
    life.fire(t.EditQueued, queued_id=life.facts.queue[1].id, parts=(TextPart(text="3rd"),))
    life.say("at once", when_busy="interrupt")
    asked = life.call("c4")
    partial = Partial(step=1, attempt=1, parts=(TextPart(text="Mo"), part_of(asked)), calls=(asked,))
    life.fire(t.Settled, partial=partial)
    life.claim()
    life.fire(t.PromoteQueued, queued_id=life.facts.queue[1].id)
    life.fire(t.Settled)
    life.claim()
    life.fire(t.Interrupt, reason="enough")
    life.fire(t.Released)
    life.claim()
    life.fire(t.Settled)
    life.fire(t.DeleteQueued, queued_id=life.facts.queue[0].id)


def _compact(life: Life) -> None:
    life.fire(t.Resume)
    life.claim()
    life.answer("long", tokens=900)
    life.fire(t.Compacted, summary=summary_of("all so far"))
    life.answer("done", tokens=10)
    life.fire(t.RequestCompaction)
    life.claim()
    life.fire(t.CompactionFailed, error=ERROR)
    life.fire(t.ClearContext)


def _crash(life: Life) -> None:
    life.say("try this")
    life.claim()
    again = life.call("c6", index=1, crash="at_least_once")
    life.answer("ok", calls=(life.call("c5"), again))
    life.fire(t.CallStarted, call_id="c5")
    life.fire(t.CallStarted, call_id="c6")
    life.fire(t.LeaseExpired)
    life.claim()
    life.run("c6")
    life.fire(t.ToolsFinished)
    life.answer("tried", calls=(life.call("c7", executor=Executor.client),))
    life.now += timedelta(seconds=60)
    life.fire(t.DeadlinePassed)
    life.claim()


def _edit_fail_and_rest(life: Life) -> None:
    life.answer("once more", calls=(life.call("c8"),))
    cut = Cut(position=1, first_removed="m1", boundary=0, foldable=0, history_version=life.facts.history_version)
    life.fire(t.Released)
    life.fire(t.EditMessage, cut=cut, parts=(TextPart(text="look here"),))
    life.claim()
    life.fire(t.Failed, error=ERROR)
    life.fire(t.Archived)
    life.fire(t.Unarchived)
    life.fire(t.Renamed, title="A life")
    life.fire(t.MetadataChanged, metadata={"mood": "calm"})
    life.fire(t.Configured, agent="research")
    life.fire(t.MessageErased, erasing=Erasing(messages=(blank("m1"),)))
    life.fire(t.Imported)


def _break_and_repair(life: Life) -> None:
    life.say("again")
    life.claim()
    life.answer("yes", calls=(life.call("c9"),))
    life.facts = replace(life.facts, stored_state="dreaming")
    life.fire(t.Repaired, error=ERROR)
    life.say("still there?")
    life.claim()
    life.answer("yes")


def _ask_a_subagent(life: Life) -> None:
    life.say("ask around")
    life.claim()
    life.answer("I ask", calls=(life.call("h1", executor=Executor.chat, subagent="research"),))
    subagent = SubagentAnswer(chat_id="chat-2", version=3, head="7" * 64, usage=Usage())
    life.fire(t.SubmitToolResults, results=(ToolResult("h1", "heard"),), subagents=(subagent,))
    life.claim()
    life.answer("I heard")


LOG = _lived()
TEXT = export("chat-1", LOG)


def rehashed(records: list[AuditRecord]) -> list[AuditRecord]:
    """Return the records renumbered and rehashed, as a forger of the whole log would."""
    chained: list[AuditRecord] = []
    for version, record in enumerate(records, start=1):
        prev = chained[-1].hash if chained else GENESIS
        moved = dataclasses.replace(record, version=version, prev=prev)
        chained.append(dataclasses.replace(moved, hash=hash_of(moved)))
    return chained


def place_of(trigger: type[Trigger]) -> int:
    return next(place for place, record in enumerate(LOG) if record.trigger == trigger.name)


def forgery(place: int, **changes: Any) -> str:
    """Change one record, rehash everything, and return the log."""
    records = [*LOG]
    records[place] = dataclasses.replace(records[place], **changes)
    return export("chat-1", rehashed(records))
