"""Lives of chats, driven by `decide` alone: the vocabulary of the tests of states."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from turnwise.states import triggers as t
from turnwise.states.arguments import Cut, Erasing, Partial, StepReply, SubagentAnswer, Summary
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.decide import Decision, decide
from turnwise.states.events import ErrorInfo, Event
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import Message, ModelFailure, Part, ScheduledMessage, TextPart, ToolCallPart
from turnwise.states.names import Audience, CallStatus, Executor, StopReason
from turnwise.states.triggers import TransitionContext, Trigger
from turnwise.states.usage import Usage
from turnwise.states.values.digests import digest
from turnwise.states.writes import CutHistory, EraseMessage, InsertBoundary, InsertMessage

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
SCHEDULED = ScheduledMessage(id="s", parts=(TextPart(text="wake up"),), due=NOW, by="system")
"""A schedule that is due at once."""
PROFILE = Profile(created_at=NOW)
BLANK = Facts(chat_id="c", profile=PROFILE)
ERROR = ErrorInfo(kind="overloaded", message="too many requests")
FAILURE = ModelFailure(provider="first", model="m1", kind="overloaded")
OVERFLOW = ErrorInfo(kind="context_overflow", message="the prompt is too long")
USAGE = Usage(input_tokens=10, output_tokens=5)


def own_of(trigger: type[Trigger], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are fields of the trigger."""
    known = {one.name for kind in (trigger, TransitionContext) for one in dataclasses.fields(kind)}
    return {name: value for name, value in arguments.items() if name in known}


def anything_for(trigger: type[Trigger], **arguments: Any) -> dict[str, Any]:
    """Return the arguments, with a value for every other required field of the trigger."""
    anything = {
        **dict.fromkeys(("token", "profile", "parts", "cut", "queued_id", "worker", "title", "metadata", "agent")),
        "results": (),
        "error": ERROR,
        "failure": FAILURE,
        "next_model": "m2",
        "reply": StepReply(parts=()),
        "call_id": "a",
        "outcome": CallOutcome(call_id="a", status=CallStatus.failed, output=None, is_error=True),
        "summary": summary_of("s"),
        "erasing": Erasing(),
        "schedule_id": "s",
        "message": SCHEDULED,
    }
    return own_of(trigger, anything | arguments)


def text_parts(text: str) -> tuple[Part, ...]:
    return (TextPart(text=text),)


def summary_of(text: str, *carried: int, folded: int = 2) -> Summary:
    """Return the result of a compaction: a new message of the user's role, and carried positions."""
    new = Message(id="", role="user", parts=text_parts(text), turn=0, step=0, created_at=NOW)
    return Summary(messages=(new, *carried), folded=folded)


def local(call_id: str, index: int = 0, **more: Any) -> ToolCall:
    """Return a planned local call; the life sets its step."""
    return ToolCall(call_id=call_id, name="search", arguments={}, executor=Executor.local, index=index, step=0, **more)


def client(call_id: str, index: int = 0, **more: Any) -> ToolCall:
    """Return a planned client call; the life sets its step."""
    return ToolCall(call_id=call_id, name="ask", arguments={}, executor=Executor.client, index=index, step=0, **more)


def delegated(call_id: str, index: int = 0, **more: Any) -> ToolCall:
    """Return a planned call for a subagent; the life sets its step."""
    own = {"executor": Executor.chat, "subagent": "research", **more}
    return ToolCall(call_id=call_id, name="ask_research", arguments={"task": "dig"}, index=index, step=0, **own)


