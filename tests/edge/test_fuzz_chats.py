"""Whatever a chat is asked, by `Engine` or `Client`: a typed error, nothing hangs, and what is refused writes nothing.

Every method is called with something odd for each of its parameters, and then with odd arguments that are drawn. The
version that SQLite counts and the bytes of its files tell whether anything was written. A new engine then lists and
reads every chat, and a worker works on it.

`make explore TESTS=tests/edge` draws others, and more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import assume, given
from hypothesis import strategies as st

from support.fuzzed_chats import WAITING, World, call, filled, methods_of
from support.fuzzing import LONG, PATIENCE, Case, cases, draws, each_parameter
from support.odd_values import ReadWithoutEnd
from support.public_surface import methods
from support.right_arguments import OBJECT
from turnwise import ChatState, Engine, SettingsError, ToolContext, TurnwiseError, tool
from turnwise.client import Client
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ACT: Final = [Call("act", {})]
METHODS: Final = methods_of(Engine)
AT_WORK: Final = [one for one in METHODS if one.name not in WAITING | {"delete_chat", "erase", "release_followers"}]
"""What can be asked from within a turn: it would wait for itself, be gone, or let go of whoever waits for it."""


SENT_TO_ITS_END: Final = "import_chat(lines: EndlessSequence())"
"""A client sends lines to their end before it reads that the service has refused the first."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a chat in each state that a client can meet."""
    path = tmp_path_factory.mktemp("store") / "chats.db"
    filled(path)
    return path


@LONG
@pytest.mark.parametrize(("kind", "most"), [(Engine, 20), (Client, 100)])  # to serve anew takes long
def test_every_parameter_of_every_method_refuses_what_is_wrong_and_writes_nothing(
    kind: type, most: int, store: Path
) -> None:
    wrong, refused = [], Counter[tuple[str, str]]()
    with start_blocking_portal() as portal:
        world = World(portal, store, kind, most=most)
        for case in each_parameter(methods_of(kind)):
            if kind is Client and str(case) == SENT_TO_ITS_END:
                continue
            try:
                refusal = world.try_out(case)
            except (Exception, ReadWithoutEnd) as error:  # noqa: BLE001 - all that goes wrong is told at once
                wrong.append(f"{case}: {error!r}")
            else:
                refused[case.target.name, case.odd[0][0]] += isinstance(refusal, SettingsError)
        world.close()
    assert wrong == []
    assert [given for given, count in refused.items() if count == 0] == [], "these take whatever they are given"


@pytest.fixture(scope="module")
def world(store: Path) -> Iterator[World]:
    """Return a world that is looked at once more in the end."""
    with start_blocking_portal() as portal:
        lived = World(portal, store, Engine, most=8, waits=True)
        yield lived
        lived.close()


@draws("chats")
@given(cases(METHODS))
def test_what_a_chat_is_asked_is_done_or_refused_and_a_refusal_writes_nothing(world: World, case: Case) -> None:
    world.try_out(case)


class Turn:
    """A turn whose tool calls a method on its own chat, in the midst of a worker's job."""

    def __init__(self) -> None:
        self._case: Case | None = None
        act = tool(self._act, name="act", description="Acts.", schema=OBJECT)
        model = ScriptedModel(lambda request: Reply("ok", calls=[] if request.messages[-1].role == "tool" else ACT))
        self.engine = Engine("sqlite://", model=model, tools=[act])

    async def _act(self, context: ToolContext) -> str:
        if self._case is None:
            return "done before"
        own = methods_of(Engine, dict.fromkeys((state.value for state in ChatState), context.chat_id))
        case, self._case = self._case, None
        target = next(one for one in own if one.name == case.target.name)
        with suppress(TurnwiseError, TimeoutError):
            await call(self.engine, Case(target, case.odd))
        return "done"

    async def take(self, case: Case) -> None:
        """Take a turn, and another. The chat rests after each, however its method ended."""
        self._case = case
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


@draws("working chats")
@given(st.sampled_from(AT_WORK).map(lambda target: Case(target, [])) | cases(AT_WORK))
def test_what_a_chat_is_asked_while_it_works_lets_it_work_on(turn: tuple[BlockingPortal, Turn], case: Case) -> None:
    portal, one = turn
    # Else it would wait for itself.
    assume(case.target.name != "events" or all(argument != "follow" for argument, _ in case.odd))
    portal.call(one.take, case)


def test_a_new_method_without_right_arguments_fails_here() -> None:
    with pytest.raises(AssertionError, match="say in right_arguments what is right"):
        methods(Engine, {})
