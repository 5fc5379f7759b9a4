"""Diagnoses a store: finds chats that cannot be read, break an invariant or miss a file, with advice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from turnwise.engine.blobs.files import Files
from turnwise.engine.blobs.lost import LostFile, MissingFileScanner
from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.persistence.audit.checkpoints import Contradiction, Published, Stood, covered_by
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.chat_rows import Rows
from turnwise.persistence.integrity.examine import examine
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.rows import BUDGETS
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.events import ErrorInfo
from turnwise.states.model_errors import REPAIRED
from turnwise.states.triggers import Repaired
from turnwise.states.values.values import Value

CHATS_PER_READ: Final = 200
_MOST_CHARACTERS: Final = 2000

_REPAIRABLE: Final = (
    "`turnwise doctor --repair CHAT` brings the chat to `error`, keeps what can be read and puts the rest aside;"
    " `turnwise doctor --export CHAT FILE` writes its rows down and changes nothing"
)
_EVIDENCE: Final = (
    "the audit log is evidence and is never repaired: restore it from a backup, or keep"
    " `turnwise doctor --export CHAT FILE`; the chat itself is not concerned"
)
_ORPHANS: Final = "no chat reads these rows: look at them by SQL, and delete them or give them back their chat"
_LOST: Final = (
    "restore the file store from a backup, or put the same bytes again with `put_file` if they are gone, or let go of"
    " the file with `turnwise erase CHAT MESSAGE`; until then the chat goes on, and its model is told what is missing"
)
_TAKEN_BACK: Final = (
    "rows were deleted by SQL, or the database has taken commits back (a restored backup, a failover to a standby that"
    " was behind): restore what is missing; docs/postgresql.md says how a failover loses nothing"
)
_STUCK: Final = "`turnwise undelivered {name}` lists them, with `--again` they are delivered once more"
_BUDGET: Final = "chats that spend this budget cannot go on: set its limits again, or remove it, with `turnwise budget`"
_BEHIND: Final = "start the process that delivers for it, or forget it with `drop_consumer`"
_UNRELIABLE: Final = "compare with the checkpoints as they were published, and with the key that signed them"
_NOT_LOOKED_AT: Final = (
    "the files of chats were not looked at, or not all of them: name the folder that holds them with"
    " `turnwise doctor --file-folder PATH` or Engine(files=...), and see that it can be reached"
)


class Diagnosis(Value, frozen=True):
    """The issues and lost files of one chat, or the issues of rows that belong to no chat."""

    chat_id: str | None
    """`None` for rows that belong to no chat."""
    issues: tuple[IntegrityIssue, ...]
    advice: str
    """Ways to mend it."""
    files: tuple[LostFile, ...] = ()
    """The files that are gone or damaged. They make no chat unreadable."""


async def diagnose(files: Files, *, read: bool, elsewhere: Published | None = None) -> AsyncGenerator[Diagnosis, None]:
    """Yield a diagnosis of each chat with an issue or a lost file; with `read`, compare the bytes of files.

    Then one of each chat that contradicts published checkpoints, and of each consumer that is stuck or behind. If the
    files cannot be checked, the last diagnosis says so.
    """
    store, scanner, after = files.store, MissingFileScanner(files, verify_content=read), 0
    while page := await store.chat_ids(after=after, limit=CHATS_PER_READ):
        for number, chat_id in page:
            after = number
            try:
                diagnosis = await _diagnosis(chat_id, scanner)
            except ChatNotFound:
                continue  # deleted meanwhile
            if diagnosis.issues or diagnosis.files:
                yield diagnosis
    if elsewhere is not None:
        async for diagnosis in _compare_published(store, elsewhere):
            yield diagnosis
    async for diagnosis in _diagnose_consumers(store):
        yield diagnosis
    async for diagnosis in _diagnose_rows(store):
        yield diagnosis
    if scanner.failure is not None:
        yield Diagnosis(None, (IntegrityIssue("file_store.name", scanner.failure.problem),), _NOT_LOOKED_AT)


async def _diagnose_rows(store: ChatStore) -> AsyncGenerator[Diagnosis, None]:
    issues = await store.orphans()
    budgets = tuple(issue for issue in issues if issue.column == BUDGETS.column)
    orphans = tuple(issue for issue in issues if issue not in budgets)
    for found, advice in ((budgets, _BUDGET), (orphans, _ORPHANS)):
        if found:
            yield Diagnosis(None, found, advice)


async def _diagnose_consumers(store: ChatStore) -> AsyncGenerator[Diagnosis, None]:
    for consumer in await store.consumers():
        name = consumer.name
        if consumer.undelivered:
            problem = f"{consumer.undelivered} event(s) were not delivered to {name!r}: its handler did not take them"
            advice = _STUCK.format(name=name)
            yield Diagnosis(None, (IntegrityIssue("undelivered.error", problem),), advice)
        behind = 0 if consumer.delivering else (await store.numbers()).last - consumer.position
        if behind > 0:
            problem = f"{name!r} is {behind} commit(s) behind, and no process delivers for it"
            yield Diagnosis(None, (IntegrityIssue("consumers.position", problem),), _BEHIND)


async def _compare_published(store: ChatStore, elsewhere: Published) -> AsyncGenerator[Diagnosis, None]:
    try:
        checkpoints = await run_in_thread(elsewhere.by_chat)
    except ValueError as error:
        yield Diagnosis(None, (IntegrityIssue("checkpoints", f"they cannot be relied on: {error}"),), _UNRELIABLE)
        return
    for chat_id, of_chat in checkpoints.items():
        issue = await _find_contradiction(store, chat_id, of_chat)
        if issue is not None:
            yield Diagnosis(chat_id, (issue,), _TAKEN_BACK)


async def _find_contradiction(store: ChatStore, chat_id: str, checkpoints: Sequence[Stood]) -> IntegrityIssue | None:
    counted = max(checkpoint.count for checkpoint in checkpoints)
    try:
        await store.head(chat_id)
        covered_by(checkpoints, [record.hash for record in await store.audit(chat_id)])
    except Contradiction as contradiction:
        return IntegrityIssue("audit.hash", str(contradiction))
    except ChatDeleted:
        tombstone = await store.tombstone(chat_id)
        if tombstone is not None and tombstone.records < counted:
            return IntegrityIssue(
                "tombstones.records", f"a checkpoint counts {counted} records, this {tombstone.records}"
            )
    except ChatNotFound:
        problem = f"a checkpoint counts {counted} records of it, and the store knows no such chat, not even as deleted"
        return IntegrityIssue("chats.id", problem)
    except ChatUnreadable:
        pass  # found already
    return None


async def _diagnosis(chat_id: str, scanner: MissingFileScanner) -> Diagnosis:
    rows = await scanner.files.store.raw_rows(chat_id)
    issues, lost = await _find_issues(chat_id, rows), await scanner.find_missing(chat_id, rows)
    if not issues:  # a log may be readable and wrong: a token granted to two workers, for example
        verdict = await run_in_thread(verify_records, await scanner.files.store.audit(chat_id))
        if not verdict.ok:
            issues = (IntegrityIssue("audit.body", verdict.problem or "the log does not verify"),)
    advice = [*([advice_on(issues)] if issues else []), *([_LOST] if lost else [])]
    return Diagnosis(chat_id, issues, "; ".join(advice), lost)


async def find_issues(store: ChatStore, chat_id: str) -> tuple[IntegrityIssue, ...]:
    return await _find_issues(chat_id, await store.raw_rows(chat_id))


async def _find_issues(chat_id: str, rows: Rows) -> tuple[IntegrityIssue, ...]:
    found = await run_in_thread(examine, chat_id, rows)
    return tuple(issue for _, issue in found)


def is_repairable(issues: Sequence[IntegrityIssue]) -> bool:
    """Whether a repair would mend some of the issues; it does not mend the audit log."""
    return any(not issue.column.startswith("audit.") for issue in issues)


def advice_on(issues: Sequence[IntegrityIssue]) -> str:
    if all(issue.column == BUDGETS.column for issue in issues):
        return _BUDGET
    in_log = any(issue.column.startswith("audit.") for issue in issues)
    if not is_repairable(issues):
        return _EVIDENCE
    return f"{_REPAIRABLE}; {_EVIDENCE}" if in_log else _REPAIRABLE


def summary_of(issues: Sequence[IntegrityIssue]) -> str:
    return "; ".join(f"{issue.column}: {issue.problem}" for issue in issues)[:_MOST_CHARACTERS]


def repair(issues: Sequence[IntegrityIssue], unit: UnitOfWork) -> None:
    """Bring the readable rest of a chat to `error`."""
    summary = summary_of(issues)
    error = ErrorInfo(kind=REPAIRED, message=f"repaired, and put aside what could not be read: {summary}")
    unit.fire(Repaired(error=error), reason=summary)