class Life:
    """One chat, from its creation on. Every method fires one trigger, applies the decision and returns it."""

    def __init__(self, facts: Facts = BLANK, **limits: Any) -> None:
        self.facts = facts
        self.limits = Limits(**limits)
        self.now = NOW
        self.messages: list[Message] = []
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.asked: list[tuple[Facts, type[Trigger], dict[str, Any]]] = []
        """Every fired trigger with the facts before, refused ones too."""

    def fire(self, trigger: type[Trigger], **arguments: Any) -> Decision:
        """Decide and apply; refused triggers leave the life unchanged."""
        complete = {"now": self.now, "limits": self.limits, **arguments}
        self.asked.append((self.facts, trigger, complete))
        decision = decide(self.facts, trigger, **complete)
        self.facts = decision.facts
        self.decisions.append(decision)
        for event in decision.events:
            self.events.append(replace(event, seq=len(self.events) + 1))
        for write in decision.writes:
            match write:
                case InsertMessage(message):
                    self.messages.append(message)
                case CutHistory(position):
                    self.messages = [message for message in self.messages if message.position < position]
                case EraseMessage(blank):
                    self.messages = [blank if blank.id == known.id else known for known in self.messages]
                case _:
                    pass
        return decision

    @property
    def prompt(self) -> list[Message]:
        """The model's view: messages since the newest boundary, and those that it carries."""
        boundary, carried = self.facts.history.boundary, tuple[int, ...]()
        for decision in self.decisions:
            for write in decision.writes:
                if isinstance(write, InsertBoundary) and write.position == boundary:
                    carried = write.carried
        return [
            message
            for message in self.messages
            if message.audience is not Audience.user and (message.position > boundary or message.position in carried)
        ]

    def held(self, trigger: type[Trigger], **arguments: Any) -> Decision:
        """Fire as the holder of the lease, or without one."""
        token = self.facts.lease.token if self.facts.lease else None
        return self.fire(trigger, **({"token": token} | arguments))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # From outside

    def create(self) -> Decision:
        return self.fire(t.Create, profile=PROFILE)

    def send(self, text: str = "hello", **more: Any) -> Decision:
        if "client_id" in more:
            more["content_digest"] = digest(text)
        return self.fire(t.SendMessage, parts=text_parts(text), **more)

    def submit(self, *results: ToolResult) -> Decision:
        mine = (call for call in self.facts.open_calls if call.is_client)
        answers = results or tuple(ToolResult(call.call_id, "done") for call in mine)
        return self.fire(t.SubmitToolResults, results=answers)

    def help(self, call_id: str, **more: Any) -> Decision:
        subagent = SubagentAnswer(chat_id=f"subagent-{call_id}", version=7, head="7" * 64, usage=USAGE)
        arguments = {"results": (ToolResult(call_id, "found"),), "subagents": (subagent,), **more}
        return self.fire(t.SubmitToolResults, **arguments)

    def edit(self, message_id: str, text: str = "rather", *, usage: Usage | None = None) -> Decision:
        """Edit a message, with the cut that a store would find."""
        cut = next(message for message in self.messages if message.id == message_id)
        boundaries = [
            write.position
            for decision in self.decisions
            for write in decision.writes
            if isinstance(write, InsertBoundary) and write.position < cut.position
        ]
        boundary = max(boundaries, default=0)
        seen = [message for message in self.messages if boundary < message.position < cut.position]
        return self.fire(
            t.EditMessage,
            parts=text_parts(text),
            cut=Cut(
                position=cut.position,
                first_removed=cut.id,
                boundary=boundary,
                foldable=sum(message.audience != "user" for message in seen),
                history_version=self.facts.history_version,
            ),
            usage=usage,
        )

    def interrupt(self) -> Decision:
        return self.fire(t.Interrupt, reason="stop")

    # From the holder

    def claim(self) -> Decision:
        return self.fire(t.Claimed, worker="w")

    def attempt(self) -> Decision:
        return self.held(t.AttemptStarted)

    def discard(self, usage: Usage | None = None, error: ErrorInfo = ERROR, **failed: Any) -> Decision:
        retry_at = self.now + timedelta(seconds=1)
        return self.held(t.AttemptDiscarded, error=error, delay=1.0, retry_at=retry_at, usage=usage, **failed)

    def fall_back(self, error: ErrorInfo = ERROR, usage: Usage | None = None) -> Decision:
        """Fail the attempt so that the agent's next model is asked."""
        failure = replace(FAILURE, kind=error.kind)
        return self.held(t.FallbackStarted, failure=failure, error=error, next_model="m2", usage=usage)

    def overflow(self) -> Decision:
        """Refuse the prompt as too long."""
        return self.held(t.AttemptDiscarded, error=OVERFLOW)

    def reply(
        self,
        *calls: ToolCall,
        text: str = "hi",
        tokens: int | None = None,
        usage: Usage | None = USAGE,
        stop: StopReason = StopReason.end_turn,
        refused: bool = False,
        window: int = 100,
        **more: Any,
    ) -> Decision:
        """Finish the step with a reply that uses `tokens` of the window."""
        calls = tuple(replace(call, step=self.facts.step.number) for call in calls)
        reply = StepReply(
            parts=(text_parts(text) if text else ()) + parts_of(calls),
            calls=calls,
            usage=usage,
            stop_reason=stop,
            refused=refused,
            provider_reason="stop",
            context_tokens=tokens,
            context_limit=window,
        )
        return self.held(t.StepFinished, reply=reply, **more)

    def start(self, call_id: str) -> Decision:
        return self.held(t.CallStarted, call_id=call_id)

    def finish(self, call_id: str, *, fails: bool = False) -> Decision:
        status = CallStatus.failed if fails else CallStatus.succeeded
        outcome = CallOutcome(call_id=call_id, status=status, output="result", is_error=fails)
        return self.held(t.CallFinished, outcome=outcome)

    def run_tools(self) -> Decision:
        """Start and finish every open local call, then conclude."""
        for call in self.facts.open_calls:
            if call.is_local:
                self.start(call.call_id)
                self.finish(call.call_id)
        return self.held(t.ToolsFinished)

    def compact(self, *carried: int) -> Decision:
        summary = summary_of("In short.", *carried)
        return self.held(t.Compacted, summary=summary, usage=USAGE)

    def fail_to_compact(self, error: ErrorInfo = ERROR, *, declined: bool = False) -> Decision:
        return self.held(t.CompactionFailed, error=error, usage=Usage(), declined=declined)

    def settle(self, partial: Partial | None = None) -> Decision:
        return self.held(t.Settled, partial=partial)

    def fail(self, partial: Partial | None = None) -> Decision:
        return self.held(t.Failed, error=ERROR, partial=partial)

    def partial(self, *calls: ToolCall, text: str = "so far", usage: Usage | None = None) -> Partial:
        """Return the visible parts of the running attempt."""
        step = self.facts.step
        calls = tuple(replace(call, step=step.number) for call in calls)
        parts = (text_parts(text) if text else ()) + parts_of(calls)
        return Partial(step=step.number, attempt=step.attempt, parts=parts, calls=calls, usage=usage)


