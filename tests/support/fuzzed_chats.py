"""Chats on which the fuzz calls methods: a copy of a store, whoever reaches it, and what is asked of it afterwards."""

from __future__ import annotations

import inspect
import shutil
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, get_args

import anyio
from anyio.from_thread import BlockingPortal

from support.fuzzing import PATIENCE, Case, arguments_of
from support.public_surface import Target, methods
from support.right_arguments import OBJECT, right_arguments
from support.served import served
from turnwise import (
    ChatState,
    ClientTool,
    Engine,
    Settings,
    StopReason,
    TurnwiseError,
    tool,
)
from turnwise.client import BadAnswer, Client, ClientSettings, ServiceFailed, ServiceUnreachable
from turnwise.engine.prompt.views import HistoryView
from turnwise.providers.scripted import Call, Reply, ScriptedModel

LIMITS: Final = Settings(run_worker=False, message_limit_bytes=100_000)
WAITING: Final = frozenset({"ask", "stream", "wait"})
"""These wait for a worker that is not there."""
BROKEN: Final = (ServiceFailed, BadAnswer, ServiceUnreachable)
"""What a client raises when its service has failed: the service must not."""


def filled(path: Path) -> None:
    """Make a database with a chat in each state that a client can meet."""
    anyio.run(_filled, path)


async def _filled(path: Path) -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError

    script = [Reply("hello"), Reply(calls=[Call("sign", {"x": 1}, id="call_1")]), Reply("bye")]
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(script), tools=[fail]) as engine:
        rested = await engine.create_chat(owner="o", title="t", metadata={"k": 1}, system="s")
        await engine.ask(rested.id, "hi")
        asking = await engine.create_chat(client_tools=[ClientTool("sign", "Sign.", OBJECT)])
        await engine.ask(asking.id, "hi")
        archived = await engine.create_chat()
        await engine.ask(archived.id, "hi")
        await engine.archive(archived.id)
        failed = await engine.create_chat()
        await engine.ask(failed.id, "one too many")
    async with Engine(f"sqlite:///{path}", model=ScriptedModel("ok"), settings=LIMITS) as engine:
        waiting = await engine.create_chat()
        for text in ("a", "b", "c"):
            await engine.send_message(waiting.id, text, client_id=text)
        stopped = await engine.create_chat()
        await engine.send_message(stopped.id, "hi")
        await engine.interrupt(stopped.id)
        states = {chat.state for chat in (await engine.list_chats()).items}
    assert states == {ChatState(word) for word in ("waiting", "requires_action", "error", "pending", "interrupted")}


AT_ONCE: Final = {"ask.chat_id": "archived", "stream.chat_id": "archived", "wait.chat_id": "waiting"}
"""Chats of which what else would wait gets an answer at once."""


def methods_of(kind: type, chat_ids: Mapping[str, str] | None = None, *, waits: bool = True) -> list[Target]:
    """Return the methods of `Engine` or `Client`, with right arguments.

    Args:
        kind: whose methods.
        chat_ids: chats by their states; none in particular by default.
        waits: whether some wait for a worker that is not there.
    """
    chat_ids = chat_ids or dict.fromkeys((*ChatState, "archived"), "c")
    at_once = {} if waits else {name: chat_ids[state] for name, state in AT_ONCE.items()}
    return methods(kind, right_arguments(chat_ids) | at_once)


def _engine(path: Path) -> Engine:
    return Engine(f"sqlite:///{path}", model=ScriptedModel("ok"), settings=LIMITS)


@asynccontextmanager
async def _client(path: Path) -> AsyncIterator[Client]:
    """Serve an engine on the store, and yield a client of that service."""
    settings = ClientSettings(patience=0)
    async with (
        served(_engine(path)) as service,
        Client(service.url, token="operator-token", settings=settings) as client,  # noqa: S106 - of a test's service
    ):
        yield client


Opened = Callable[[Path], AbstractAsyncContextManager[Any]]
OPENED: Final[Mapping[type, Opened]] = {Engine: _engine, Client: _client}
"""How chats of a store are reached."""


