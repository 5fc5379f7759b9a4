"""The engine: the object through which a service uses turnwise. Its lifetime is here, its methods are in `Chats`."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Annotated, Final, Self

from pydantic import InstanceOf, SkipValidation

from turnwise.engine.admin.diagnose import Diagnosis, diagnose
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.deps import check_deps
from turnwise.engine.blobs.files import Files
from turnwise.engine.chats.chats import LocalChats
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.engine.checkpoints.publisher import Publisher
from turnwise.engine.commands.acting import ActingChats, HandledChats
from turnwise.engine.commands.handlers import Handlers
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import Clock, SystemClock, sleep
from turnwise.engine.isolation.guarded_store import claim_store, guarded_files, guarded_store
from turnwise.engine.isolation.tasks import Lifetime, Tasks, run_in_thread
from turnwise.engine.isolation.user_code import CLOSE_TIMEOUT_S
from turnwise.engine.observers.observer import Observer, Observers
from turnwise.engine.prompt.hooks import Hooks, PrepareMessages, Reminder
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.subscriptions.follow import watch
from turnwise.engine.tools.declare import Tool, ToolFunction
from turnwise.engine.tools.sources import ToolSource
from turnwise.engine.transactions.chat_writer import ChatWriter
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.identity import worker_name
from turnwise.engine.worker.worker import Worker
from turnwise.persistence.audit.checkpoints import published
from turnwise.persistence.blobs.protocol import FileStore
from turnwise.persistence.chat_rows import lines_of
from turnwise.persistence.from_url import store_from_url, url_or_store
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.protocol import Model
from turnwise.states.errors import (
    EngineClosed,
)
from turnwise.states.names import DEFAULT_AGENT
from turnwise.states.values.checked import checked, fit
from turnwise.states.values.limits import Actor

NOT_OPEN: Final = "the engine is not open; use it inside 'async with Engine(...)'"
_FAILURE_CALLBACK_DELAY_S: Final = 0.05
CLOSED: Final = (
    "the engine was closed; open one inside 'async with Engine(...)' and go on after the last event you have seen"
)
FAILED: Final = (
    "the engine has ended by an error, which the log holds; open one elsewhere and go on after the last event you have "
    "seen"
)
RELEASED: Final = "the engine has ended its streams; open one elsewhere and go on after the last event you have seen"


@checked
class Engine(HandledChats):
    """Runs chats on a store. Every change is one durable transaction; every method returns what is stored.

    Use it as an async context manager: entering opens the store and, unless `Settings(run_worker=False)`, starts a
    worker in this process. Leaving lets running jobs finish for `shutdown_grace` seconds, then releases their chats.

    `acting` returns the same chats on behalf of an actor, whom the audit log then names.

    Args:
        store: `sqlite:///path`, `sqlite://` (in memory), `postgresql://...`, or a `ChatStore`, which serves one engine
            at a time.
        files: the store of files: by default the chats' own database; `FolderFiles(path)` is a folder,
            `BucketFiles(store)` a bucket.
        model: a `Model`, or the name of one, or several of both: each stands in for those before it when they fail,
            see `Agent.model`. The engine closes the connections of a model that it made from a name.
            With or without `tools` it makes the agent `default`; agents without a model of their own have it, too.
        tools: functions declared by `tool`; bare functions are declared with the defaults; sources of tools, such as
            `MCPTools`, are entered. They are those of `default` alone: each of the `agents` has its own.
        agents: the agents that the engine runs, if one is not enough. A chat that names none gets `default`, where
            there is one, or the only one.
        deps: the value of `ToolContext.deps`, or a function of the `Chat` that returns an async context manager. It is
            entered before the first tool runs while this worker holds the chat, and left when the worker releases the
            chat, or before a tool of another agent runs.
        settings: the settings of the engine.
        reminders: producers of system messages for single requests, of agents that have none of their own.
        prepare_messages: replaces the messages of single requests, of agents that have none of their own; the stored
            history is never changed.
        observers: objects that receive what the engine does, for metrics and traces.
        checkpoints: publishes signed lengths and hashes of the logs outside of the store.
        clock: for tests, a clock that the test moves.

    Raises:
        SettingsError: an argument is invalid; the text says which and why.
    """

    _close_timeout = CLOSE_TIMEOUT_S

    def __init__(  # noqa: PLR0913 - the contract
        self,
        store: Annotated[str | ChatStore, SkipValidation],
        *,
        files: FileStore | None = None,
        model: Model | str | Sequence[Model | str] | None = None,
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
        self._clock: Clock = SystemClock() if clock is None else clock
        own, hooks = Agent(DEFAULT_AGENT, model, tools=tools), Hooks(tuple(reminders), prepare_messages)
        has_own = own.model is not None or own.tools or not agents
        declared = [own, *agents] if has_own else agents
        self._agents = Agents(declared, self.settings, model=model, hooks=hooks)
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
        self._open_handlers: Handlers | None = None
        self._is_stopping = False
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
            opened.enter_context(claim_store(self._store))
            await opened.enter_async_context(self._agents.connected())
            for source in self._agents.sources:
                await opened.enter_async_context(source)
            await self._store.open()
            opened.push_async_callback(self._store.close)
            await self._files.blobs.open()
            opened.push_async_callback(self._files.blobs.close)
            self._agents.load_prices()
            self._broadcaster, tasks = Broadcaster(), Tasks(self._close_timeout, partial(sleep, self._clock))
            publisher = await self._opened_publisher()
            runtime = Runtime(
                writer=ChatWriter(
                    self._store,
                    self._broadcaster,
                    self._agents.limits,
                    self._observers,
                    publisher,
                    estimator_of=self._agents.estimator,
                ),
                agents=self._agents,
                shares=self._agents.shares,
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
                self._broadcaster.observe(self._worker.chats.observe, forget=self._worker.chats.forget)
                tasks.start_vital(self._worker.run)
            self._open_handlers = Handlers(runtime, self._worker, self._broadcaster, self._lifetime)
            tasks.start_vital(partial(watch, self._store, self._broadcaster, self._hint))
            self._closed, self._is_stopping = None, False
            try:
                yield
            except BaseException:  # a vital task has failed, or the engine's own was cancelled
                self._fail()
                raise
            finally:
                self._is_stopping = True
                worker, self._worker = self._worker, None
                try:
                    if worker is not None:
                        await worker.stop()
                    if publisher is not None:
                        await publisher.close(self.settings.shutdown_grace)
                finally:
                    self._closed, self._open_handlers = self._closed or CLOSED, None
                    self._broadcaster.close(CLOSED)

    def _fail(self) -> None:
        self._closed = FAILED
        self._broadcaster.close(FAILED)
        for callback in self._failure_callbacks:
            # Not called if the event loop ends: then the program ends anyway, and has cancelled all of its tasks.
            asyncio.get_running_loop().call_later(_FAILURE_CALLBACK_DELAY_S, callback)

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
        """Wait until the engine is closed or has failed, in a process that only runs an engine.

        Raises:
            EngineClosed: the engine is not open, or its task was cancelled.
            Exception: the error that ended it.
        """
        self._check_open()
        await self._lifetime.over()

    @property
    def has_failed(self) -> bool:
        """Whether the engine has failed."""
        return self._closed == FAILED

    def add_failure_callback(self, callback: Callable[[], object]) -> None:
        """Call a function in the engine's event loop if the engine fails."""
        self._failure_callbacks.append(callback)

    @property
    def takes_followers(self) -> bool:
        """Whether the engine is open and accepts subscribers."""
        return self._closed is None and self._broadcaster.closed is None

    async def check_writable(self) -> None:
        """Check that the store accepts writes, by a commit that changes nothing.

        Raises:
            EngineClosed: the engine is not open.
            StoreError: the store takes no writes now: it is away, full, locked, or may only be read.
        """
        await self._chats().check_writable()

    async def draw(self, name: str, *, wanted: int, per_second: float, burst: int) -> tuple[int, float]:
        """Take up to `wanted` out of a bucket that all processes on the database share; return how many, and the rest.

        For a rate limit across replicas: the bucket holds `burst` at first and at most, and fills by `per_second`.

        Raises:
            EngineClosed: the engine is not open.
            StoreError: the store takes no writes now.
        """
        return await self._chats().draw(name, wanted=wanted, per_second=per_second, burst=burst)

    def release_followers(self) -> None:
        """End every `events`, `wait`, `ask` and `stream`, running or still to come, with `EngineClosed`.

        Call it when a server stops and waits for its connections before it closes the engine. Events up to then are
        still yielded. Chats continue until the engine is closed.
        """
        self._broadcaster.close(RELEASED)

    def acting(self, actor: Actor) -> LocalChats:
        """Return the same chats, with another actor in the audit log; that of the engine's own methods is `client`.

        Raises:
            InvalidArgument: the name is blank, longer than 1,024 bytes, or like that of a worker.
        """
        return ActingChats(self, actor)

    async def check_files(self) -> None:
        """Check that the chats' files are in this engine's file store.

        Raises:
            StoreError: they are in another file store than `files`; the text names both.
        """
        self._chats()
        await self._files.check_place()

    def diagnose(
        self,
        *,
        files: bool = False,
        checkpoints: Annotated[str, InstanceOf] | None = None,
        public_key: bytes | None = None,
    ) -> AsyncIterator[Diagnosis]:
        """Yield what is wrong in the store, chat by chat: unreadable values, broken invariants and lost files.

        Existence and sizes of files are always checked. If the file store cannot be reached, or is not the one of this
        store, the last diagnosis says so.

        Args:
            files: also read each file, and compare it with its digest.
            checkpoints: lines that `Checkpoints` has published: also name each chat that is gone, or whose log
                contradicts them.
            public_key: the Ed25519 keys, as PEM, that the checkpoints must be signed with.

        Raises:
            SettingsError: there are checkpoints and no usable public key, or a public key and no checkpoints.
        """
        self._check_open()
        return self._lifetime.here(diagnose(self._files, read=files, elsewhere=published(checkpoints, public_key)))

    async def export_rows(self, chat_id: str) -> str:
        """Return every stored row of a chat, readable or not, as JSON Lines."""
        rows = await self._chats().raw_rows(chat_id)
        return await run_in_thread(lambda: "".join(f"{line}\n" for line in lines_of(rows)))

    def _handlers(self, *, changes: bool) -> Handlers:
        if self._open_handlers is None or self._closed is not None or (changes and self._is_stopping):
            raise EngineClosed(self._closed or CLOSED)
        return self._open_handlers

    def _chats(self) -> ChatStore:
        """The store, while the engine is open, in its own event loop."""
        self._check_open()
        self._lifetime.check_loop()
        return self._store

    def _check_open(self) -> None:
        if self._closed is not None:
            raise EngineClosed(self._closed)

    async def _hint(self, chat_id: str | None) -> None:
        if self._worker is not None:
            await self._worker.chats.changed_elsewhere(chat_id)


def _import_late(*, runs_chats: bool) -> None:
    """Import modules that only some calls need: later, no file descriptor may be left to open them."""
    for name in ("tempfile", "turnwise.engine.admin.admin", *(("json_repair", "pydantic_core") if runs_chats else ())):
        import_module(name)