def parts_of(calls: tuple[ToolCall, ...]) -> tuple[Part, ...]:
    return tuple(
        ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments, executor=call.executor)
        for call in calls
    )


# Where a life may stand


def waiting(**limits: Any) -> Life:
    """Return a chat after its first answer."""
    life = streaming(**limits)
    life.reply()
    return life


def pending(**limits: Any) -> Life:
    life = Life(**limits)
    life.create()
    life.send()
    return life


def streaming(**limits: Any) -> Life:
    life = pending(**limits)
    life.claim()
    return life


def executing(*calls: ToolCall, tokens: int | None = None, **limits: Any) -> Life:
    """Return a chat that runs the calls, by default one local call."""
    life = streaming(**limits)
    life.reply(*(calls or (local("a"),)), tokens=tokens)
    return life


def asking(*calls: ToolCall, **limits: Any) -> Life:
    """Return a chat that waits for the client, by default with one call."""
    life = streaming(**limits)
    life.reply(*(calls or (client("a"),)))
    return life


def compacting(*calls: ToolCall, **limits: Any) -> Life:
    """Return a chat whose last reply crossed the threshold."""
    life = streaming(**limits)
    life.reply(*calls, tokens=90)
    if life.facts.state == "executing_tools":
        life.run_tools()
    return life


def refused(**limits: Any) -> Life:
    """Return a chat whose prompt was refused as too long, and which compacts."""
    life = streaming(**limits)
    life.overflow()
    return life


def unsettled(**limits: Any) -> Life:
    """Return a chat that was stopped while it streamed."""
    life = streaming(**limits)
    life.interrupt()
    return life


def interrupted(**limits: Any) -> Life:
    """Return a settled chat that was stopped in the middle of an answer."""
    life = unsettled(**limits)
    life.settle(life.partial())
    return life


def failed(**limits: Any) -> Life:
    """Return a chat that ended in an error before an answer."""
    life = streaming(**limits)
    life.fail()
    return life


def queued(life: Life, *texts: str) -> Life:
    """Return the life with queued messages, by default `later`."""
    for text in texts or ("later",):
        life.send(text)
    return life
