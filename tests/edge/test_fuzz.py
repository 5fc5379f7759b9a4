"""Whatever is handed to the public surface: a typed error, nothing hangs, and what is refused writes nothing.

`make explore TESTS=tests/edge` tries other cases, and more of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import assume, given
from hypothesis import strategies as st

from support.fuzzing import LIMITS, filled, runs
from support.odd_values import Odd, odd_values
from support.public_surface import KEY, OBJECT, Target, makers, methods
from turnwise import (
    RESTING,
    Agent,
    ChatState,
    ClientTool,
    Engine,
    FilePart,
    Settings,
    StopReason,
    ToolContext,
    ToolResult,
    TurnwiseError,
    tool,
)
from turnwise.persistence.conformance.importing import exported_lines
from turnwise.providers.scripted import Call, Reply, ScriptedModel

CALLS_OF_ENGINE: Final = 25
"""Cases on one copy of the store, before a new engine reads it."""
PLAIN: Final = frozenset({"decide"})
"""What Python itself refuses if an argument is missing or misspelt: it is asked for every transition."""
WAITING: Final = frozenset({"ask", "stream", "wait"})
"""These wait for a worker that is not there."""
PATIENCE: Final = 30
ACT: Final = [Call("act", {})]
MISSPELT: Final = Odd(None, "misspelt")
MISSING: Final = Odd(None, "missing")

Oddity = tuple[str, Odd]
"""An argument, and what is handed in for it; or one that is left out, or misspelt."""


@st.composite
def oddities(draw: st.DrawFn, target: Target) -> list[Oddity]:
    """Draw what is wrong with a call: one to three odd arguments, sometimes a missing or a misspelt one."""
    names = [name for name in target.right if name not in target.positional] or ["nothing"]
    names += 4 * [name for name in names if name not in ("chat_id", "actor")]
    odd = draw(st.lists(st.tuples(st.sampled_from(names), odd_values), min_size=1, max_size=2))
    if target.name not in PLAIN and draw(st.integers(0, 9)) == 0:
        odd.append((draw(st.sampled_from(names)), draw(st.sampled_from([MISSING, MISSPELT]))))
    return odd


def arguments_of(target: Target, odd: list[Oddity]) -> dict[str, Any]:
    """Return the right arguments, with what is odd in their places."""
    given_arguments = {name: value for name, value in target.right.items() if name not in target.positional}
    for name, value in odd:
        if value is MISSPELT or name == "nothing":
            given_arguments[f"{name}s_"] = given_arguments.pop(name, None)
        elif value is MISSING:
            given_arguments.pop(name, None)
        else:
            given_arguments[name] = value.value
    return given_arguments


MAKERS: Final = makers()


@runs(0.45)
@given(st.data())
def test_what_is_declared_is_taken_or_refused_with_a_typed_error(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(MAKERS), label="target")
    arguments = arguments_of(target, data.draw(oddities(target)))
    first = [target.right[name] for name in target.positional if data.draw(st.booleans())]
    with suppress(TurnwiseError):
        target.function(*first, **arguments)


DECLARED: Final = [target for target in MAKERS if target.name in {"Agent", "Settings", "tool", "Tool", "ClientTool"}]


@runs(0.1)
@given(st.data())
def test_what_is_taken_as_a_declaration_runs_a_turn(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(DECLARED), label="target")
    names = [name for name in target.right if name not in target.positional and name != "run_worker"]
    with suppress(TurnwiseError):
        made = target.function(
            *(target.right[name] for name in target.positional),
            **arguments_of(target, [(data.draw(st.sampled_from(names)), data.draw(odd_values))]),
        )
        anyio.run(_turn_of, made)


async def _turn_of(made: Any) -> None:
    """Run a turn with what was declared, and a call of its tool, if it is one. However it ends, the chat rests."""
    agent = made if isinstance(made, Agent) else Agent("support", "demo")
    tools = [] if isinstance(made, Agent | Settings | ClientTool) else [made]
    settings = dataclasses.replace(made, run_worker=True) if isinstance(made, Settings) else Settings()
    calls = [Call(one.name, {"query": "x"}) for one in [*tools, made][:1] if hasattr(one, "name") and one is not agent]
    model = ScriptedModel(lambda request: Reply("ok") if request.messages[-1].role == "tool" else Reply(calls=calls))
    async with Engine("sqlite://", model=model, tools=tools, agents=[agent], settings=settings) as engine:
        given_tools = [made] if isinstance(made, ClientTool) else []
        with anyio.fail_after(PATIENCE):
            for name in {"default", agent.name}:
                chat = await engine.create_chat(agent=name, client_tools=given_tools)
                answer = await engine.ask(chat.id, "hi")
                assert answer.chat.state in RESTING
                assert (await engine.verify(chat.id)).ok


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a chat in each state that a client can meet."""
    path = tmp_path_factory.mktemp("store") / "chats.db"
    filled(path)
    return path


