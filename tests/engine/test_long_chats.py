"""A question about a long chat takes a while to answer; every other chat goes on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from turnwise import Engine
from turnwise.providers.scripted import Reply, ScriptedModel

LONG: Final = 0.5
"""Seconds that the answer takes here."""
QUESTIONS: Final[dict[str, tuple[str, Callable[[Engine, str], Awaitable[Any]]]]] = {
    "explain": ("engine.diagnose.examine", lambda engine, chat: engine.explain(chat)),
    "verify": ("engine.engine.verify_stored", lambda engine, chat: engine.verify(chat)),
    "export the log": ("engine.engine.export", lambda engine, chat: engine.export_audit(chat, key=b"key")),
    "export the rows": ("engine.engine.lines_of", lambda engine, chat: engine.export_rows(chat)),
}


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(LONG)
        return function(*arguments, **options)

    return slowly


@pytest.mark.parametrize(
    "question", [*list(QUESTIONS)[:2], *(pytest.param(one, marks=pytest.mark.deep) for one in list(QUESTIONS)[2:])]
)
async def test_slow_question_blocks_no_other_chat(
    database: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    place, ask = QUESTIONS[question]
    module, _, name = place.rpartition(".")
    async with Engine(f"sqlite:///{database}", model=ScriptedModel([Reply("hello")])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        quick = await ask(engine, chat.id)
        given = getattr(__import__(f"turnwise.{module}", fromlist=[name]), name)
        monkeypatch.setattr(f"turnwise.{place}", slow(given))
        answers: list[Any] = []
        lived = 0

        async def answer() -> None:
            answers.append(await ask(engine, chat.id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            await anyio.lowlevel.checkpoint()
            while not answers:
                await engine.create_chat()
                lived += 1
        assert lived > 3, "others went on"
        assert answers == [quick]


_FEW, _MANY = 20, 2000
