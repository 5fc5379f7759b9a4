"""The engine: the object through which a service uses turnwise.

The module is long because the contract stands in one place: nearly all of it is signatures and docstrings. What a
method does is done elsewhere: commands by `Commands`, questions by the store and the functions that read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import Field, InstanceOf, SkipValidation

from turnwise.engine import chat_ids
from turnwise.engine.admin.diagnose import Diagnosis, diagnose, issues_of
from turnwise.engine.admin.erase import Erasable, Erasure, wanted
from turnwise.engine.admin.explain import Explanation, explanation
from turnwise.engine.admin.transfer import exported
from turnwise.engine.agents.agent import Agent, Output
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.deps import check_deps
from turnwise.engine.blobs.files import Files
from turnwise.engine.blobs.left_out import without_refused
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import FileContent
from turnwise.engine.blobs.verify import verify_files
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.engine.checkpoints.publisher import Publisher
from turnwise.engine.commands.commands import CLIENT, Commands
from turnwise.engine.config.results import (
    Chat,
    Compaction,
    Page,
    SendReceipt,
    SubmissionReceipt,
    TurnResult,
    UsageEntry,
    chat_of,
)
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import Clock, GuardedClock, SteadyClock, SystemClock, fail_after, sleep
from turnwise.engine.isolation.guarded_store import guarded_files, guarded_store, owned
from turnwise.engine.isolation.tasks import Lifetime, Tasks, run_in_thread
from turnwise.engine.isolation.user_code import LAST_PATIENCE
from turnwise.engine.jobs.request import to_answer
from turnwise.engine.observers.observer import Observer, Observers
from turnwise.engine.prompt.history import sendable
from turnwise.engine.prompt.hooks import Hooks, PrepareMessages, Reminder
from turnwise.engine.prompt.imported_history import History, imported_history
from turnwise.engine.prompt.views import (
    HistoryView,
    compactions_of,
    raw_view,
    transcript_of,
    transcript_pages,
    user_view,
)
from turnwise.engine.subagents.family import archived_subagents, subagents_of
from turnwise.engine.subagents.usage import family_usage
from turnwise.engine.subagents.verification import verify_family
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.subscriptions.follow import follow as _follow
from turnwise.engine.subscriptions.follow import wait_for
from turnwise.engine.subscriptions.turns import TurnReader, after_receipt, turn_result
from turnwise.engine.subscriptions.watch import watch
from turnwise.engine.tools.client_tools import check_client_tools
from turnwise.engine.tools.declare import Tool, ToolFunction
from turnwise.engine.tools.sources import ToolSource
from turnwise.engine.transactions.chat_writer import ChatWriter, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.unchanged import UNCHANGED, Unchanged, changes_of
from turnwise.engine.worker.identity import worker_name
from turnwise.engine.worker.worker import Worker
from turnwise.persistence.audit.checkpoints import published
from turnwise.persistence.audit.record import AuditRecord, export
from turnwise.persistence.audit.signing import SigningKey
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.blobs.protocol import FileStore
from turnwise.persistence.from_url import store_from_url, url_or_store
from turnwise.persistence.integrity.raw_chat import lines_of
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.tombstone import Tombstone
from turnwise.providers.protocol import Model
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.errors import (
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ChatUnreadable,
    EngineClosed,
    InvalidArgument,
    SettingsError,
)
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Content, FilePart, Message, QueuedMessage
from turnwise.states.names import DEFAULT_AGENT, RESTING, Answerer, ChatState, WhenBusy
from turnwise.states.transcript import Transcript, fold
from turnwise.states.triggers import (
    Archived,
    ClearContext,
    Create,
    DeleteQueued,
    MetadataChanged,
    Renamed,
    RequestCompaction,
)
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked, fit
from turnwise.states.values.limits import JsonObject, Key, Label, Name, Ordinal, PageSize, Seconds, at_most
from turnwise.states.values.plain import shown

_T = TypeVar("_T")

NOT_OPEN: Final = "the engine is not open; use it inside 'async with Engine(...)'"
_FAILURE_TOLD_AFTER_S: Final = 0.05
CLOSED: Final = (
    "the engine was closed; open one inside 'async with Engine(...)' and go on after the last event you have seen"
)
FAILED: Final = (
    "the engine has ended by an error, which the log holds; open one elsewhere and go on after the last event you have "
    "seen"
)
RELEASED: Final = "the engine has ended its streams; open one elsewhere and go on after the last event you have seen"


@checked
class Engine:
    """Runs chats on a store. Every change is one durable transaction; every method returns what is stored.

    Use it as an async context manager: entering opens the store and, unless `Settings(run_worker=False)`, starts a
    worker in this process. Leaving lets running jobs finish for `shutdown_grace` seconds, then releases their chats.

    Every command takes `actor`: the name under which the audit log records who acted.

    Args:
        store: `sqlite:///path`, `sqlite://` (in memory), `postgresql://...`, or a `ChatStore`, which serves one engine
            at a time.
        files: where files are kept: by default in the store's own database; `FolderFiles(path)` keeps them in a folder,
            `BucketFiles(store)` in a bucket.
        model: a `Model`, or the name of one. The engine closes the connections of a model that it made from a name.
            With or without `tools` it makes the agent `default`; agents without a model of their own have it, too.
        tools: functions declared by `tool`; bare functions are declared with the defaults; sources of tools, such as
            `MCPTools`, are entered. They are those of `default` alone: each of the `agents` has its own.
        agents: the agents that the engine runs, if one is not enough. A chat that names none gets `default`, where
            there is one, or the only one.
        deps: what tools find in `ToolContext.deps`: a value, or a function of the `Chat` that returns an async context
            manager. That is entered when a tool first runs while this worker holds the chat, and left with the hold,
            or before a tool of another agent runs.
        settings: every constant of the engine.
        reminders: producers of system messages for single requests, of agents that have none of their own.
        prepare_messages: replaces the messages of single requests, of agents that have none of their own; the stored
            history is never changed.
        observers: watch what the engine does, for metrics and traces.
        checkpoints: signs where the chats' logs stand, and publishes it outside of the store.
        clock: for tests, a clock that is moved by hand.

    Raises:
        SettingsError: an argument is invalid; the text says which and why.
    """

    _patience = LAST_PATIENCE

    def __init__(  # noqa: PLR0913 - the contract
        self,
        store: Annotated[str | ChatStore, SkipValidation],
        *,
        files: FileStore | None = None,
        model: Model | str | None = None,
        tools: Sequence[Tool | ToolFunction | ToolSource] = (),
        agents: Sequence[Agent] = (),
        deps: Annotated[object, SkipValidation] = None,
        settings: Settings | None = None,
        reminders: Sequence[Reminder] = (),
        prepare_messages: PrepareMessages | None = None,
        observers: Sequence[Observer] = (),
        checkpoints: Checkpoints | None = None,
        clock: Clock | None = None,
    ) -> None:
        store = fit("store", url_or_store, store)
        check_deps(deps)
        self.settings = settings or Settings()
        self._clock: SteadyClock = SystemClock() if clock is None else GuardedClock(clock)
        own, hooks = Agent(DEFAULT_AGENT, model, tools=tools), Hooks(tuple(reminders), prepare_messages)
        self._agents = Agents(_declared(own, agents), self.settings, model=model, hooks=hooks)
        self._deps = deps
        self._observers = Observers(tuple(observers))
        self._checkpoints = checkpoints
        self._store = (
            store_from_url(store, durability=self.settings.durability, now=None if clock is None else self._clock.now)
            if isinstance(store, str)
            else guarded_store(store)
        )
        self._files = Files(
            self._store, guarded_files(self._store.file_store() if files is None else files), self.settings
        )
        self._broadcaster = Broadcaster()
        self._lifetime = Lifetime()
        self._worker: Worker | None = None
        self._commands_or_none: Commands | None = None
        self._closed: str | None = NOT_OPEN
        self._failure_callbacks: list[Callable[[], object]] = []

    async def __aenter__(self) -> Self:
        """Open the store and start the worker.

        Raises:
            EngineInUse: the engine is open already.
            SettingsError: the event loop is not asyncio's, or another engine of this process has the same `ChatStore`
                open.
            StoreError: the store cannot be opened.
        """
        await self._lifetime.begin(self._life)
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Stop the worker, then close the store and everything the engine opened. Any task of the loop may do it."""
        await self._lifetime.end()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        """Keep the engine open inside; the store and the worker belong to the task that enters this."""
        _import_late(runs_chats=self.settings.run_worker)
        async with AsyncExitStack() as opened:
            opened.enter_context(owned(self._store))
            await opened.enter_async_context(self._agents.connected())
            for source in self._agents.sources:
                await opened.enter_async_context(source)
            await self._store.open()
            opened.push_async_callback(self._store.close)
            await self._files.blobs.open()
            opened.push_async_callback(self._files.blobs.close)
            self._agents.load_prices()
            self._broadcaster, tasks = Broadcaster(), Tasks(self._patience, partial(sleep, self._clock))
            publisher = await self._opened_publisher()
            runtime = Runtime(
                writer=ChatWriter(self._store, self._broadcaster, self._agents.limits, self._observers, publisher),
                agents=self._agents,
                deps=self._deps,
                settings=self.settings,
                clock=self._clock,
                worker_id=worker_name(),
                tasks=tasks,
                files=self._files,
            )
            await opened.enter_async_context(tasks.running())
            if publisher is not None:
                tasks.start_soon(publisher.run)
            if self.settings.run_worker:
                self._worker = Worker(runtime)
                self._store.attend(runtime.worker_id)
                self._broadcaster.observe(self._worker.observe, forget=self._worker.forget)
                tasks.start_vital(self._worker.run)
            self._commands_or_none = Commands(runtime, self._worker)
            tasks.start_vital(partial(watch, self._store, self._broadcaster, self._hint))
            self._closed = None
            try:
                yield
            except BaseException:  # a vital task has failed, or the engine's own was cancelled
                self._fail()
                raise
            finally:
                self._commands_or_none = None
                worker, self._worker = self._worker, None
                try:
                    if worker is not None:
                        await worker.stop()
                    if publisher is not None:
                        await publisher.close(self.settings.shutdown_grace)
                finally:
                    self._closed = self._closed or CLOSED
                    self._broadcaster.close(CLOSED)

    def _fail(self) -> None:
        """Let nobody wait for an engine that ends by an error."""
        self._closed = FAILED
        self._broadcaster.close(FAILED)
        for callback in self._failure_callbacks:
            # Not called if the event loop ends: then the program ends anyway, and has cancelled all of its tasks.
            asyncio.get_running_loop().call_later(_FAILURE_TOLD_AFTER_S, callback)

    async def _opened_publisher(self) -> Publisher | None:
        if self._checkpoints is None:
            return None
        publisher = Publisher(self._checkpoints, self._store, self._clock)
        await publisher.open()
        return publisher

    @property
    def agents(self) -> Mapping[str, Collection[str]]:
        """The agents that the engine runs, by name, each with the names of its tools."""
        return self._agents.runs

    @property
    def inactive_tools(self) -> Mapping[str, Collection[str]]:
        """The tools of each agent that its settings leave out: a chat has them only if its `active_tools` name them."""
        return self._agents.inactive_tools

    @property
    def models(self) -> Collection[str]:
        """The names of models that the engine and its agents were given; a model that is a `Model` has none."""
        return self._agents.models

    async def wait_closed(self) -> None:
        """Wait until the engine is left, or has ended by an error: then nothing runs here any more, and no call works.

        A process that only runs an engine waits so, and ends with it.

        Raises:
            EngineClosed: the engine is not open, or its task was cancelled.
            Exception: what ended it.
        """
        self._check_open()
        await self._lifetime.over()

    @property
    def has_failed(self) -> bool:
        """Whether the engine has ended by an error."""
        return self._closed == FAILED

    def add_failure_callback(self, callback: Callable[[], object]) -> None:
        """Call a function, in the engine's event loop, if the engine ends by an error."""
        self._failure_callbacks.append(callback)

    @property
    def takes_followers(self) -> bool:
        """Whether the engine is open, and has not let its subscribers go."""
        return self._closed is None and self._broadcaster.closed is None

    async def check_writable(self) -> None:
        """Let the store commit a write that changes nothing.

        Raises:
            EngineClosed: the engine is not open.
            StoreError: the store takes no writes now: it is away, full, locked, or may only be read.
        """
        await self._chats().check_writable()

    def release_followers(self) -> None:
        """End every `events`, `wait`, `ask` and `stream`, running or still to come, with `EngineClosed`.

        For a server that has to stop and waits for its connections before it leaves the engine. Events up to then are
        still yielded; the chats run on until the engine is left.
        """
        self._broadcaster.close(RELEASED)

    # Chats

    async def create_chat(  # noqa: PLR0913 - the contract
        self,
        *,
        system: str | None = None,
        client_tools: Sequence[ClientTool] = (),
        owner: Key | None = None,
        title: Label | None = None,
        metadata: JsonObject | None = None,
        parent: str | None = None,
        agent: Name | None = None,
        model: Name | None = None,
        parameters: JsonObject | None = None,
        active_tools: Sequence[str] | None = None,
        history: History | None = None,
        client_id: Name | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Create a chat, in `waiting`.

        Args:
            system: the system prompt, instead of the agent's.
            client_tools: tools that only the client can run.
            owner: whose chat it is.
            title: for people.
            metadata: whatever the service wants to keep with the chat.
            parent: another chat.
            agent: who answers; the engine's only agent, or `default`, if none is named.
            model: the name of a model that is asked instead of the agent's. Never pass a user's choice: a name may hold
                an address, and whoever answers there gets the provider's key and the agent's prompt.
            parameters: of model calls; each stands for the agent's own of that name. Never pass a user's
                `provider_options`: they are sent as they are, and may replace the key, the prompt and the model.
            active_tools: the tools to offer, as in `Settings.active_tools`.
            history: what was said elsewhere: messages of the roles `user`, `assistant` and `tool`, as `Message`s or as
                mappings with the fields of one. They are marked as `imported`, numbered anew, and hold nothing of what
                only the provider knows: no signatures and no metadata.
            client_id: the client's own name of the chat: the same `owner` with the same one again creates nothing, and
                gets the chat as it stands.
            actor: who acts, for the audit log.

        Raises:
            ChatDeleted: the chat of that `client_id` was deleted.
            SettingsError: a client tool is invalid, or there is no such agent, model, parameter or tool.
            InvalidContent: a message of the history cannot stand there. The text names it.
            ChatNotFound: there is no chat `parent`.
            StoreError: a large file of the history cannot be stored.
        """
        fit("system", at_most(self.settings.message_limit_bytes), system or "")
        imported = imported_history(
            () if history is None else history,
            limit=self.settings.message_limit_bytes,
            refusal=self._files.refusal,
        )
        chat_id = None if client_id is None else chat_ids.chat_id_for(owner, client_id)
        if chat_id is not None:  # what was created once is there, on whatever ground it would be refused now
            try:
                return await self._created_before(chat_id)
            except ChatDeleted:
                raise
            except ChatNotFound:
                pass
        named = self._agents.chosen(agent)
        declared = check_client_tools(client_tools)
        await self._agents.check(model, parameters)
        self._agents.check_client_tools(named, declared)
        self._agents.check_active(named, active_tools, declared)
        self._agents.check_tool_choice(named, parameters, declared)
        self._agents.check_offer(named, model, active_tools, parameters)
        if parent is not None:
            await self._chats().facts(parent)

        def begin(unit: UnitOfWork) -> None:
            profile = Profile(
                created_at=unit.now,
                agent=named,
                model=model,
                parameters=None if parameters is None else dict(parameters),
                active_tools=None if active_tools is None else tuple(active_tools),
                system=system,
                client_tools=declared,
                owner=owner,
                title=title,
                metadata=dict(metadata or {}),
                parent=parent,
                imported=len(imported),
            )
            inheritance = imported.inheritance(unit.now) if imported else None
            reason = f"imported messages: {len(imported)}" if imported else None
            unit.fire(Create(profile=profile, inheritance=inheritance), reason=reason)

        new_id = chat_id or chat_ids.new_chat_id()
        try:
            async with Sending(self._files, new_id) as sending:
                imported = await imported.with_parts(sending.imported)
                return await self._commands(actor).create(begin, chat_id=new_id)
        except ChatExists:
            if chat_id is None:
                raise
            return await self._created_before(chat_id)

    async def get_chat(self, chat_id: str) -> Chat:
        """Return a chat as it stands.

        Raises:
            ChatNotFound: there is no such chat.
        """
        return chat_of(await self._chats().facts(chat_id))

    async def _created_before(self, chat_id: str) -> Chat:
        chat = await self.get_chat(chat_id)
        await self._chats().confirm()
        return chat

    async def list_chats(
        self,
        *,
        owner: Key | None = None,
        state: ChatState | str | None = None,
        awaiting: Answerer | None = None,
        limit: PageSize = 50,
        after: str | None = None,
    ) -> Page[Chat]:
        """Return chats, newest first, a page at a time.

        `awaiting="client"` wants those whose open calls the client has to answer, a person's inbox, and `"subagents"`
        those that wait for subagents; a chat may be both. Archived chats take no answer, and are in neither.

        A chat that cannot be read is included: `unreadable` says why, and the rest is what could be read.

        Raises:
            InvalidArgument: there is no chat `after`, and never was; one that was deleted keeps its place.
        """
        wanted = None if state is None else _state(state)
        rows = await self._chats().chats(owner=owner, state=wanted, awaiting=awaiting, limit=limit + 1, after=after)
        if after is not None and not rows:
            await self._check_place(after)
        chats = [chat_of(row) for row in rows[:limit]]
        return Page(chats, chats[-1].id if len(rows) > limit else None)

    async def _check_place(self, after: str) -> None:
        """Refuse an id that no chat has or had: nothing comes after it, which would look like the end of a list."""
        try:
            await self._chats().rest(after)
        except ChatDeleted:
            return
        except ChatNotFound:
            problem = f"must be `next` of a page, or the id of a chat; it was {shown(after)}"
            raise InvalidArgument("after", problem) from None

    async def subagents(self, chat_id: str) -> list[Chat]:
        """Return the chats to which a chat has delegated calls, in the order of these; deleted ones are left out.

        Raises:
            ChatNotFound: there is no such chat.
        """
        return [chat_of(facts) for facts in await subagents_of(self._chats(), chat_id)]

    async def family_usage(self, chat_id: str) -> Usage:
        """Return what a chat, its subagents and theirs have used until now: those that work still or were stopped, too.

        It is `partial` if one of them was deleted or cannot be read.
        """
        return await family_usage(self._chats(), chat_id)

    async def chat_ids(self, prefix: str = "", *, owner: Key | None = None, limit: PageSize = 50) -> list[str]:
        """Return the ids that begin with `prefix`, the most recent change of state first, unreadable chats included."""
        return await self._chats().ids(prefix=prefix, limit=limit, owner=owner)

    async def update_chat(
        self,
        chat_id: str,
        *,
        title: Label | Unchanged | None = UNCHANGED,
        metadata: JsonObject | Unchanged = UNCHANGED,
        archived: bool | Unchanged = UNCHANGED,
        if_version: Ordinal | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Change title, metadata and whether a chat is archived, in one transaction. What is not given stays.

        Only a resting chat can be archived. An archived one is changed only if it is unarchived as well.

        Args:
            chat_id: the chat.
            title: for people.
            metadata: instead of all that was there.
            archived: whether the chat accepts nothing more.
            if_version: the version that the caller has seen.
            actor: who acts, for the audit log.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
            SettingsError: nothing to change was given.
        """
        changes = changes_of(title=title, metadata=metadata, archived=archived)
        return await self._commands(actor).update(chat_id, changes, if_version=if_version)

    async def rename(self, chat_id: str, title: Label | None, *, actor: str = CLIENT) -> Chat:
        """Give a chat another title."""
        return await self._commands(actor).change(chat_id, Renamed(title=title))

    async def set_metadata(self, chat_id: str, metadata: JsonObject, *, actor: str = CLIENT) -> Chat:
        """Replace a chat's metadata."""
        return await self._commands(actor).change(chat_id, MetadataChanged(metadata=dict(metadata)))

    async def configure(  # noqa: PLR0913 - the contract
        self,
        chat_id: str,
        *,
        agent: Name | Unchanged = UNCHANGED,
        model: Name | Unchanged | None = UNCHANGED,
        parameters: JsonObject | Unchanged | None = UNCHANGED,
        active_tools: Sequence[str] | Unchanged | None = UNCHANGED,
        system: str | Unchanged | None = UNCHANGED,
        if_version: Ordinal | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Change who answers, or how, from the next model call on. What is not given stays; `None` is the agent's.

        Another agent takes over with its own prompt, model, parameters and tools, unless these are given, too.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
            SettingsError: there is no such agent, model, parameter or tool, the agent has a tool with the name of one
                of the client's, or nothing to change was given.
        """
        changes = changes_of(
            agent=agent,
            model=model,
            parameters=dict(parameters) if isinstance(parameters, Mapping) else parameters,
            active_tools=tuple(active_tools) if isinstance(active_tools, Sequence) else active_tools,
            system=system,
        )
        fit("system", at_most(self.settings.message_limit_bytes), changes.get("system") or "")
        return await self._commands(actor).configure(chat_id, changes, if_version=if_version)

    async def archive(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Close a resting chat to everything but `unarchive`."""
        return await self._commands(actor).change(chat_id, Archived())

    async def unarchive(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Open an archived chat again; if it is open, nothing is changed."""
        return await self._commands(actor).update(chat_id, {"archived": False}, if_version=None)

    async def fork(self, chat_id: str, *, at_version: Ordinal, actor: str = CLIENT) -> Chat:
        """Create a chat that begins with another's history as of a version; the other chat is not changed.

        Calls that were open then are closed. The new chat's audit log names the parent, the version and its hash.

        Raises:
            SettingsError: the chat has no such version.
        """
        return await self._commands(actor).fork(chat_id, at_version)

    async def delete_chat(self, chat_id: str, *, if_version: Ordinal | None = None, actor: str = CLIENT) -> Tombstone:
        """Delete a resting chat for good, archived or not, readable or not, and return the tombstone that is left.

        Nothing of it stays in the store but the tombstone. From then on every method raises `ChatDeleted` for it, and
        whoever follows it gets that, too. Deleting it again changes nothing and returns the same tombstone. Forks and
        children are chats of their own and stay.

        Raises:
            NotResting: the chat works; interrupt it first. Nothing was deleted.
            VersionMismatch: the chat has changed since `if_version`. Nothing was deleted.
            ChatNotFound: there never was such a chat.
        """
        return await self._commands(actor).upkeep.delete(chat_id, if_version=if_version)

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        """Return what is left of a deleted chat; `None` if the chat is still there.

        Raises:
            ChatNotFound: there never was such a chat.
        """
        tombstone = await self._chats().tombstone(chat_id)
        if tombstone is None:
            try:
                await self._chats().rest(chat_id)
            except ChatDeleted:  # between the two questions
                return await self._chats().tombstone(chat_id)
        return tombstone

    async def export_chat(self, chat_id: str, *, key: bytes | None = None) -> AsyncGenerator[str, None]:
        """Yield a whole chat as lines of JSON, each with its line feed, signed if a key is given.

        All of it is of one moment, whatever the chat does. The files that its messages refer to come along, but for
        those that are gone. `import_chat` takes the lines in, on a store of any kind.

        Raises:
            ChatUnreadable: its rows are not what its log says, or cannot be read. `export_rows` writes down what is
                stored.
        """
        self._chats()
        async with aclosing(exported(self._files, chat_id, key=key)) as lines:
            async for line in lines:
                yield line

    async def import_chat(
        self,
        lines: Annotated[Iterable[str] | AsyncIterable[str], SkipValidation],
        *,
        key: bytes | None = None,
        permit: Callable[[Chat], object] | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Take in a chat that `export_chat` wrote, under its own id, and go on with it where it stood.

        Every line is checked, and every row against the chat's audit log, before anything is written; then all of it
        is written in one transaction. The log goes on with a record of the import. A chat that was being worked on
        waits for a worker of this store. With a `key` the lines must be signed with it. Import subagents before their
        parent, which else begins those anew that it waits for.

        Args:
            lines: what `export_chat` yielded.
            key: with which they have to be signed.
            permit: is called with the chat as it was exported, before anything is written; it may be async. Whatever it
                raises refuses the chat. Untrusted lines may name any owner, agent, model and parameters.
            actor: who acts, for the audit log.

        Raises:
            ImportRefused: the lines are not those of one whole chat, or not signed with the key.
            InvalidArgument: `permit` raised something that is no `TurnwiseError`.
            ChatExists: there is a chat of that id.
            ChatDeleted: there was one.
            StoreError: the store refused, or the temporary folder, where the files of a chat wait until it is checked.
        """
        return await self._commands(actor).upkeep.import_chat(lines, key=key, permit=permit)

    # Turns

    async def send_message(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
        actor: str = CLIENT,
    ) -> SendReceipt:
        """Accept a user message: it is answered next, or waits in the queue.

        The same `client_id` with the same content returns the first receipt, `replayed`.

        Raises:
            ChatBusy: the chat works and `when_busy` is "reject".
            QueueFull: the queue holds as many messages, or bytes, as it may.
            ConflictingReplay: the `client_id` was used for other content.
            InvalidContent: the message is empty, cannot be stored, or is too large.
        """
        return await self._commands(actor).send(chat_id, content, when_busy=when_busy, client_id=client_id)

    async def ask(
        self,
        chat_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
        agent: Agent[Any, Output] | None = None,
        actor: str = CLIENT,
    ) -> TurnResult[Output]:
        """Send a message and wait until the turn that answers it ends, or the chat rests before that.

        With `agent` the chat's agent is checked first, and a type checker knows the type of `TurnResult.output`.
        The same `client_id` with the same content sends nothing again, and returns the result of the same turn:
        all of it, if it was resumed since.

        If the chat waits for its client, or is interrupted, the message may stay in the queue; the result's
        `message_state` says so.

        Raises:
            TimeoutError: it took longer than `timeout` seconds, the sending included, or with 0 the turn has not ended
                yet. What was sent stays, and the turn goes on: ask again with the same `client_id`.
            EngineClosed: the engine was closed, or released its subscribers, before that.
            SettingsError: the chat has another agent than `agent`; nothing was sent.
            StoreError: of an unknown outcome: the message is stored, and its turn cannot be followed.
            TurnwiseError: the message is refused, see `send_message`.
        """
        with fail_after(timeout or None):  # 0 sends, and looks once
            if agent is not None:
                actual = (await self._chats().facts(chat_id)).profile.agent
                if actual != agent.name:
                    problem = f"{agent.name!r} does not answer in this chat: its agent is {actual!r}"
                    raise SettingsError("agent", problem)
            receipt = await self.send_message(chat_id, content, client_id=client_id, actor=actor)
            reader = self._turn(receipt, at_once=timeout == 0)
            with after_receipt(receipt):
                events = [event async for event in reader.events() if not isinstance(event, PartEvent)]
                facts = await self._chats().facts(chat_id)
        return turn_result(reader, fold(events), facts, self._agents.answer)

    async def stream(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
        actor: str = CLIENT,
    ) -> AsyncGenerator[Event, None]:
        """Send a message and yield the events of the turn that answers it, from the message on, until the chat rests.

        While the message waits in the queue nothing is yielded; nothing at all if the chat rests before its turn
        begins, or the message is deleted. Without `turn_finished` the turn has not ended. The same `client_id` again
        yields the same turn again: all of it, if it was resumed since.

        Raises:
            EngineClosed: the engine was closed, or released its subscribers; events up to then are yielded.
            StoreError: of an unknown outcome: the message is stored, and its turn cannot be followed.
            TurnwiseError: the message is refused, see `send_message`.
        """
        receipt = await self.send_message(chat_id, content, when_busy=when_busy, client_id=client_id, actor=actor)
        with after_receipt(receipt):
            async with aclosing(self._turn(receipt).events()) as events:
                async for event in events:
                    yield event

    async def submit_tool_results(
        self,
        chat_id: str,
        results: Sequence[ToolResult],
        *,
        if_version: Ordinal | None = None,
        actor: str = CLIENT,
    ) -> SubmissionReceipt:
        """Answer the open client calls: all of them, each once. The same submission again returns the first receipt.

        Raises:
            ToolResultMismatch: the results do not name exactly the open client calls.
            ConflictingReplay: a call was answered before, with other content or by an interrupt.
            DeadlineExpired: the deadline of a call has passed; turnwise has closed the call.
            IllegalTransition: the chat does not wait for results.
            VersionMismatch: the chat has changed since `if_version`, and these results are not what changed it.
        """
        return await self._commands(actor).submit(chat_id, results, if_version=if_version)

    async def interrupt(self, chat_id: str, *, reason: Label | None = None, actor: str = CLIENT) -> Chat:
        """Stop the chat. The part of the reply that was shown is kept, open calls are closed, the queue waits.

        So does a message that was to be answered next, and is no turn yet.
        """
        return await self._commands(actor).interrupt(chat_id, reason)

    async def resume(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Continue after an interrupt or an error: with the queue, or with the unfinished answer."""
        return await self._commands(actor).resume(chat_id)

    async def edit_message(
        self,
        chat_id: str,
        message_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        if_version: Ordinal | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Replace a user message; the messages after it and the queue are removed.

        The same edit with the same `client_id` again changes nothing and returns the chat as it stands.

        Raises:
            MessageNotFound: the history has no such user message.
            ConflictingReplay: the `client_id` was used for another message or edit.
            VersionMismatch: the chat has changed since `if_version`.
        """
        return await self._commands(actor).edit(
            chat_id, message_id, content, client_id=client_id, if_version=if_version
        )

    async def request_compaction(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Compact a chat now, whatever its size: one in `waiting`, or in `interrupted` or `error` with an empty queue.

        Raises:
            NothingToCompact: there is no message to fold.
        """
        return await self._commands(actor).change(chat_id, RequestCompaction())

    async def clear_context(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Clear the context: the model sees nothing that was said before; the transcript stays.

        It is accepted in `waiting`, and in `interrupted` and `error` with an empty queue.
        """
        return await self._commands(actor).change(chat_id, ClearContext())

    # Files

    async def put_file(
        self,
        chat_id: str,
        content: Annotated[FileContent, SkipValidation],
        *,
        media_type: Name | None = None,
        name: Label | None = None,
    ) -> FilePart:
        """Keep a file for a chat, and return the part by which messages of this chat refer to it.

        The content is streamed and never held as a whole. The same bytes are kept once, whoever puts them. What is
        never sent is removed after `Settings.keep_unsent_files`.

        Args:
            chat_id: the chat. In another one the part is worth nothing, but in forks of it from a version that has the
                file in a message.
            content: the path of a file on the disk, bytes, or something that yields bytes.
            media_type: guessed from the name of a file on the disk by default.
            name: the file's own by default, with U+FFFD for what is no UTF-8 in it.

        Raises:
            ChatNotFound: there is no such chat.
            ChatArchived: the chat is archived.
            InvalidContent: the file is too large, empty, of a type that is not allowed, or cannot be read.
        """
        self._chats()
        return await self._files.put(chat_id, content, media_type, name)

    async def open_file(
        self, chat_id: str, file: Annotated[FilePart | str, SkipValidation]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file that a chat holds, piece by piece.

        Args:
            chat_id: the chat.
            file: a part of one of its messages, or the digest of one.

        Raises:
            FileNotFound: the chat holds no such file, or its bytes are gone; if they are damaged, after the last piece.
            ChatNotFound: there is no such chat.
            InvalidArgument: the file is given by address: turnwise fetches nothing.
        """
        self._chats()
        if not isinstance(file, FilePart | str):
            raise InvalidArgument("file", f"must be a FilePart or the digest of a file; it was {shown(file)}")
        async with aclosing(self._files.read(chat_id, file)) as pieces:
            async for piece in pieces:
                yield piece

    async def check_files(self) -> None:
        """Check that the files of the store's chats are kept where this engine looks for them.

        Raises:
            StoreError: they are kept in another file store than `files`; the text names both.
        """
        self._chats()
        await self._files.check_place()

    # The queue

    async def queued(self, chat_id: str) -> list[QueuedMessage]:
        """Return the queued messages, next one first."""
        return list((await self._chats().facts(chat_id)).queue)

    async def edit_queued(
        self,
        chat_id: str,
        queued_id: str,
        content: Content,
        *,
        if_version: Ordinal | None = None,
        actor: str = CLIENT,
    ) -> Chat:
        """Replace a queued message; it keeps its place.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
        """
        return await self._commands(actor).edit_queued(chat_id, queued_id, content, if_version=if_version)

    async def delete_queued(
        self, chat_id: str, queued_id: str, *, if_version: Ordinal | None = None, actor: str = CLIENT
    ) -> Chat:
        """Take a message out of the queue.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
        """
        return await self._commands(actor).change(chat_id, DeleteQueued(queued_id=queued_id), if_version=if_version)

    async def promote_queued(self, chat_id: str, queued_id: str, *, actor: str = CLIENT) -> Chat:
        """Make a queued message the next turn at once; the current turn is interrupted and its partial answer kept."""
        return await self._commands(actor).promote(chat_id, queued_id)

    # Reading

    async def messages(self, chat_id: str, *, view: HistoryView = "user") -> list[Message]:
        """Return the history: as the user sees it, as the model's next request holds it, or without synthetic messages.

        Changes that `prepare_messages` and reminders make to a request are not included.
        """
        facts = await self._chats().facts(chat_id)
        if view == "model":
            messages, at_hand = sendable(await self._chats().prompt(chat_id)), self._agents.at_hand(facts.profile)
            messages = without_refused(messages, facts.left_out, at_hand.model) if facts.left_out else messages
            return to_answer(at_hand, facts, messages) if _is_continued(facts) else messages
        history = await self._chats().history(chat_id)
        return user_view(history) if view == "user" else raw_view(history)

    async def transcript(self, chat_id: str) -> Transcript:
        """Return what a person sees of the chat now, including the reply under way, without reading its events.

        All of it is of one moment: `events(after=transcript.seq)` yields exactly what comes after it.

        Raises:
            ChatNotFound: there is no such chat.
        """
        return transcript_of(await self._chats().snapshot(chat_id))

    def transcript_pages(self, chat_id: str) -> AsyncGenerator[Transcript, None]:
        """Yield what `transcript` returns in pages of about 1 MiB: each has messages that follow those before it.

        All else is the same in each page, and all of it is of one moment. A chat without messages has one page.

        Raises:
            ChatNotFound: there is no such chat.
        """
        self._check_open()
        return self._here(transcript_pages(self._store, chat_id))

    async def compactions(self, chat_id: str) -> list[Compaction]:
        """Return the compactions of a chat, oldest first, with the summary that each put in place of older messages.

        Summaries are for the model: no event and no user's view shows them, so take care who gets to see them.
        """
        await self._chats().facts(chat_id)
        return compactions_of(await self._chats().history(chat_id), await self._chats().ledger(chat_id))

    async def usage(self, chat_id: str) -> list[UsageEntry]:
        """Return what the model calls of a chat used, in order: one entry per attempt of a step, compaction and title.

        The entry of a compaction that called no model has no figures.
        """
        await self._chats().facts(chat_id)
        return [
            UsageEntry(entry.purpose, entry.turn, entry.step, entry.attempt, entry.usage)
            for entry in await self._chats().ledger(chat_id)
        ]

    async def argument_schemas(self, chat_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the JSON schemas of the arguments of a chat's open calls, by tool: a form can be made from them.

        They are those of the agent that asked for the calls, whoever answers by now, and those that approvals with
        other arguments are checked against. A tool that this agent does not have in this engine is left out.
        """
        facts = await self._chats().facts(chat_id)
        toolbox = self._agents.toolbox(facts.profile_of_calls)
        return toolbox.argument_schemas(facts.open_calls, facts.profile.client_tools)

    async def erase_message(self, chat_id: str, message_id: str, *, actor: str = CLIENT) -> Chat:
        """Blank a message for good, wherever it is stored. The audit log still verifies.

        Any message can be erased: also one that an edit has cut, a summary, one that is queued or was deleted from the
        queue, and any message of an archived chat. `erase` does the same, and returns what was erased.

        Raises:
            MessageNotFound: the chat never had such a message.
        """
        return (await self._commands(actor).upkeep.erase(chat_id, wanted([message_id], ()))).chat

    async def erase(
        self,
        chat_id: str,
        *,
        messages: Sequence[str] = (),
        what: Collection[Erasable] = (),
        actor: str = CLIENT,
    ) -> Erasure:
        """Erase messages by id, or whole kinds of content, and return what was erased and where copies may remain.

        Of a chat that cannot be read only `everything` can be erased: a repair brings it to `error` first.

        Raises:
            MessageNotFound: the chat never had one of the messages.
            InvalidArgument: neither `messages` nor `what` names anything.
            ChatUnreadable: a stored value cannot be read, and `everything` was not asked for; nothing was erased.
        """
        return await self._commands(actor).upkeep.erase(chat_id, wanted(messages, what))

    def events(
        self, chat_id: str, *, after: Ordinal = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the chat's stored events after number `after`, then new ones as they come, unless `follow` is false.

        With `until_rest` it ends once the chat rests and all of its events were yielded: what is left of a turn after
        its calls were answered, or after a restart.
        """
        self._check_open()
        events = _follow(self._store, self._broadcaster, chat_id, after=after, live=follow, until_rest=until_rest)
        return self._here(events)

    async def wait(
        self,
        chat_id: str,
        *,
        until: Annotated[Collection[ChatState | str], Field(min_length=1)] = RESTING,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        """Return the chat once its state is in `until`; `interrupted` counts once settled.

        By default that is where the chat rests: not in `requires_action` while only subagents have to answer.

        Raises:
            TimeoutError: it did not get there in `timeout` seconds, or with 0 is not there now.
            InvalidArgument: `until` is empty.
        """
        arrived = partial(_has_arrived, frozenset(_state(state, "until") for state in until))
        with fail_after(timeout or None):
            at_once = timeout == 0
            return chat_of(await wait_for(self._chats(), self._broadcaster, chat_id, arrived, at_once=at_once))

    async def explain(self, chat_id: str) -> Explanation:
        """Return where the chat stands, and in one sentence why it is not moving.

        For a chat that cannot be read it says which table and column is wrong, and what can be done.
        """
        store = self._chats()
        rest, issues = await store.rest(chat_id), await issues_of(store, chat_id)
        try:
            lease = await store.lease_expiry(chat_id)
        except ChatUnreadable:
            lease = None
        archived = await archived_subagents(store, rest.facts)
        issues = issues or rest.issues
        return explanation(rest.facts, lease, issues=issues, archived=archived)

    # Chats that cannot be read

    def diagnose(
        self,
        *,
        files: bool = False,
        checkpoints: Annotated[str, InstanceOf] | None = None,
        public_key: bytes | None = None,
    ) -> AsyncIterator[Diagnosis]:
        """Yield what is wrong in the store, chat by chat: unreadable values, broken promises, and lost files.

        That files are there and have their sizes is always looked at. If the file store cannot be reached, or is not
        the one of this store, the last diagnosis says so.

        Args:
            files: also read each file, and compare it with its digest.
            checkpoints: lines that `Checkpoints` has published: also name each chat that is gone, or whose log is
                not the one that they tell of.
            public_key: the Ed25519 keys, as PEM, that the checkpoints must be signed with.

        Raises:
            SettingsError: there are checkpoints and no usable public key, or a public key and no checkpoints.
        """
        self._check_open()
        return self._here(diagnose(self._files, read=files, elsewhere=published(checkpoints, public_key)))

    async def repair(self, chat_id: str, *, actor: str = CLIENT) -> Chat:
        """Bring a chat that cannot be read, or breaks a promise, to `error`, with all of it that can be read.

        Rows that cannot be read are kept in the table `quarantine`. The audit log records the repair and is otherwise
        left as it is.

        Raises:
            IllegalTransition: nothing is wrong with the chat.
        """
        return await self._commands(actor).upkeep.repair(chat_id)

    async def export_rows(self, chat_id: str) -> str:
        """Return every row of a chat as it is stored, readable or not, as JSON Lines. Nothing is changed."""
        rows = await self._chats().raw_rows(chat_id)
        return await run_in_thread(lambda: "".join(f"{line}\n" for line in lines_of(rows)))

    # The audit log

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return one record for every transition, in order of version."""
        await self._chats().facts(chat_id)
        return await self._chats().audit(chat_id)

    async def export_audit(self, chat_id: str, *, key: bytes | None = None, signer: SigningKey | None = None) -> str:
        """Return the log as JSON Lines. `verify_export` checks it without a store.

        Args:
            chat_id: the chat.
            key: signs it so that whoever has the same key can check the signature (HMAC).
            signer: signs it so that whoever has the public key can (Ed25519).
        """
        records = await self.audit(chat_id)
        return await run_in_thread(lambda: export(chat_id, records, key=key, signer=signer))

    async def verify(
        self,
        chat_id: str,
        *,
        family: bool = False,
        files: bool = False,
        checkpoints: Annotated[str, InstanceOf] | None = None,
        public_key: bytes | None = None,
    ) -> Verdict:
        """Check the log's unit, every transition and promise against the table, and every row against the log.

        Args:
            chat_id: the chat.
            family: also those of its subagents and theirs, and that their logs name each other as they were.
            files: also that what the chat's messages refer to is in the file store, byte for byte: each file is read.
            checkpoints: lines that `Checkpoints` has published: the log must be the one that they tell of, so that
                whoever has rewritten all of the database is found. Those of subagents are not looked at.
            public_key: the Ed25519 keys, as PEM, that the checkpoints must be signed with.

        Raises:
            SettingsError: there are checkpoints and no usable public key, or a public key and no checkpoints.
        """
        elsewhere = published(checkpoints, public_key)
        verdict = await verify_family(self._chats(), chat_id) if family else None
        rows = await self._chats().rows(chat_id)
        if verdict is None or (verdict.ok and elsewhere is not None):
            verdict = await run_in_thread(lambda: verify_stored(chat_id, rows, elsewhere))
        if files and verdict.ok:
            files_verdict = await verify_files(self._files, rows)
            return verdict if files_verdict.ok else files_verdict
        return verdict

    def _commands(self, actor: str) -> Commands:
        if self._commands_or_none is None:
            raise EngineClosed(self._closed or CLOSED)
        self._lifetime.check_loop()
        return self._commands_or_none.acting(actor)

    def _chats(self) -> ChatStore:
        """The store, while the engine is open, in its own event loop."""
        self._check_open()
        self._lifetime.check_loop()
        return self._store

    def _turn(self, receipt: SendReceipt, *, at_once: bool = False) -> TurnReader:
        following = _follow(
            self._chats(),
            self._broadcaster,
            receipt.chat.id,
            after=receipt.seq,
            live=True,
            until_rest=True,
            at_once=at_once,
        )
        return TurnReader(following, receipt)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise EngineClosed(self._closed)

    async def _here(self, stream: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """Yield from a stream in the engine's own event loop; it may be made in a thread that has none."""
        self._lifetime.check_loop()
        async with aclosing(stream) as items:
            async for item in items:
                yield item

    async def _hint(self, chat_id: str | None) -> None:
        if self._worker is not None:
            await self._worker.hint(chat_id)


def _declared(own: Agent, agents: Sequence[Agent]) -> list[Agent]:
    """Return the agents that an engine runs: those given and, if it has anything of its own, `default`."""
    has_own = own.model is not None or own.tools or not agents
    return [own, *agents] if has_own else [*agents]


def _import_late(*, runs_chats: bool) -> None:
    """Import what takes long and only some calls need: when one does, no descriptor may be left to open a module."""
    for name in ("tempfile", "turnwise.engine.admin.admin", *(("json_repair", "pydantic_core") if runs_chats else ())):
        import_module(name)


def _state(state: ChatState | str, argument: str = "state") -> ChatState:
    try:
        return ChatState(state)
    except ValueError:
        raise SettingsError(argument, f"must be one of {', '.join(ChatState)}; it was {state!r}") from None


def _has_arrived(states: Collection[ChatState], facts: Facts) -> bool:
    if states == RESTING:
        return facts.resting
    if facts.stored_state is not None or facts.state not in states:
        return False
    return facts.state is not ChatState.interrupted or facts.settled


def _is_continued(facts: Facts) -> bool:
    """Whether the next request holds the history as it stands, without a result or queued message before it."""
    return facts.history.unfinished and not facts.open_calls and not (facts.resting and facts.queue)