def right_arguments(chat_ids: dict[str, str]) -> dict[str, Any]:
    """Return what is right for the methods of an engine on the store."""
    return {
        "chat_id": chat_ids["pending"],
        "content": "hi",
        "put_file.content": b"hi",
        "media_type": "image/png",
        "name": "cat.png",
        "file": FilePart(media_type="image/png", data="aGk="),
        "when_busy": "queue",
        "client_id": "k",
        "create_chat.client_id": "a chat of its own",
        "actor": "someone",
        "submit_tool_results.chat_id": chat_ids["requires_action"],
        "results": [ToolResult("call_1", 1)],
        "edit_message.chat_id": chat_ids["waiting"],
        "erase_message.chat_id": chat_ids["waiting"],
        "erase.chat_id": chat_ids["waiting"],
        "delete_chat.chat_id": chat_ids["error"],
        "import_chat.key": None,
        "lines": exported_lines(),
        "messages": ["m1"],
        "what": ["title"],
        "message_id": "m1",
        "queued_id": "m2",
        "view": "user",
        "reason": "r",
        "at_version": 1,
        "key": b"k",
        "signer": KEY,
        "checkpoints": "",
        "public_key": KEY.public_pem,
        "prefix": "c",
        "owner": "o",
        "title": "t",
        "metadata": {"k": 1},
        "update_chat.archived": False,
        "if_version": None,
        "system": "s",
        "parent": chat_ids["waiting"],
        "client_tools": [ClientTool("sign", "Sign.", OBJECT)],
        "state": "waiting",
        "limit": 5,
        "list_chats.after": chat_ids["waiting"],
        "after": 0,
        "follow": False,
        "until_rest": False,
        "until": {"waiting"},
        "timeout": 0.01,
        "arguments": {},
        "awaiting": "client",
        "family": True,
        "files": True,
        "agent": "default",
        "ask.agent": None,
        "model": "demo",
        "parameters": {},
        "active_tools": [],
        "history": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    }


METHODS: Final = methods(dict.fromkeys(("chat_id", *right_arguments(dict.fromkeys(ChatState, "c")))))


class World:
    """An engine on a copy of the store; a new one, after another has read the old one, every so many cases."""

    def __init__(self, portal: BlockingPortal, store: Path) -> None:
        self._portal = portal
        self._store = store
        self._path = store.with_name("copy.db")
        self._open = ExitStack()
        self._cases = 0
        self.targets: dict[str, Target] = {}
        self._engine: Engine
        self._other: sqlite3.Connection

    def try_out(self, method: str, odd: list[Oddity]) -> None:
        """Call a method once. What it refuses writes nothing."""
        if self._cases % CALLS_OF_ENGINE == 0:
            self.renew()
        self._cases += 1
        target = self.targets[method]
        before = _written(self._other, self._path)
        if self._portal.call(_refused, self._engine, target, arguments_of(target, odd)):
            assert _written(self._other, self._path) == before, "a refused call wrote something"

    def renew(self) -> None:
        """Read what is stored with a new engine, and begin again with another copy."""
        self.close()
        for end in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        shutil.copy(self._store, self._path)
        engine = Engine(f"sqlite:///{self._path}", model=ScriptedModel("ok"), settings=LIMITS)
        self._engine = self._open.enter_context(self._portal.wrap_async_context_manager(engine))
        self._other = self._open.enter_context(closing(sqlite3.connect(self._path)))
        chats = self._portal.call(self._engine.list_chats).items
        right = right_arguments({chat.state.value: chat.id for chat in chats if not chat.archived})
        self.targets = {target.name: target for target in methods(right)}

    def close(self) -> None:
        """Leave the engine; another then reads every chat."""
        if self.targets:
            self._open.close()
            self._portal.call(_readable, self._path)
            self._portal.call(_works, self._path)


@pytest.fixture(scope="module")
def world(store: Path) -> Iterator[World]:
    """Return a world that is looked at once more in the end."""
    with start_blocking_portal() as portal:
        lived = World(portal, store)
        yield lived
        lived.close()


