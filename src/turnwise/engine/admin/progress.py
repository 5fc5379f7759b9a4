"""Progress of a chat's model call and tools, by its log and its events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from turnwise.engine.agents.agents import Agents
from turnwise.engine.jobs.retries import longer
from turnwise.engine.subagents.family import awaited_by
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatNotFound, ChatUnreadable
from turnwise.states.events import RetryEvent
from turnwise.states.facts import Facts
from turnwise.states.names import CallStatus, ChatState

_EVENTS: Final = 2000
"""The newest events, which are searched for the errors of earlier attempts."""
_FAILURES: Final = 5
_UNDELIVERED: Final = 1000
_MOST_SUBAGENTS: Final = 100


def words_of_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


class AttemptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an attempt."""

    agent: str
    model: str
    """The model in words, also without its agent; empty if unknown."""
    started: datetime | None
    last_part: datetime | None
    """When the last part came; `None` before the first."""
    times_out: datetime | None
    """When it times out; `None` without the agent, or without a limit."""
    failures: Sequence[tuple[str, datetime]]
    """The kinds and times of the errors that ended the step's last attempts."""

    @property
    def described(self) -> str:
        last = self.last_part
        failures = ", ".join(f"{kind} at {at:%H:%M:%S}" for kind, at in self.failures)
        words = [
            f"agent {self.agent!r}",
            self.model,
            "" if self.started is None else f"since {words_of_time(self.started)}",
            "no part has come" if last is None else f"the last part came at {words_of_time(last)}",
            "" if self.times_out is None else f"without another it times out at {words_of_time(self.times_out)}",
            f"earlier attempts failed: {failures}" if failures else "",
        ]
        return ", ".join(filter(None, words))


class CallProgress(msgspec.Struct, frozen=True):
    """A tool that runs."""

    name: str
    started: datetime | None
    limit: float | None
    """Seconds; `None` without the agent, or without a limit."""

    @property
    def described(self) -> str:
        since = "" if self.started is None else f" since {words_of_time(self.started)}"
        limit = "" if self.limit is None else f" (limit {self.limit:g} s)"
        return f"{self.name}{since}{limit}"


class Progress(msgspec.Struct, frozen=True):
    """The progress of a chat."""

    attempt: AttemptProgress | None = None
    calls: Sequence[CallProgress] = ()
    subagents: Sequence[Facts] = ()
    """The subagents at any depth that wait for answers of people or clients."""
    undelivered: Sequence[tuple[str, int]] = ()
    """Consumers that did not take events of the chat, and how many."""


async def progress_of(store: ChatStore, agents: Agents, facts: Facts) -> Progress:
    match facts.state:
        case ChatState.streaming if facts.step.attempt_open:
            progress = Progress(attempt=await _attempt(store, agents, facts))
        case ChatState.executing_tools:
            progress = Progress(calls=_calls(await store.audit(facts.chat_id), agents, facts))
        case ChatState.requires_action:
            progress = Progress(subagents=await _waiting_subagents(store, facts))
        case _:
            progress = Progress()
    return msgspec.structs.replace(progress, undelivered=await _undelivered(store, facts.chat_id))


async def _attempt(store: ChatStore, agents: Agents, facts: Facts) -> AttemptProgress:
    step = facts.step
    records = await store.audit(facts.chat_id)
    started = next((one.at for one in records if (one.step, one.attempt) == (step.number, step.attempt)), None)
    shown = await store.shown(facts.chat_id, step.number, step.attempt)
    last_part = shown[-1].at if shown else None
    limit = None
    if not agents.can_run(facts):
        model = await _last_model(store, facts)
    else:
        configuration = agents.at_hand(facts.profile).behind(len(facts.turn.fallback_from))
        settings = configuration.settings
        model = f"model {configuration.model.provider}:{configuration.model.name}"
        limit = longer(settings.startup_timeout if last_part is None else settings.idle_timeout, step.timeouts)
    since = last_part or started
    return AttemptProgress(
        agent=facts.agent_needed,
        model=model,
        started=started,
        last_part=last_part,
        times_out=None if limit is None or since is None else since + timedelta(seconds=limit),
        failures=await _failures(store, facts) if step.failures else (),
    )


async def _last_model(store: ChatStore, facts: Facts) -> str:
    """Return the chat's own model, or the one that answered last."""
    if facts.profile.model is not None:
        return f"model {facts.profile.model}"
    replies = [one for one in await store.prompt(facts.chat_id) if one.model is not None]
    return f"last answered by {replies[-1].provider}:{replies[-1].model}" if replies else ""


async def _failures(store: ChatStore, facts: Facts) -> Sequence[tuple[str, datetime]]:
    after, found = max(0, facts.last_seq - _EVENTS), list[tuple[str, datetime]]()
    while page := await store.events(facts.chat_id, after=after, limit=_EVENTS):
        retries = [one for one in page if isinstance(one, RetryEvent) and one.step == facts.step.number]
        found += [(one.error.kind, one.at) for one in retries if one.at is not None]
        after = page[-1].seq
        if not page.more:
            break
    return found[-_FAILURES:]


def _calls(records: Sequence[AuditRecord], agents: Agents, facts: Facts) -> Sequence[CallProgress]:
    starts = {
        write.id: record.at for record in records for write in record.writes if write.kind.startswith("call:started")
    }
    toolbox = agents.toolbox(facts.profile_of_calls) if agents.can_run(facts) else None
    return [
        CallProgress(call.name, starts.get(call.call_id), None if toolbox is None else toolbox.timeout(call))
        for call in facts.open_calls
        if call.is_local and call.status is CallStatus.started
    ]


async def _waiting_subagents(store: ChatStore, facts: Facts) -> Sequence[Facts]:
    found, names, seen = list[Facts](), sorted(awaited_by(facts)), set[str]()
    while names and len(seen) < _MOST_SUBAGENTS:
        name = names.pop(0)
        if name in seen:
            continue
        seen.add(name)
        with suppress(ChatNotFound, ChatUnreadable):
            subagent = await store.facts(name)
            if subagent.state is ChatState.requires_action:
                names += sorted(awaited_by(subagent))
                found += [subagent] if any(call.is_client for call in subagent.open_calls) else []
    return found


async def _undelivered(store: ChatStore, chat_id: str) -> Sequence[tuple[str, int]]:
    counts = [
        (name, sum(one.chat_id == chat_id for one in await store.undelivered(name, limit=_UNDELIVERED)))
        for name in [consumer.name for consumer in await store.consumers() if consumer.undelivered]
    ]
    return [(name, count) for name, count in counts if count]
