"""The engine: what a service holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from turnwise.engine.apply import Applier
from turnwise.engine.chat import Chat, Page, SendReceipt, SubmissionReceipt, TurnResult, chat_of
from turnwise.engine.clock import Clock, SystemClock
from turnwise.engine.commands import Commands, check_client_tools
from turnwise.engine.explain import Explanation, explanation
from turnwise.engine.following import follow, wait_for
from turnwise.engine.hold import Desk
from turnwise.engine.hooks import Hooks, PrepareMessages, Reminder
from turnwise.engine.hub import Hub
from turnwise.engine.identity import worker_name
from turnwise.engine.models import lifetime_of, model_from
from turnwise.engine.observation import Observer, Observers
from turnwise.engine.prompt import continued, sendable
from turnwise.engine.settings import Settings
from turnwise.engine.toolbox import Toolbox
from turnwise.engine.tools import Tool, ToolFunction, tools_by_name
from turnwise.engine.views import View, raw_view, user_view
from turnwise.engine.worker import Worker
from turnwise.persistence.audit import AuditRecord, export
from turnwise.persistence.locate import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.verification import Verdict, verify_records
from turnwise.providers.protocol import Model
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.events import Event
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Content, Message, QueuedMessage, parts_of
from turnwise.states.names import RESTING, ChatState, Trigger, WhenBusy


class Engine:
    """Runs the life of chats on a store. Every change is one durable transaction; every answer is what is stored.

    Use it as an async context manager: entering opens the store and, unless `Settings(run_worker=False)`, starts a
    worker in this process; leaving gives running chats their grace and then back to the store.

    Args:
        store: `sqlite:///path`, `sqlite://` (in memory), `postgresql://...`, or a `ChatStore`.
        model: a `Model`, or the name of one; the engine closes the connections of one that it made from a name.
        tools: functions made tools by `tool`; bare functions are declared with the defaults.
        settings: every constant of the engine.
        reminders: producers of system messages for single requests.
        prepare_messages: replaces the messages of single requests; the stored history is never touched.
        observers: watch what the engine does, for metrics and traces.
        clock: for tests, a clock that is moved by hand.

    Raises:
        SettingsError: something of it makes no sense.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        store: str | ChatStore,
        *,
        model: Model | str,
        tools: Sequence[Tool | ToolFunction] = (),
        settings: Settings | None = None,
        reminders: Sequence[Reminder] = (),
        prepare_messages: PrepareMessages | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._model = model_from(model)
        self._models_lifetime = lifetime_of(self._model) if isinstance(model, str) else nullcontext()
        self._toolbox = Toolbox(tools_by_name(tools), self.settings)
        self._hooks = Hooks(tuple(reminders), prepare_messages)
        self._observers = Observers(tuple(observers))
        self._store = (
            store_from_url(store, durability=self.settings.durability, now=clock.now if clock else None)
            if isinstance(store, str)
            else store
        )
        self._hub = Hub()
        self._opened = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._worker: Worker | None = None
        self._commands_or_none: Commands | None = None

    async def __aenter__(self) -> Self:
        """Open the store and start the worker."""
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self._models_lifetime)
            await self._store.open()
            opening.push_async_callback(self._store.close)
            self._opened = opening.pop_all()
        self._tasks = await anyio.create_task_group().__aenter__()
        limits = self.settings.limits(self._model.context_limit)
        desk = Desk(
            applier=Applier(self._store, self._hub, limits, self._observers),
            model=self._model,
            toolbox=self._toolbox,
            settings=self.settings,
            clock=self._clock,
            worker_id=worker_name(),
            tasks=self._tasks,
            hooks=self._hooks,
        )
        self._tasks.start_soon(desk.errands.run, self._tasks)
        if self.settings.run_worker:
            self._worker = Worker(desk)
            self._store.attend(desk.worker_id)
            self._hub.observe(self._worker.observe)
            self._tasks.start_soon(self._worker.run)
        self._commands_or_none = Commands(desk, self._worker)
        self._tasks.start_soon(self._watch)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the worker, then close the store and what the engine made itself."""
        if self._tasks is None:
            return
        tasks, worker, self._tasks = self._tasks, self._worker, None
        self._commands_or_none = self._worker = None
        try:
            if worker is not None:
                with anyio.CancelScope(shield=True):
                    await worker.stop()
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._opened.aclose()

    # Chats

    async def create_chat(
        self,
        *,
        system: str | None = None,
        client_tools: Sequence[ClientTool] = (),
        owner: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        parent: str | None = None,
    ) -> Chat:
        """Create a chat, in `waiting`.

        Raises:
            SettingsError: a client tool makes no sense.
            ChatNotFound: there is no chat `parent`.
        """
        declared = check_client_tools(client_tools, self._toolbox.tools)
        if parent is not None:
            await self._store.facts(parent)
        return await self._commands.create(
            lambda chain: Profile(
                created_at=chain.now,
                system=system,
                client_tools=declared,
                owner=owner,
                title=title,
                metadata=dict(metadata or {}),
                parent=parent,
            )
        )

    async def get_chat(self, chat_id: str) -> Chat:
        """Return a chat as it stands.

        Raises:
            ChatNotFound: there is no such chat.
        """
        return chat_of(await self._store.facts(chat_id))

    async def list_chats(
        self,
        *,
        owner: str | None = None,
        state: ChatState | str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Chat]:
        """Return chats, newest first, a page at a time."""
        if limit < 1:
            raise SettingsError("limit", f"must be at least 1; it was {limit}")
        wanted = None if state is None else _state(state)
        found = await self._store.chats(owner=owner, state=wanted, limit=limit + 1, after=after)
        chats = [chat_of(facts) for facts in found[:limit]]
        return Page(chats, chats[-1].id if len(found) > limit else None)

    async def rename(self, chat_id: str, title: str | None) -> Chat:
        """Give a chat another title."""
        return await self._commands.change(chat_id, Trigger.renamed, title=title)

    async def set_metadata(self, chat_id: str, metadata: Mapping[str, Any]) -> Chat:
        """Replace a chat's metadata."""
        return await self._commands.change(chat_id, Trigger.metadata_changed, metadata=dict(metadata))

    async def archive(self, chat_id: str) -> Chat:
        """Close a resting chat to everything but `unarchive`."""
        return await self._commands.change(chat_id, Trigger.archived)

    async def unarchive(self, chat_id: str) -> Chat:
        """Open an archived chat again."""
        return await self._commands.change(chat_id, Trigger.unarchived)

    async def fork(self, chat_id: str, *, at_version: int) -> Chat:
        """Create a chat that begins with another's history as of a version; the other is only read.

        Calls that were open then are closed. The new chat's audit log names parent, version and head hash.

        Raises:
            SettingsError: the chat has no such version.
        """
        return await self._commands.fork(chat_id, at_version)

    # Turns

    async def send_message(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: str | None = None,
    ) -> SendReceipt:
        """Accept a user message: it is answered next, or waits in the queue.

        The same `client_id` with the same content returns the first receipt, `replayed`.

        Raises:
            ChatBusy: the chat works and `when_busy` is "reject".
            QueueFull: the queue holds as many messages as it may.
            ConflictingReplay: the `client_id` was used for other content.
            InvalidContent: the message says nothing.
        """
        return await self._commands.send(chat_id, content, when_busy=when_busy, client_id=client_id)

    async def ask(self, chat_id: str, content: Content, *, timeout: float | None = None) -> TurnResult:  # noqa: ASYNC109 - the contract's word
        """Send a message and wait until the chat rests.

        Raises:
            TimeoutError: it did not come to rest in `timeout` seconds; the turn goes on.
        """
        known = (await self._store.facts(chat_id)).history.length
        receipt = await self.send_message(chat_id, content)
        with anyio.fail_after(timeout):
            facts = await wait_for(self._store, self._hub, chat_id, _rests_in(RESTING))
        history = user_view(await self._store.history(chat_id, after=known))
        start = next((place for place, message in enumerate(history) if message.id == receipt.message_id), len(history))
        messages = history[start:]
        answers = [message.text for message in messages if message.role == "assistant" and message.text]
        return TurnResult(
            chat=chat_of(facts),
            text=answers[-1] if answers else "",
            stop_reason=facts.stop_reason,
            usage=facts.turn.usage,
            messages=messages,
            open_calls=list(facts.open_calls),
        )

    async def submit_tool_results(self, chat_id: str, results: Sequence[ToolResult]) -> SubmissionReceipt:
        """Answer the open client calls: all of them, each once. The same submission again returns the first receipt.

        Raises:
            ToolResultMismatch: the results do not name exactly the open client calls.
            ConflictingReplay: a call was answered before, with other content or by an interrupt.
            DeadlineExpired: a call was answered by its deadline.
            IllegalTransition: the chat does not ask for results.
        """
        return await self._commands.submit(chat_id, results)

    async def interrupt(self, chat_id: str, *, reason: str | None = None) -> Chat:
        """Stop the chat. What was shown is kept, open calls are closed, the queue waits."""
        return await self._commands.interrupt(chat_id, reason)

    async def resume(self, chat_id: str) -> Chat:
        """Go on after an interrupt or an error: with the queue, or with the unfinished answer."""
        return await self._commands.change(chat_id, Trigger.resume)

    async def edit_message(self, chat_id: str, message_id: str, content: Content) -> Chat:
        """Replace a user message; what followed it, and the queue, is gone.

        Raises:
            MessageNotFound: the history has no such user message.
        """
        return await self._commands.edit(chat_id, message_id, content)

    async def request_compaction(self, chat_id: str) -> Chat:
        """Have a resting chat summarised now, whatever its size.

        Raises:
            NothingToCompact: no message is there to fold.
        """
        return await self._commands.change(chat_id, Trigger.request_compaction)

    async def clear_context(self, chat_id: str) -> Chat:
        """Let a resting chat start anew for the model; the transcript stays."""
        return await self._commands.change(chat_id, Trigger.clear_context)

    # The queue

    async def queued(self, chat_id: str) -> list[QueuedMessage]:
        """Return the messages that wait, head first."""
        return list((await self._store.facts(chat_id)).queue)

    async def edit_queued(self, chat_id: str, queued_id: str, content: Content) -> Chat:
        """Replace a queued message; it keeps its place."""
        return await self._commands.change(chat_id, Trigger.edit_queued, queued_id=queued_id, parts=parts_of(content))

    async def delete_queued(self, chat_id: str, queued_id: str) -> Chat:
        """Take a message out of the queue."""
        return await self._commands.change(chat_id, Trigger.delete_queued, queued_id=queued_id)

    async def promote_queued(self, chat_id: str, queued_id: str) -> Chat:
        """Make a queued message the next turn at once; what is under way is interrupted, its partial answer kept."""
        return await self._commands.promote(chat_id, queued_id)

    # Reading

    async def messages(self, chat_id: str, *, view: View = "user") -> list[Message]:
        """Return the history: as the user sees it, as the model's next request holds it, or without synthetic rows."""
        match view:
            case "user":
                await self._store.facts(chat_id)
                return user_view(await self._store.history(chat_id))
            case "raw":
                await self._store.facts(chat_id)
                return raw_view(await self._store.history(chat_id))
            case "model":
                facts = await self._store.facts(chat_id)
                messages = sendable(await self._store.prompt(chat_id))
                return continued(messages, self.settings.continue_prompt) if facts.history.unfinished else messages
        raise SettingsError("view", f"must be one of user, model, raw; it was {view!r}")

    async def erase_message(self, chat_id: str, message_id: str) -> Chat:
        """Blank what a message says, for good. Its digest stays, so that the audit log still verifies."""
        return await self._commands.erase(chat_id, message_id)

    def events(self, chat_id: str, *, after: int = 0, follow: bool = True) -> AsyncGenerator[Event, None]:
        """Yield the chat's events after number `after`, all that are kept; `follow=False` ends at the present."""
        return _follow(self._store, self._hub, chat_id, after=after, live=follow)

    async def wait(
        self,
        chat_id: str,
        *,
        until: Collection[ChatState | str] = RESTING,
        timeout: float | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        """Return the chat once its state is in `until`; `interrupted` counts once settled.

        Raises:
            TimeoutError: it did not get there in `timeout` seconds.
        """
        wanted = frozenset(_state(state) for state in until)
        with anyio.fail_after(timeout):
            return chat_of(await wait_for(self._store, self._hub, chat_id, _rests_in(wanted)))

    async def explain(self, chat_id: str) -> Explanation:
        """Return where the chat stands, and in one sentence why it is not moving."""
        facts = await self._store.facts(chat_id)
        expiry = await self._store.lease_expiry(chat_id)
        return explanation(facts, lease_expires=expiry, now=self._clock.now())

    # The audit log

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return one record for every transition, in order of version."""
        await self._store.facts(chat_id)
        return await self._store.audit(chat_id)

    async def export_audit(self, chat_id: str, *, key: bytes | None = None) -> str:
        """Return the log as JSON Lines, to be checked anywhere with `verify_export`; signed if a key is given."""
        return export(chat_id, await self.audit(chat_id), key=key)

    async def verify(self, chat_id: str) -> Verdict:
        """Check the chain, and every transition and invariant against the declared table."""
        facts = await self._store.facts(chat_id)
        records = await self._store.audit(chat_id)
        if len(records) < facts.version:
            missing = len(records) + 1
            return Verdict(
                ok=False,
                problem=f"The log ends at version {len(records)}, but the chat stands at version {facts.version}.",
                position=missing,
            )
        return verify_records(records)

    @property
    def _commands(self) -> Commands:
        if self._commands_or_none is None:
            raise EngineClosed
        return self._commands_or_none

    async def _watch(self) -> None:
        async for chat_id in self._store.watch():
            self._hub.hint(chat_id)
            if self._worker is not None:
                await self._worker.hint(chat_id)


class EngineClosed(TurnwiseError):
    """The engine is not open: use it inside `async with`. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("the engine is not open; use it inside 'async with Engine(...)'; nothing was written")


_follow = follow


def _state(state: ChatState | str) -> ChatState:
    try:
        return ChatState(state)
    except ValueError:
        raise SettingsError("state", f"must be one of {', '.join(ChatState)}; it was {state!r}") from None


def _rests_in(states: Collection[ChatState]) -> Any:
    def arrived(facts: Facts) -> bool:
        return facts.state in states and (facts.state is not ChatState.interrupted or facts.settled)

    return arrived