@runs(0.4)
@given(st.data())
def test_what_a_chat_is_asked_is_done_or_refused_and_a_refusal_writes_nothing(
    world: World, data: st.DataObject
) -> None:
    target = data.draw(st.sampled_from(METHODS), label="method")
    world.try_out(target.name, data.draw(oddities(target)))


class Turn:
    """A turn whose tool calls a method on its own chat, in the midst of a worker's job."""

    def __init__(self) -> None:
        self._method: str | None = None
        self._odd: list[Oddity] = []
        act = tool(self._act, name="act", description="Acts.", schema=OBJECT)
        model = ScriptedModel(lambda request: Reply("ok", calls=[] if request.messages[-1].role == "tool" else ACT))
        self.engine = Engine("sqlite://", model=model, tools=[act])

    async def _act(self, context: ToolContext) -> str:
        if self._method is None:
            return "done before"
        own = dict.fromkeys((state.value for state in ChatState), context.chat_id)
        target = next(one for one in methods(right_arguments(own)) if one.name == self._method)
        self._method = None
        with suppress(TurnwiseError, TimeoutError):
            await _call(self.engine, target, arguments_of(target, self._odd))
        return "done"

    async def take(self, method: str, odd: list[Oddity]) -> None:
        """Take a turn, and another. The chat rests after each, however its method ended."""
        self._method, self._odd = method, odd
        chat = await self.engine.create_chat()
        for _ in range(2):
            with anyio.fail_after(PATIENCE):
                await self.engine.ask(chat.id, "hi")
                await self.engine.wait(chat.id)
        assert (await self.engine.verify(chat.id)).ok


@pytest.fixture(scope="module")
def turn() -> Iterator[tuple[BlockingPortal, Turn]]:
    """Return a turn, on an engine with a worker."""
    with start_blocking_portal() as portal:
        one = Turn()
        with portal.wrap_async_context_manager(one.engine):
            yield portal, one


@runs(0.06)
@given(st.data())
def test_what_a_chat_is_asked_while_it_works_lets_it_work_on(
    turn: tuple[BlockingPortal, Turn], data: st.DataObject
) -> None:
    portal, one = turn
    methods_then = [target for target in METHODS if target.name not in WAITING | {"delete_chat", "erase"}]
    target = data.draw(st.sampled_from(methods_then), label="method")
    odd = data.draw(st.just([]) | oddities(target))
    assume(target.name != "events" or all(argument != "follow" for argument, _ in odd))  # it would wait for itself
    portal.call(one.take, target.name, odd)


def _written(other: sqlite3.Connection, path: Path) -> tuple[int, int, int]:
    """Return what every commit changes: the version that another connection sees, and the bytes of both files."""
    version = other.execute("PRAGMA data_version").fetchone()[0]
    log = path.with_name(path.name + "-wal")
    return version, zlib.crc32(path.read_bytes()), zlib.crc32(log.read_bytes() if log.exists() else b"")


async def _refused(engine: Engine, target: Target, arguments: dict[str, Any]) -> bool:
    """Call a method, and return whether it refused. Whatever is raised is typed, and comes soon."""
    waits = target.name in WAITING or (target.name == "events" and arguments.get("follow") is not False)
    try:
        with anyio.move_on_after(0.05 if waits else PATIENCE) as limit:
            await _call(engine, target, arguments)
    except TurnwiseError:
        return True
    except TimeoutError:
        assert "timeout" in arguments
    assert waits or not limit.cancelled_caught, f"{target.name} hangs"
    return False


async def _call(engine: Engine, target: Target, arguments: dict[str, Any]) -> None:
    """Call a method, and read its answer to the end."""
    answer = target.function(engine, **arguments)
    if inspect.isawaitable(answer):
        await answer
        return
    async with aclosing(answer):
        async for _ in answer:
            pass


async def _readable(path: Path) -> None:
    """Open the store anew: every chat is listed, can be read whole, and verifies."""
    async with Engine(f"sqlite:///{path}", model=ScriptedModel("ok"), settings=LIMITS) as engine:
        page = await engine.list_chats(limit=1000)
        with closing(sqlite3.connect(path)) as other:
            assert len(page.items) == other.execute("SELECT count(*) FROM chats").fetchone()[0]
        for chat in page.items:
            assert await engine.get_chat(chat.id) == chat
            for view in ("user", "model", "raw"):
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
    look = tool(_look, name="look", description="Looks.", schema=OBJECT)  # the chat that is imported needs it
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


def test_a_new_method_without_right_arguments_fails_here() -> None:
    with pytest.raises(AssertionError, match="say in right_arguments what is right"):
        methods({})
