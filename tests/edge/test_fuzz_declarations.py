"""Whatever is handed to what needs no open engine: it is taken or refused with a typed error, and nothing is written.

That is everything public but the methods of `Engine` and `Client`: classes, decorators, settings, policies, checks of
logs, pictures, the service, the tools for tests. What is taken as a declaration then runs a turn.

`make explore TESTS=tests/edge` draws others, and more of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fuzzing import LONG, PATIENCE, Case, arguments_of, cases, draws, each_parameter
from support.odd_values import ReadWithoutEnd, odd_values
from support.public_surface import Target, makers
from turnwise import RESTING, Agent, ClientTool, Engine, InvalidArgument, Settings, SettingsError, TurnwiseError
from turnwise.providers.scripted import Call, Reply, ScriptedModel

MAKERS: Final = makers()
DRAWN: Final = [target for target in MAKERS if target.name not in {"create_app", "router", "serve"}]
"""Those take a tenth of a second if nothing is wrong."""
TAKE_ANYTHING: Final = frozenset(
    [
        ("Engine", "deps"),
        ("ToolOutput", "output"),
        *(("event_stream", name) for name in ("chat_id", "after", "follow", "until_rest")),
    ]
)
"""A tool's own values, which are checked when the tool returns; and what a stream tells as its last event."""


@LONG
def test_every_parameter_of_everything_public_refuses_what_is_wrong_with_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    untyped, refused = [], Counter[tuple[str, str]]()
    for case in each_parameter(MAKERS):
        try:
            _try_out(case)
        except SettingsError:
            refused[case.target.name, case.odd[0][0]] += 1
        except TurnwiseError:
            pass
        except (Exception, ReadWithoutEnd) as error:  # noqa: BLE001 - all that are untyped are told at once
            untyped.append(f"{case}: {type(error).__name__}")
    assert untyped == []
    taken = {(one.name, name) for one in MAKERS for name in one.right if not refused[one.name, name]}
    assert taken == TAKE_ANYTHING, "these take whatever they are given, or do not any more"
    assert list(tmp_path.iterdir()) == [], "something was written"


@pytest.mark.parametrize("target", MAKERS, ids=repr)
def test_right_arguments_are_taken(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an odd argument would be refused for the sake of another. That a file is not there is no matter here."""
    monkeypatch.chdir(tmp_path)
    try:
        _try_out(Case(target, []))
    except SettingsError as error:
        assert not isinstance(error, InvalidArgument)  # noqa: PT017 - a file that is not there is


@draws("declarations")
@given(cases(DRAWN))
def test_what_is_declared_is_taken_or_refused_with_a_typed_error(case: Case) -> None:
    with suppress(TurnwiseError):
        _try_out(case)


def _try_out(case: Case) -> None:
    """Call it, and read its answer to the end. A server that was started ends soon."""
    by_place, by_name = arguments_of(case)
    answer = case.target.function(*by_place, **by_name)
    if inspect.iscoroutine(answer) or inspect.isasyncgen(answer):
        anyio.run(_finished, answer)
    elif inspect.isgenerator(answer):
        deque(answer, 0)


async def _finished(answer: Any) -> None:
    with anyio.move_on_after(0.05 if inspect.iscoroutine(answer) else PATIENCE) as limit:
        if inspect.iscoroutine(answer):
            await answer
        else:
            deque([piece async for piece in answer], 0)
    assert inspect.iscoroutine(answer) or not limit.cancelled_caught, "it hangs"


DECLARED: Final = [target for target in MAKERS if target.name in {"Agent", "Settings", "tool", "Tool", "ClientTool"}]


@draws("turns")
@given(st.data())
def test_what_is_taken_as_a_declaration_runs_a_turn(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(DECLARED), label="target")
    names = [name for name in target.right if name not in target.positional and name != "run_worker"]
    by_place, by_name = arguments_of(Case(target, [(data.draw(st.sampled_from(names)), data.draw(odd_values))]))
    with suppress(TurnwiseError):
        anyio.run(_turn_of, target.function(*by_place, **by_name))


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
