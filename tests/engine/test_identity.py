"""From its name alone others can tell that a worker's process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnwise import Engine, Settings
from turnwise.engine.worker import identity
from turnwise.engine.worker.identity import is_dead, worker_name
from turnwise.providers.scripted import Reply, ScriptedModel

NAME_ITSELF = """
import sys
from turnwise.engine.worker.identity import worker_name
print(worker_name(), flush=True)
sys.stdin.read()
"""


@contextmanager
def named(*before: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a process, started by `before`, that has told the name of a worker of its own."""
    command = [*before, sys.executable, "-c", NAME_ITSELF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip(), process


def test_live_worker_is_not_dead() -> None:
    assert not is_dead(worker_name())


@pytest.mark.deep
def test_killed_worker_is_dead() -> None:
    with named() as (name, process):
        assert not is_dead(name)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(name), "nobody has taken note of its end yet"
        process.wait()
        assert is_dead(name)


def test_hidden_process_of_another_user_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it may not be asked says that it is there."""
    machine = worker_name().partition(":")[0]

    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    (tmp_path / "self").symlink_to(f"{os.getpid()}")
    monkeypatch.setattr(identity, "_machine", lambda: machine)
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(f"{machine}:4711:1:word")


def test_worker_of_another_machine_is_not_dead() -> None:
    machine, pid, started, word = worker_name().split(":")
    assert not is_dead(f"other-machine:{pid}:1:{word}")
    assert is_dead(f"{machine}:{pid}:{int(started) + 1}:{word}")
    for name in ("", "worker", f"{machine}:x:1:{word}", f"{machine}:1:0:{word}", f"{machine}:{10**30}:1:{word}"):
        assert not is_dead(name)


@pytest.mark.deep
async def test_chats_of_a_killed_process_are_taken_over_at_once(tmp_path: object) -> None:
    """The lease would last a minute; the takeover needs one poll."""
    url = f"sqlite:///{tmp_path}/chats.db"
    with subprocess.Popen([sys.executable, "-c", HOLD_AND_WAIT, url], stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        chat_id = process.stdout.readline().strip()
        process.kill()
    async with Engine(url, model=ScriptedModel([]), settings=Settings(run_worker=False)) as onlooker:
        assert "its process is dead" in (await onlooker.explain(chat_id)).reason
    settings = Settings(lease=60, poll_interval=0.05)
    async with Engine(url, model=ScriptedModel([Reply("taken over")]), settings=settings) as engine:
        chat = await engine.wait(chat_id)
        assert chat.state == "waiting"
        assert [message.text for message in await engine.messages(chat_id)] == ["hello", "taken over"]
        assert (await engine.verify(chat_id)).ok


HOLD_AND_WAIT = """
import sys
import anyio
from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

async def main():
    model = ScriptedModel([Reply("never", chunks=["ne", "ver"], stall_after=1)])
    async with Engine(sys.argv[1], model=model, settings=Settings(lease=60)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                print(chat.id, flush=True)

anyio.run(main)
"""
