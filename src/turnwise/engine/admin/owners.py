"""Everything of one owner: exported as lines, imported, and erased. Each can be done again after it was cut off."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from turnwise.engine.config.results import Budget, OwnerErasure, OwnerImport
from turnwise.persistence.archive.format import each_line, is_checkpoint
from turnwise.states.errors import ChatDeleted, ChatExists, ChatNotFound, ImportRefused, NotResting, TurnwiseError
from turnwise.states.names import RESTING

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


class OwnerImporter:
    """Imports what `export_owner` yielded. A chat that is there already is left as it is."""

    def __init__(self, chats: Any, lines: Iterable[str] | AsyncIterable[str]) -> None:
        self._chats = chats
        self._lines = each_line(lines)
        self._count = 0
        self._end: dict[str, Any] | None = None

    async def run(self) -> OwnerImport:
        """Import all of it.

        Raises:
            ImportRefused: a line is not what belongs there, or the end is missing. The chats before it are imported.
        """
        imported: list[str] = []
        present: list[str] = []
        async with aclosing(self._lines):
            header = self._read(await self._next())
            if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
                raise ImportRefused(
                    self._count, f"the header of an exported owner belongs here, with format {FORMAT!r}"
                )
            while (first := await self._next()) is not None and not self._is_end(first):
                rest = self._chat(first)
                try:
                    imported.append((await self._chats.import_chat(rest)).id)
                except ChatExists as there:
                    present.append(there.chat_id)
                    async for _ in rest:  # to the next chat
                        pass
                finally:
                    await rest.aclose()
            if self._end is None or self._end.get("chats") != len(imported) + len(present):
                raise ImportRefused(self._count, "the end of the owner is missing: the file was cut off here")
            budgets = [await self._import_budget(one) for one in header.get("budgets", [])]
        return OwnerImport(owner=header["owner"], imported=imported, present=present, budgets=sum(budgets))

    async def _chat(self, first: str) -> AsyncGenerator[str, None]:
        line: str | None = first
        while line is not None:
            yield line
            if is_checkpoint(line):
                return
            line = await self._next()

    async def _next(self) -> str | None:
        async for line in self._lines:
            self._count += 1
            if line.strip():
                return line if line.endswith("\n") else f"{line}\n"
        return None

    def _read(self, line: str | None) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line or "", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ImportRefused(self._count, f"it is no line of JSON: {error}") from None

    def _is_end(self, line: str) -> bool:
        fields = self._read(line)
        if fields.keys() != {"owner", "chats"}:
            return False
        self._end = fields
        return True

    async def _import_budget(self, fields: dict[str, Any]) -> bool:
        """Set the limits of a budget, unless the owner has one here; what was spent is not taken over."""
        budget = msgspec.convert(fields, Budget, strict=False)
        if [one for one in await self._chats.budgets(owner=budget.owner) if one.owner == budget.owner]:
            return False
        limits = {"tokens": budget.tokens, "cost": budget.cost, "per": budget.per, "timezone": budget.timezone}
        await self._chats.set_budget(owner=budget.owner, **limits)
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

    def export_owner(self, owner: str) -> AsyncGenerator[str, None]:
        """Yield everything of an owner as lines: its budgets, and each chat as `export_chat` has it, subagents first.

        Chats that are made meanwhile are left out. `import_owner` takes the lines in.
        """
        return export_owner(self, owner)

    async def import_owner(self, lines: Iterable[str] | AsyncIterable[str]) -> OwnerImport:
        """Import what `export_owner` yielded, chat by chat; those that are there already are left as they are.

        After a crash, import the same lines again: it goes on where it was. Of the owner's budgets the limits are taken
        over, but not what was spent; a chat's own budget comes whole.

        Raises:
            ImportRefused: a line is not what belongs there. The chats before it are imported.
        """
        return await OwnerImporter(self, lines).run()
