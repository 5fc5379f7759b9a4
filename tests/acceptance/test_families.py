"""Families: chats with helpers on two workers that are killed at random; every answer arrives exactly once.

`FAMILIES=1000` makes it long.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from turnwise import Agent, ChatState, Engine, Settings

FAMILIES = int(os.environ.get("FAMILIES", "16"))
HELPERS = 3
KILLS = max(6, FAMILIES // 25)
CREW = '''
"""A crew: a lead, whose tasks go to researchers. In every other chat these work in the background."""

import os

from turnwise import Agent, Engine, Settings, delegate
from turnwise.providers.scripted import Call, Reply, ScriptedModel


def results_in(request):
    return [message.result.output for message in request.messages if message.result is not None]


def lead(request):
    name, found = request.messages[0].text, results_in(request)
    in_background = int(name[1:]) % 2
    if not found:
        tool = "start_research" if in_background else "ask_research"
        return Reply(calls=[Call(tool, {"task": f"{name}-{part}"}) for part in "abc"])
    if in_background and len(found) == 3:
        return Reply(calls=[Call("wait_for_helpers", {})])
    if in_background:
        found = [heard["answer"] for heard in found[3]]
    return Reply(" + ".join(sorted(found)))


def research(request):
    return Reply(f"<{request.messages[0].text}>", delay=0.01)


researcher = Agent("research", ScriptedModel(research))
tools = [delegate(researcher), delegate(researcher, background=True)]
agents = [Agent("lead", ScriptedModel(lead), tools=tools), researcher]
engine = Engine(
    os.environ["STORE"], agents=agents, settings=Settings(max_running=10, lease=3, renew_every=1, poll_interval=0.2)
)
'''


@contextlib.contextmanager
def crew(url: str, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give two workers; kill whoever is left."""
    workers = [worker(url, folder) for _ in range(2)]
    try:
        yield workers
    finally:
        for one in workers:
            one.kill()
            one.wait()


def worker(url: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker of the crew."""
    command = [sys.executable, "-m", "turnwise.cli", "worker", "crew:engine", "--quiet"]
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"STORE": url}, stdout=subprocess.DEVNULL)


@pytest.mark.timeout(120 + FAMILIES)
async def test_families_on_workers_that_are_killed_come_to_rest_with_each_answer_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "crew.py").write_text(CREW)
    chance, began = random.Random(7), time.monotonic()  # noqa: S311 - which worker dies when
    client = Engine(url, agents=[Agent("lead", "demo")], settings=Settings(run_worker=False))
    async with client:
        chats = [await client.create_chat(owner=f"u{number}") for number in range(FAMILIES)]
        for number, chat in enumerate(chats):
            await client.send_message(chat.id, f"n{number}")
        with crew(url, tmp_path) as workers:
            for _ in range(KILLS):
                await anyio.sleep(chance.uniform(0.3, 1.5))
                victim = chance.randrange(2)
                workers[victim].send_signal(signal.SIGKILL)
                workers[victim].wait()
                workers[victim] = worker(url, tmp_path)
            for chat in chats:
                left = 90 + FAMILIES - (time.monotonic() - began)
                assert (await client.wait(chat.id, timeout=left)).state is ChatState.waiting
        for number, chat in enumerate(chats):
            history = await client.messages(chat.id)
            assert history[-1].text == " + ".join(f"<n{number}-{part}>" for part in "abc")
            in_background = number % 2
            assert len([message for message in history if message.result is not None]) == HELPERS + in_background
            noted = [
                write.id for record in await client.audit(chat.id) for write in record.writes if write.kind == "helper"
            ]
            answered = [name for name, _, version in (one.rpartition(":") for one in noted) if version != "0"]
            assert len(answered) == len({*answered}) == HELPERS
            assert len(noted) == HELPERS * (1 + in_background)
            verdict = await client.verify(chat.id, family=True)
            assert verdict.ok, verdict
        everyone = await client.chat_ids(limit=1000)
        if len(everyone) + 1000 >= FAMILIES * (1 + HELPERS):
            owned = [len((await client.list_chats(owner=f"u{number}", limit=10)).items) for number in range(FAMILIES)]
            assert set(owned) == {1 + HELPERS}