class World:
    """An engine or a client on a copy of the store; a new one, after another engine has read the old one, now and then.

    Args:
        portal: where they run.
        store: what is copied.
        kind: `Engine` or `Client`.
        most: how many calls may write something to one copy.
        waits: whether some methods wait for a worker that is not there, and are cut off.
    """

    def __init__(self, portal: BlockingPortal, store: Path, kind: type, *, most: int, waits: bool = False) -> None:
        self._portal = portal
        self._store = store
        self._kind = kind
        self._most = most
        self._waits = waits
        self._path = store.with_name(f"copy of {kind.__name__}.db")
        self._open = ExitStack()
        self._writes = 0
        self._targets: dict[str, Target] = {}
        self._reached: Engine | Client
        self._other: sqlite3.Connection

    def try_out(self, case: Case) -> TurnwiseError | None:
        """Call a method once, and return how it refused. What it refuses writes nothing."""
        if not self._targets or self._writes >= self._most:
            self.renew()
        right = Case(self._targets[case.target.name], case.odd)
        before = self._written()
        refusal, is_cut = self._portal.call(_answer, self._reached, right)
        if is_cut:  # it may write a moment later
            self._writes = self._most
        elif self._written() != before:
            assert refusal is None, f"{case} was refused, and wrote something"
            self._writes += 1
        return refusal

    def renew(self) -> None:
        """Read what is stored with a new engine, and begin again with another copy."""
        self.close()
        for end in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        shutil.copy(self._store, self._path)
        self._reached = self._open.enter_context(
            self._portal.wrap_async_context_manager(OPENED[self._kind](self._path))
        )
        self._other = self._open.enter_context(closing(sqlite3.connect(self._path)))
        chats = self._portal.call(self._reached.list_chats).items
        chat_ids = {"archived" if chat.archived else chat.state.value: chat.id for chat in chats}
        self._targets = {target.name: target for target in methods_of(self._kind, chat_ids, waits=self._waits)}
        self._writes = 0

    def close(self) -> None:
        """Leave the engine; another then reads every chat."""
        if self._targets:
            self._open.close()
            self._portal.call(_readable, self._path)
            self._portal.call(_works, self._path)

    def _written(self) -> tuple[int, int, int]:
        """Return what every commit changes: the version that another connection sees, and the bytes of both files."""
        version = self._other.execute("PRAGMA data_version").fetchone()[0]
        log = self._path.with_name(self._path.name + "-wal")
        return version, zlib.crc32(self._path.read_bytes()), zlib.crc32(log.read_bytes() if log.exists() else b"")


async def _answer(reached: Engine | Client, case: Case) -> tuple[TurnwiseError | None, bool]:
    """Call a method, and return how it refused, and whether it was cut off as it waited.

    Whatever is raised is typed, and comes soon.
    """
    name, arguments = case.target.name, arguments_of(case)[1]
    waits = name in WAITING or (name == "events" and arguments.get("follow") is not False)
    try:
        with anyio.move_on_after(0.05 if waits else PATIENCE) as limit:
            await call(reached, case)
    except BROKEN as error:
        raise AssertionError(f"{case} broke the service") from error
    except TurnwiseError as error:
        return error, False
    except TimeoutError:
        assert "timeout" in arguments
        return None, True
    assert waits or not limit.cancelled_caught, f"{case} hangs"
    return None, limit.cancelled_caught


async def call(reached: Engine | Client, case: Case) -> None:
    """Call a method, and read its answer to the end."""
    answer = case.target.function(reached, **arguments_of(case)[1])
    if inspect.isawaitable(answer):
        await answer
    elif answer is not None:
        async with aclosing(answer):
            async for _ in answer:
                pass


async def _readable(path: Path) -> None:
    """Open the store anew: every chat is listed, can be read whole, and verifies."""
    async with _engine(path) as engine:
        page = await engine.list_chats(limit=1000)
        with closing(sqlite3.connect(path)) as other:
            assert len(page.items) == other.execute("SELECT count(*) FROM chats").fetchone()[0]
        for chat in page.items:
            assert await engine.get_chat(chat.id) == chat
            for view in get_args(HistoryView):
                await engine.messages(chat.id, view=view)
            await engine.queued(chat.id)
            await engine.explain(chat.id)
            assert [event.seq async for event in engine.events(chat.id, follow=False)]
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict


async def _look(**_: Any) -> str:
    return "nothing"


async def _works(path: Path) -> None:
    """Let a worker run on what was accepted: whatever a chat was made to hold, it rests, and answers a new message."""
    look = tool(name="look", description="Looks.", schema=OBJECT)(_look)  # the chat that is imported needs it
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(lambda _: Reply("ok")), tools=[look]) as engine:
        for chat in (await engine.list_chats(limit=1000)).items:
            if chat.archived:
                continue
            with anyio.fail_after(PATIENCE):
                rested = await engine.wait(chat.id)
                if rested.state is ChatState.requires_action:
                    await engine.interrupt(chat.id)
                answer = await engine.ask(chat.id, "still there?")
            assert answer.chat.state is ChatState.waiting, f"{chat} ended in {answer.chat}"
            assert answer.stop_reason is StopReason.end_turn
            assert (await engine.verify(chat.id)).ok
