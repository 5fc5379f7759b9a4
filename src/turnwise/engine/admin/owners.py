"""Everything of one owner: exported as lines, imported, and erased. Each can be done again after it was cut off."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from pydantic import SkipValidation

from turnwise.engine.config.results import Budget, OwnerErasure, OwnerImport
from turnwise.persistence.archive.format import each_line, is_checkpoint
from turnwise.persistence.audit.record import object_of
from turnwise.states.errors import (
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ImportRefused,
    InvalidArgument,
    NotResting,
    TurnwiseError,
)
from turnwise.states.names import RESTING
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Key

FORMAT: Final = "turnwise-owner"
FORMAT_VERSION: Final = 1
_PAGE: Final = 500
_SETTLE_S: Final = 60.0
"""Seconds in which a chat that was interrupted has to come to rest."""


async def chat_ids_of(chats: Any, owner: str) -> list[str]:
    """Return the ids of an owner's chats, newest first: subagents before the chats that made them."""
    ids: list[str] = []
    after: str | None = None
    while True:
        page = await chats.list_chats(owner=owner, limit=_PAGE, after=after)
        ids += [chat.id for chat in page.items]
        if page.next is None:
            return ids
        after = page.next


async def export_owner(chats: Any, owner: str) -> AsyncGenerator[str, None]:
    """Yield everything of an owner as lines: a header with the budgets, each chat as `export_chat` has it, an end.

    Chats that are made meanwhile are left out, and so are those that are deleted before their turn.
    """
    budgets = [one for one in await chats.budgets(owner=owner) if one.owner == owner]
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "owner": owner, "budgets": budgets}
    yield msgspec.json.encode(header).decode() + "\n"
    count = 0
    for chat_id in await chat_ids_of(chats, owner):
        try:
            async with aclosing(chats.export_chat(chat_id)) as lines:
                async for line in lines:
                    yield line
        except (ChatDeleted, ChatNotFound):
            continue
        count += 1
    yield json.dumps({"owner": owner, "chats": count}) + "\n"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of an exported owner."""

    owner: str
    budgets: tuple[Budget, ...]


class OwnerImporter:
    """Imports what `export_owner` yielded. A chat that is there already is left as it is."""

    def __init__(self, chats: Any, lines: Iterable[str] | AsyncIterable[str]) -> None:
        self._chats = chats
        self._lines = each_line(lines)
        self._count = 0
        self._owner = ""
        self._end: dict[str, Any] | None = None

    async def run(self) -> OwnerImport:
        """Import all of it. After an `ImportRefused` the chats before the line are imported."""
        imported: list[str] = []
        present: list[str] = []
        async with aclosing(self._lines):
            header = self._header(await self._next())
            self._owner = header.owner
            # First, so that chats that go on at once spend from them.
            budgets = [await self._import_budget(one) for one in header.budgets]
            while (first := await self._next()) is not None and not self._is_end(first):
                rest = self._chat(first, self._checked_row(await self._next()))
                try:
                    imported.append((await self._chats.import_chat(rest)).id)
                except ChatExists as there:
                    present.append(there.chat_id)
                    async for _ in rest:  # to the next chat
                        pass
                finally:
                    await rest.aclose()
            if self._end != {"owner": self._owner, "chats": len(imported) + len(present)}:
                raise ImportRefused(self._count, "the end of the owner is missing: the file was cut off here")
            if await self._next() is not None:
                raise ImportRefused(self._count, "nothing may follow the end of the owner; all before it is imported")
        return OwnerImport(owner=self._owner, imported=imported, present=present, budgets=sum(budgets))

    def _checked_row(self, line: str | None) -> str | None:
        """Refuse the second line of a chat, its row, if it names another owner."""
        row = None if line is None else self._read(line).get("row")
        if isinstance(row, dict) and row.get("owner") != self._owner:
            raise ImportRefused(self._count, "the chat belongs to another owner than the header names")
        return line

    async def _chat(self, first: str, second: str | None) -> AsyncGenerator[str, None]:
        yield first
        line = second
        while line is not None:
            yield line
            if is_checkpoint(line):
                return
            line = await self._next()

    async def _next(self) -> str | None:
        async for line in self._lines:
            if not isinstance(line, str):
                raise InvalidArgument(f"lines[{self._count}]", f"must be a line of text; it was {type(line).__name__}")
            self._count += 1
            if line.strip():
                return line if line.endswith("\n") else f"{line}\n"
        return None

    def _header(self, line: str | None) -> _Header:
        fields = self._read(line)
        if fields.pop("format", None) != FORMAT or fields.pop("format_version", None) != FORMAT_VERSION:
            raise ImportRefused(self._count, f"the header of an exported owner belongs here, with format {FORMAT!r}")
        try:
            return msgspec.convert(fields, _Header)
        except msgspec.ValidationError as error:
            raise ImportRefused(self._count, f"the header of the owner is damaged: {error}") from None

    def _read(self, line: str | None) -> dict[str, Any]:
        try:
            return object_of(line or "")
        except ValueError as error:
            raise ImportRefused(self._count, f"it is no line of JSON: {error}") from None

    def _is_end(self, line: str) -> bool:
        fields = self._read(line)
        if fields.keys() != {"owner", "chats"}:
            return False
        self._end = fields
        return True

    async def _import_budget(self, budget: Budget) -> bool:
        """Set the limits of a budget, without its spending, unless the owner has one here."""
        if budget.owner != self._owner:
            raise ImportRefused(self._count, "a budget belongs to another owner than the header names")
        limits = {"tokens": budget.tokens, "cost": budget.cost, "per": budget.per, "timezone": budget.timezone}
        try:
            if await self._chats.budgets(owner=self._owner):
                return False
            await self._chats.set_budget(owner=self._owner, **limits)
        except InvalidArgument as error:
            raise ImportRefused(self._count, f"the header of the owner is damaged: {error}") from None
        return True


async def erase_owner(chats: Any, owner: str) -> OwnerErasure:
    """Interrupt and delete every chat of an owner, and remove the owner's budget."""
    deleted: list[str] = []
    left: dict[str, str] = {}
    overwritten = True
    while ids := [one for one in reversed(await chat_ids_of(chats, owner)) if one not in left]:
        for chat_id in ids:
            try:
                tombstone = await _delete(chats, chat_id)
            except (ChatDeleted, ChatNotFound):
                continue
            except (NotResting, TimeoutError, TurnwiseError) as error:
                left[chat_id] = str(error) or "it did not come to rest after an interrupt"
            else:
                deleted.append(chat_id)
                overwritten = overwritten and tombstone.overwritten
    if not left:
        await chats.set_budget(owner=owner, chat_id=None, tokens=None, cost=None, per=None, timezone="UTC")
    return OwnerErasure(owner=owner, deleted=deleted, left=left, overwritten=overwritten)


async def _delete(chats: Any, chat_id: str) -> Any:
    try:
        return await chats.delete_chat(chat_id)
    except NotResting:
        await chats.interrupt(chat_id, reason="the owner is erased")
        await chats.wait(chat_id, until=RESTING, timeout=_SETTLE_S)
        return await chats.delete_chat(chat_id)


class OwnerTransfer:
    """Everything of an owner as lines, and back: for chats that are exported and imported one by one."""

    @checked
    def export_owner(self, owner: Key) -> AsyncGenerator[str, None]:
        """Yield everything of an owner as lines: its budgets, and each chat as `export_chat` has it, subagents first.

        Chats that are made meanwhile are left out. `import_owner` takes the lines in.
        """
        return export_owner(self, owner)

    @checked
    async def import_owner(self, lines: Annotated[Iterable[str] | AsyncIterable[str], SkipValidation]) -> OwnerImport:
        """Import what `export_owner` yielded, chat by chat; those that are there already are left as they are.

        After a crash, import the same lines again: it goes on where it was. Of the owner's budgets the limits are taken
        over, but not what was spent; a chat's own budget comes whole.

        Raises:
            ImportRefused: a line is not what belongs there. The chats before it are imported.
        """
        return await OwnerImporter(self, lines).run()
