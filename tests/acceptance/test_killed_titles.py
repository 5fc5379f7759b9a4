"""A process that is killed between an answer and its title: the title comes after a later turn, and only once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

DOOMED = """
import os, signal, sys, anyio
from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

def die(request):
    os.kill(os.getpid(), signal.SIGKILL)

async def live():
    model = ScriptedModel("Because.", title=die)
    async with Engine(sys.argv[1], model=model, settings=Settings(title="model")) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Why do foxes sing?")

anyio.run(live)
"""


async def test_a_killed_process_costs_a_title_nothing_but_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    died = subprocess.run([sys.executable, "-c", DOOMED, url], check=False, timeout=60)  # noqa: ASYNC221 - nothing else runs
    assert died.returncode == -signal.SIGKILL
    model = ScriptedModel("Because.", title=Reply("Singing foxes", usage=(40, 4)))
    for question in ("And owls?", "And hens?"):
        async with Engine(url, model=model, settings=Settings(title="model")) as engine:
            (chat,) = (await engine.list_chats()).items
            assert chat.title == (None if question == "And owls?" else "Singing foxes")
            assert (await engine.ask(chat.id, question, timeout=10)).stop_reason == "end_turn"
    async with Engine(url, model=model) as engine:
        records = await engine.audit(chat.id)
        assert [record.actor for record in records if record.trigger == "renamed"] == ["system"]
        assert [entry.purpose for entry in await engine.usage(chat.id)] == ["step", "step", "title", "step"]
        assert (await engine.verify(chat.id)).ok
    assert sum(request.purpose == "title" for request in model.requests) == 1
