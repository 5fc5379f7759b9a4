"""Handlers of the methods that read chats and their files, in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from turnwise.engine.admin.diagnose import find_issues
from turnwise.engine.admin.explain import Circumstances, Explanation, explanation
from turnwise.engine.admin.progress import Progress, progress_of
from turnwise.engine.admin.usage_report import UsageReport
from turnwise.engine.blobs.loaded import without_refused
from turnwise.engine.blobs.lost import verify_files
from turnwise.engine.blobs.streams import FileContent
from turnwise.engine.chats.chats import LocalChats
from turnwise.engine.chats.declaration import CommandCall
from turnwise.engine.chats.reports import state_of
from turnwise.engine.config.results import (
    Budget,
    Chat,
    Compaction,
    UsageEntry,
    UsageSum,
    budget_of,
    chat_of,
)
from turnwise.engine.isolation.clock import fail_after
from turnwise.engine.isolation.tasks import Lifetime, run_in_thread
from turnwise.engine.jobs.request import to_answer
from turnwise.engine.prompt.history import sendable
from turnwise.engine.prompt.views import (
    HistoryView,
    compactions_of,
    raw_view,
    transcript_of,
    transcript_pages,
    user_view,
)
from turnwise.engine.subagents.answer import family_usage
from turnwise.engine.subagents.family import archived_subagents
from turnwise.engine.subagents.verification import verify_family
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.subscriptions.follow import follow as follow_events
from turnwise.engine.subscriptions.follow import wait_for
from turnwise.engine.transactions.runtime import Runtime
from turnwise.persistence.audit.checkpoints import published
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.shares import Lane, ReachedCap
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states.budgets import keys_of
from turnwise.states.errors import ChatUnreadable, InvalidArgument, TurnwiseError
from turnwise.states.events import Event
from turnwise.states.facts import Facts
from turnwise.states.messages import FilePart, Message
from turnwise.states.names import RESTING, ChatState, UsageKey
from turnwise.states.transcript import Transcript
from turnwise.states.usage import Usage
from turnwise.states.values.plain import shown
from turnwise.time_zones import time_zone


class ReportHandlers(LocalChats):
    """The reading methods of an open engine's chats."""

    def __init__(self, runtime: Runtime, broadcaster: Broadcaster, lifetime: Lifetime) -> None:
        self._runtime = runtime
        self._broadcaster = broadcaster
        self._lifetime = lifetime

    async def _run(self, call: CommandCall) -> Any:
        self._lifetime.check_loop()
        with self._refusals_of(call.command.name):
            return await getattr(self, call.command.name)(**call.arguments)

    def _follow(self, call: CommandCall) -> AsyncGenerator[Any, None]:
        return self._lifetime.here(getattr(self, call.command.name)(**call.arguments))

    @contextmanager
    def _refusals_of(self, command: str) -> Iterator[None]:
        """Report the errors of a method to the observers."""
        try:
            yield
        except TurnwiseError as error:
            self._runtime.observers.refused(command, error)
            raise

    @property
    def _store(self) -> ChatStore:
        return self._runtime.store

    async def get_chat(self, chat_id: str) -> Chat:
        return chat_of(await self._store.facts(chat_id))

    async def messages(self, chat_id: str, *, view: HistoryView = "user") -> list[Message]:
        facts = await self._store.facts(chat_id)
        if view == "model":
            at_hand = self._runtime.agents.at_hand(facts.profile)
            messages = sendable(await self._store.prompt(chat_id))
            messages = without_refused(messages, facts.left_out, at_hand.model) if facts.left_out else messages
            return to_answer(at_hand, facts, messages) if _is_continued(facts) else messages
        history = await self._store.history(chat_id)
        return user_view(history) if view == "user" else raw_view(history)

    async def transcript(self, chat_id: str) -> Transcript:
        return transcript_of(await self._store.snapshot(chat_id))

    def transcript_pages(self, chat_id: str) -> AsyncGenerator[Transcript, None]:
        return transcript_pages(self._store, chat_id)

    async def compactions(self, chat_id: str) -> list[Compaction]:
        await self._store.facts(chat_id)
        return compactions_of(await self._store.history(chat_id), await self._store.ledger(chat_id))

    async def usage(self, chat_id: str) -> list[UsageEntry]:
        await self._store.facts(chat_id)
        return [
            UsageEntry(entry.purpose, entry.turn, entry.step, entry.attempt, entry.usage)
            for entry in await self._store.ledger(chat_id)
        ]

    async def usage_report(
        self,
        *,
        by: Sequence[UsageKey] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        owner: str | None = None,
        timezone: str = "UTC",
    ) -> list[UsageSum]:
        report = UsageReport(tuple(dict.fromkeys(by)), time_zone(timezone), since=since, until=until)
        return await report.read(self._store, owner)

    async def family_usage(self, chat_id: str) -> Usage:
        return await family_usage(self._store, chat_id)

    async def argument_schemas(self, chat_id: str) -> dict[str, Mapping[str, Any]]:
        facts = await self._store.facts(chat_id)
        toolbox = self._runtime.agents.toolbox(facts.profile_of_calls)
        return toolbox.argument_schemas(facts.open_calls, facts.profile.client_tools)

    def events(
        self, chat_id: str, *, after: int = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event, None]:
        return follow_events(self._store, self._broadcaster, chat_id, after=after, live=follow, until_rest=until_rest)

    async def wait(
        self,
        chat_id: str,
        *,
        until: Collection[ChatState | str] = RESTING,
        timeout: float | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        arrived = partial(_has_arrived, frozenset(state_of(state, "until") for state in until))
        with fail_after(timeout or None):
            at_once = timeout == 0
            return chat_of(await wait_for(self._store, self._broadcaster, chat_id, arrived, at_once=at_once))

    async def explain(self, chat_id: str) -> Explanation:
        store = self._store
        rest, issues = await store.rest(chat_id), await find_issues(store, chat_id)
        try:
            lease = await store.lease_expiry(chat_id)
        except ChatUnreadable:
            lease = None
        archived = await archived_subagents(store, rest.facts)
        issues = issues or rest.issues
        cap = None if issues else await self._reached_cap(rest.facts)
        shown: list[Budget] = []
        try:
            budgets = await store.budgets(keys=keys_of(chat_id, rest.facts.profile.owner))
            shown = [budget_of(stored) for stored in budgets]
        except ChatUnreadable as error:
            issues = issues or (IntegrityIssue(error.column, error.problem),)
        progress = None if issues else await progress_of(store, self._runtime.agents, rest.facts)
        standing = Circumstances(archived, cap, shown, progress or Progress())
        return explanation(rest.facts, lease, standing, issues=issues)

    async def _reached_cap(self, facts: Facts) -> ReachedCap | None:
        caps = self._runtime.settings.caps
        if facts.state is not ChatState.pending or not caps:
            return None
        lane = Lane(facts.agent_needed, facts.capped_model)
        return caps.reached(facts.fair_key, lane, await self._store.at_work())

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        await self._store.facts(chat_id)
        return await self._store.audit(chat_id)

    async def verify(
        self,
        chat_id: str,
        *,
        family: bool = False,
        files: bool = False,
        checkpoints: str | None = None,
        public_key: bytes | None = None,
    ) -> Verdict:
        elsewhere = published(checkpoints, public_key)
        verdict = await verify_family(self._store, chat_id) if family else None
        rows = await self._store.rows(chat_id)
        if verdict is None or (verdict.ok and elsewhere is not None):
            verdict = await run_in_thread(verify_stored, chat_id, rows, elsewhere)
        if files and verdict.ok:
            files_verdict = await verify_files(self._runtime.files, rows)
            return verdict if files_verdict.ok else files_verdict
        return verdict

    # Files

    async def put_file(
        self, chat_id: str, content: FileContent, *, media_type: str | None = None, name: str | None = None
    ) -> FilePart:
        return await self._runtime.files.put(chat_id, content, media_type, name)

    async def open_file(self, chat_id: str, file: FilePart | str) -> AsyncGenerator[bytes, None]:
        if not isinstance(file, FilePart | str):
            raise InvalidArgument("file", f"must be a FilePart or the digest of a file; it was {shown(file)}")
        async with aclosing(self._runtime.files.read(chat_id, file)) as pieces:
            async for piece in pieces:
                yield piece


def _has_arrived(states: Collection[ChatState], facts: Facts) -> bool:
    if states == RESTING:
        return facts.resting
    if facts.stored_state is not None or facts.state not in states:
        return False
    return facts.state is not ChatState.interrupted or facts.settled


def _is_continued(facts: Facts) -> bool:
    """Whether the next request holds the present history, without a result or queued message before it."""
    return facts.history.unfinished and not facts.open_calls and not (facts.resting and facts.queue)
