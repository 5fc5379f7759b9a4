"""Handlers: the methods of `LocalChats` in this process, on behalf of one actor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal

from msgspec.structs import replace

from turnwise.engine.admin.erase import Erasable, Erasure, parse_request
from turnwise.engine.admin.owners import erase_owner
from turnwise.engine.admin.transfer import exported
from turnwise.engine.agents.agent import Output
from turnwise.engine.chats.chats import LOCAL_COMMANDS
from turnwise.engine.chats.declaration import UNCHANGED, Unchanged, changes_of
from turnwise.engine.chats.reports import state_of
from turnwise.engine.chats.turns import Question
from turnwise.engine.commands.change_handlers import ChangeHandlers
from turnwise.engine.commands.create import ChatCreation, check_client_tools
from turnwise.engine.commands.profile_changes import Configuring, Labelling, MarkingRead
from turnwise.engine.commands.report_handlers import ReportHandlers
from turnwise.engine.config.results import (
    Budget,
    Chat,
    ChatChange,
    ChatCounts,
    InboxItem,
    OwnerErasure,
    Page,
    TurnResult,
    WorkerInfo,
    budget_of,
    chat_of,
)
from turnwise.engine.subagents.family import subagents_of, top_of
from turnwise.engine.subscriptions.consumer import ConsumerOptions, Deliveries, Handler, check_kinds
from turnwise.engine.subscriptions.follow import explain_closing
from turnwise.engine.subscriptions.follow import follow as follow_events
from turnwise.engine.subscriptions.turns import TurnReader, turn_result
from turnwise.engine.worker.reporter import list_workers
from turnwise.logger import logger
from turnwise.persistence.list_filter import ListFilter
from turnwise.persistence.reading import Consumer, Undelivered
from turnwise.persistence.stored_chat import PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.budgets import StoredBudget, key_of_owner, keys_of
from turnwise.states.calls import ClientTool
from turnwise.states.errors import ChatDeleted, ChatNotFound, InvalidArgument
from turnwise.states.events import PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import Answerer, ChatState
from turnwise.states.transcript import fold
from turnwise.states.values.checked import fit
from turnwise.states.values.limits import at_most
from turnwise.states.values.plain import shown
from turnwise.time_zones import time_zone

_PAGE: Final = 500
_UNDELIVERED: Final = 1000
"""The most events that a list of undelivered ones has."""


class Handlers(ChangeHandlers):
    """The chats of an open engine. Each method overrides its declaration: its arguments were checked."""

    def acting(self, actor: str) -> Handlers:
        return Handlers(self._runtime, self._worker, self._broadcaster, self._lifetime, actor)

    # Chats

    async def create_chat(self, **options: Any) -> Chat:
        return await ChatCreation(runtime=self._runtime, actor=self._actor, **options).create()

    async def list_chats(
        self,
        *,
        state: ChatState | str | None = None,
        limit: int = 50,
        after: str | None = None,
        owner: str | None = None,
        awaiting: Answerer | None = None,
        archived: bool | None = None,
        **wanted: Any,
    ) -> Page[Chat]:
        filters = ListFilter(**wanted)
        has_filters = filters != ListFilter()
        indexed: dict[str, Any] = {
            "state": None if state is None else state_of(state),
            "owner": owner,
            "awaiting": awaiting,
            "archived": archived,
            "wanted": filters if has_filters else None,
        }
        found: list[Chat] = []
        place = after
        while len(found) <= limit:
            rows = await self._store.chats(limit=limit + 1, after=place, **indexed)
            if after is not None and not rows and place == after:
                await self._check_place(after)
            found += [chat_of(row) for row in rows if filters.fits(_facts_of(row).profile)]
            if len(rows) <= limit:
                break
            place = _facts_of(rows[-1]).chat_id
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def count_chats(self, *, owner: str | None = None) -> ChatCounts:
        counts = await self._store.count_states(owner=owner)
        states = {state: count.open for state, count in counts.items()}
        return ChatCounts(states=states, archived=sum(count.archived for count in counts.values()))

    async def _check_place(self, after: str) -> None:
        """Refuse an unknown id: an empty page after it would look like the end of the list."""
        try:
            await self._store.rest(after)
        except ChatDeleted:
            return
        except ChatNotFound:
            problem = f"must be `next` of a page, or the id of a chat; it was {shown(after)}"
            raise InvalidArgument("after", problem) from None

    def watch(
        self, *, owner: str | None = None, agent: str | None = None, after: int = 0, follow: bool = True
    ) -> AsyncGenerator[ChatChange, None]:
        return self._runtime.feed.watch(owner=owner, agent=agent, after=after, follow=follow)

    async def inbox(self, *, owner: str | None = None) -> list[InboxItem]:
        items: list[InboxItem] = []
        after: str | None = None
        while True:
            rows = await self._store.chats(state=None, limit=_PAGE, after=after, awaiting="client", owner=owner)
            items += [await self._inbox_item(row) for row in rows if isinstance(row, Facts)]
            if len(rows) < _PAGE:
                return items
            after = _facts_of(rows[-1]).chat_id

    async def _inbox_item(self, facts: Facts) -> InboxItem:
        profile = facts.profile
        return InboxItem(
            chat_id=facts.chat_id,
            calls=[*facts.calls.asked_of_client],
            title=profile.title,
            owner=profile.owner,
            agent=profile.agent,
            since=facts.updated_at or profile.created_at,
            within=await top_of(self._store, facts),
        )

    async def chat_ids(self, prefix: str = "", *, owner: str | None = None, limit: int = 50) -> list[str]:
        return await self._store.ids(prefix=prefix, limit=limit, owner=owner)

    async def consume(
        self,
        name: str,
        handler: Handler,
        *,
        kinds: Collection[str] | None = None,
        delays: Sequence[float] = (),
        parallel: int = 1,
        start: Literal["first", "now"] = "first",
    ) -> None:
        if kinds is not None:
            check_kinds(kinds)
        wanted = ConsumerOptions(name, handler, kinds or (), delays, parallel, from_now=start == "now")
        runtime = self._runtime
        deliveries = Deliveries(
            wanted,
            self._store,
            self._broadcaster,
            worker=runtime.worker_id,
            settings=runtime.settings,
            clock=runtime.clock,
            user_calls=runtime.tasks.user_calls,
        )
        with explain_closing(self._broadcaster):
            await runtime.tasks.run(deliveries.run)

    async def workers(self) -> list[WorkerInfo]:
        return await list_workers(self._store)

    async def consumers(self) -> list[Consumer]:
        return await self._store.consumers()

    async def undelivered(self, name: str) -> list[Undelivered]:
        return await self._store.undelivered(name, limit=_UNDELIVERED)

    async def deliver_again(self, name: str, *, about: str | None = None, seq: int | None = None) -> int:
        count = await self._store.deliver_again(name, chat_id=about, seq=seq)
        self._broadcaster.wake_all()
        return count

    async def drop_consumer(self, name: str) -> bool:
        return await self._store.drop_consumer(name)

    async def subagents(self, chat_id: str) -> list[Chat]:
        return [chat_of(facts) for facts in await subagents_of(self._store, chat_id)]

    async def update_chat(self, chat_id: str, *, if_version: int | None = None, **fields: Any) -> Chat:
        return await self._changed(chat_id, Labelling.of(changes_of(**fields)), if_version=if_version)

    async def mark_read(self, chat_id: str, *, turn: int | None = None) -> Chat:
        return await self._changed(chat_id, MarkingRead(turn))

    async def configure(
        self,
        chat_id: str,
        *,
        parameters: Mapping[str, Any] | Unchanged | None = UNCHANGED,
        active_tools: Sequence[str] | Unchanged | None = UNCHANGED,
        client_tools: Sequence[ClientTool] | Unchanged = UNCHANGED,
        if_version: int | None = None,
        **fields: Any,
    ) -> Chat:
        changes = changes_of(
            client_tools=client_tools if isinstance(client_tools, Unchanged) else check_client_tools(client_tools),
            parameters=dict(parameters) if isinstance(parameters, Mapping) else parameters,
            active_tools=tuple(active_tools) if isinstance(active_tools, Sequence) else active_tools,
            **fields,
        )
        fit("system", at_most(self._runtime.settings.message_limit_bytes), changes.get("system") or "")
        configuring = await Configuring.of(self._runtime.agents, changes)
        return await self._changed(chat_id, configuring, if_version=if_version)

    async def delete_chat(self, chat_id: str, *, if_version: int | None = None) -> Tombstone:
        return await self._admin.delete(chat_id, if_version=if_version)

    async def erase_owner(self, owner: str) -> OwnerErasure:
        return await erase_owner(self, owner)

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        tombstone = await self._store.tombstone(chat_id)
        if tombstone is None:
            try:
                await self._store.rest(chat_id)
            except ChatDeleted:  # between the two questions
                return await self._store.tombstone(chat_id)
        return tombstone

    async def erase(self, chat_id: str, *, messages: Sequence[str] = (), what: Collection[Erasable] = ()) -> Erasure:
        return await self._admin.erase(chat_id, parse_request(messages, what))

    async def repair(self, chat_id: str) -> Chat:
        return await self._admin.repair(chat_id)

    def export_chat(self, chat_id: str, *, key: bytes | None = None) -> AsyncGenerator[str, None]:
        return exported(self._runtime.files, chat_id, key=key)

    async def import_chat(
        self,
        lines: Iterable[str] | AsyncIterable[str],
        *,
        key: bytes | None = None,
        permit: Callable[[Chat], object] | None = None,
    ) -> Chat:
        return await self._admin.import_chat(lines, key=key, permit=permit)

    # Budgets

    async def set_budget(self, *, cost: float | Decimal | None = None, **limits: Any) -> Budget | None:
        dollars = None if cost is None else Decimal(str(cost))  # by its text: the float 0.1 is a little more
        declared = StoredBudget(**limits, cost=dollars, actor=self._actor)
        if (declared.owner is None) == (declared.chat_id is None):
            raise InvalidArgument("owner", "pass either an owner or a chat_id")
        time_zone(declared.timezone)
        if declared.chat_id is not None:
            await self._store.facts(declared.chat_id)
        stored = await self._store.change_budget(declared.key, partial(_with_limits, declared))
        figures = {"tokens": declared.tokens, "cost": dollars, "per": declared.per}
        logger.info("budget_set", key=declared.key, actor=self._actor, **figures)
        return None if stored is None else budget_of(stored)

    async def budgets(self, *, owner: str | None = None, chat_id: str | None = None) -> list[Budget]:
        keys = [] if owner is None else [key_of_owner(owner)]
        if chat_id is not None:
            keys += keys_of(chat_id, (await self._store.facts(chat_id)).profile.owner)
        return [budget_of(stored) for stored in await self._store.budgets(keys=keys or None)]

    async def _answer(self, question: Question[Output]) -> TurnResult[Output]:
        self._lifetime.check_loop()
        chat_id = question.chat_id
        with self._refusals_of("ask"):
            receipt = await self.send_message(chat_id, question.content, client_id=question.client_id)
        following = follow_events(
            self._store,
            self._broadcaster,
            chat_id,
            after=receipt.seq,
            live=True,
            until_rest=True,
            at_once=question.at_once,
        )
        reader = TurnReader(following, receipt)
        with self._after(receipt):
            events = [event async for event in reader.events() if not isinstance(event, PartEvent)]
            facts = await self._store.facts(chat_id)
        return turn_result(reader, fold(events), facts, self._runtime.agents.answer)


def _facts_of(row: Facts | PartialRead) -> Facts:
    return row if isinstance(row, Facts) else row.facts


def _with_limits(declared: StoredBudget, stored: StoredBudget | None, _now: datetime) -> StoredBudget | None:
    """Return a budget with the declared limits; what is spent and reserved stays. Without a limit there is none."""
    if declared.tokens is None and declared.cost is None:
        return None
    kept = stored or declared
    return replace(declared, spent=kept.spent, unpriced=kept.unpriced, reservations=kept.reservations)


_MISSING = LOCAL_COMMANDS.keys() - vars(Handlers).keys() - vars(ChangeHandlers).keys() - vars(ReportHandlers).keys()
if _MISSING:  # type checkers cannot find it: the declarations are methods, too
    raise NotImplementedError(f"Handlers lack {', '.join(sorted(_MISSING))}")
