"""Checks a family: the logs of a chat, its subagents and theirs have to be sound, and to agree.

The log of a chat names the versions of the subagents that answered it, and the profile of a subagent, which its own log
covers, the version of its parent. Logs only grow, so they can be checked in any order, and while the family works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from turnwise.engine.agents.delegate import subagent_id
from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.engine.subagents.family import RecordedAnswer, answers_in, subagents_in, version_in
from turnwise.persistence.audit.record import log_of
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.rows import PROFILES
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatDeleted, ChatNotFound
from turnwise.states.facts import Profile


async def verify_family(store: ChatStore, chat_id: str) -> Verdict:
    """Verify a chat, its subagents and theirs, and that each log names the others as they were."""
    try:
        await _Family(store, chat_id).check()
    except _UnsoundError as error:
        return error.verdict
    return Verdict(ok=True)


class _UnsoundError(Exception):
    """A log of the family is not sound, or contradicts another."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.problem)


class _Log(NamedTuple):
    """The statements of a sound log about its chat and others, as of one moment."""

    chat_id: str
    hashes: Sequence[str]
    """Of its records, in order."""
    profile: Profile
    subagents: Sequence[str]
    """The subagents that it plans."""
    answers: Mapping[str, Sequence[RecordedAnswer]]
    """The answers of subagents, its own and theirs, by their ids."""

    def bears_out(self, version: int, head: str) -> bool:
        return 1 <= version <= len(self.hashes) and self.hashes[version - 1] == head

    @property
    def denial(self) -> str:
        return "but its log holds another, or none"


class _Grave(NamedTuple):
    """The place of a chat that is not there, with its tombstone if it was deleted."""

    tombstone: Tombstone | None

    def bears_out(self, version: int, head: str) -> bool:
        if self.tombstone is None:
            return False
        last, hashed = self.tombstone.records, self.tombstone.head
        return 1 <= version < last or (version == last and hashed in {None, head})

    @property
    def denial(self) -> str:
        return "but it is not there" if self.tombstone is None else "but its tombstone rules that out"


class _Family:
    """The logs of a chat, of its subagents and of theirs, each verified when it is read."""

    def __init__(self, store: ChatStore, chat_id: str) -> None:
        self._store = store
        self._top = chat_id
        self._logs: dict[str, _Log | _Grave] = {}
        """As they were read last."""

    async def check(self) -> None:
        """Check the log of each chat, and what it says of others.

        Raises:
            _UnsoundError: something is wrong.
            ChatNotFound: there is no such chat.
        """
        self._logs[self._top] = await self._log(self._top)
        names = [self._top]
        for name in names:
            log = await self._read(name)
            if isinstance(log, _Log):
                await self._check(log)
                names += log.subagents

    async def _check(self, log: _Log) -> None:
        if log.chat_id != self._top and not await self._has_parent(log):
            raise _contradiction(log.chat_id, "its profile names another parent, or its own as it never was", at=1)
        for name, answers in log.answers.items():
            for answer in answers:
                if not await self._stood(name, answer.version, answer.head):
                    denial = self._logs[name].denial
                    problem = f"its version {answer.version} answered chat {log.chat_id}, {denial}"
                    raise _contradiction(name, problem, at=answer.at)

    async def _has_parent(self, log: _Log) -> bool:
        parent, call, stood_at = log.profile.parent, log.profile.parent_call, log.profile.parent_version
        if parent is None or call is None or stood_at is None or subagent_id(parent, call) != log.chat_id:
            return False
        version, _, head = stood_at.partition(":")
        return await self._stood(parent, version_in(version), head)

    async def _stood(self, chat_id: str, version: int, head: str) -> bool:
        """Whether a chat stood there; its log is read again if it does not say so, as it may have grown."""
        if (await self._read(chat_id)).bears_out(version, head):
            return True
        del self._logs[chat_id]
        return (await self._read(chat_id)).bears_out(version, head)

    async def _read(self, chat_id: str) -> _Log | _Grave:
        if chat_id not in self._logs:
            try:
                self._logs[chat_id] = await self._log(chat_id)
            except ChatDeleted:
                self._logs[chat_id] = _Grave(await self._store.tombstone(chat_id))
            except ChatNotFound:
                self._logs[chat_id] = _Grave(None)
        return self._logs[chat_id]

    async def _log(self, chat_id: str) -> _Log:
        rows = await self._store.rows(chat_id)
        verdict = await run_in_thread(verify_stored, chat_id, rows)
        if verdict.ok:
            return await run_in_thread(_read_log, chat_id, rows)
        if chat_id != self._top:
            verdict = replace(verdict, problem=f"Subagent {chat_id}: {verdict.problem}")
        raise _UnsoundError(verdict)


def _contradiction(subagent: str, problem: str, *, at: int) -> _UnsoundError:
    return _UnsoundError(Verdict(ok=False, problem=f"Subagent {subagent}: {problem}.", position=at))


def _read_log(chat_id: str, rows: ChatRows) -> _Log:
    records = log_of(chat_id, rows.audit)
    return _Log(
        chat_id=chat_id,
        hashes=[record.hash for record in records],
        profile=PROFILES.load(rows.tables["profiles"][0]["body"], chat_id),
        subagents=subagents_in(records),
        answers=answers_in(records),
    )
