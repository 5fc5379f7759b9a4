"""The batch: whatever is killed, each letter is answered once, by its own answer, and what it cost is summed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from tests.examples.examples import Example

from support.processes.postgres_server import Server
from support.terminal import Finished
from turnwise import Agent, Chat, Engine, ModelError
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.timeout(900)
LETTERS = 60
PATIENCE = 300
DESKS = ("lamp", "bin", "hydrant", "bench")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return "sqlite:///batch/chats.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_url("batch")


@pytest.fixture
def batch(tmp_path: Path) -> Example:
    return Example("batch", tmp_path)


def finished(batch: Example, url: str) -> Finished:
    """Run the batch to its end, and check what it tells and writes down."""
    done = batch.run("--store", url, "--letters", str(LETTERS), bare=url.startswith("sqlite"))
    assert (done.code, done.err) == (0, "")
    assert f"{LETTERS} of {LETTERS}" in done.out
    assert f"{LETTERS * 400:,} and {LETTERS * 80:,}" in done.out, "two calls for each letter"
    assert re.search(rf"dollars +│ (at least )?{Decimal('0.0008') * LETTERS} ", done.out)
    lines = (batch.folder / "batch" / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"letter": n, "answer": f"Thank you for letter {n}. The desk for the {DESKS[n % 4]} has it."}
        for n in range(LETTERS)
    ]
    return done


async def sound_chats(batch: Example, url: str) -> tuple[list[Chat], Counter[str]]:
    """Return the chats, one for each letter and each with one answer, and how often what has happened to them."""
    triggers: Counter[str] = Counter()
    async with batch.opened(url) as engine:
        chats = list((await engine.list_chats(limit=10_000)).items)
        assert sorted(chat.metadata["letter"] for chat in chats) == list(range(LETTERS))
        for chat in chats:
            roles = [message.role for message in await engine.messages(chat.id)]
            assert (chat.state, roles) == ("waiting", ["user", "assistant", "tool", "assistant"])
            assert (await engine.verify(chat.id)).ok
            triggers.update(record.trigger for record in await engine.audit(chat.id))
    keys = {line.split()[0] for line in (batch.folder / "batch" / "handed-on.txt").read_text().splitlines()}
    assert Counter(key.partition(":")[0] for key in keys) == Counter(chat.id for chat in chats)
    return chats, triggers


async def test_every_letter_is_answered_once_although_a_worker_is_killed(batch: Example, url: str) -> None:
    done = finished(batch, url)
    assert re.search(r"kill -9 \d+, a worker", done.out)
    chats, triggers = await sound_chats(batch, url)
    assert triggers["lease_expired"] > 0, "the worker that was killed had chats at work"
    assert ("at least" in done.out) == any(chat.usage.partial for chat in chats)
    finished(batch, url)
    again, _ = await sound_chats(batch, url)
    assert {chat.id: chat.version for chat in again} == {chat.id: chat.version for chat in chats}


async def test_a_letter_whose_chat_has_failed_is_answered_in_a_later_run(batch: Example) -> None:
    """A provider was out of reach: the next run, when it is there again, must not say so again."""
    (batch.folder / "batch").mkdir()
    refusal = Reply(error=ModelError("authentication", message="invalid x-api-key"))
    agent, letter = Agent("clerk", ScriptedModel([refusal])), "letter 7: The bench in our street is broken!"
    async with Engine(f"sqlite:///{batch.folder}/batch/chats.db", agents=[agent]) as engine:
        chat = await engine.create_chat(owner="batch", metadata={"letter": 7})
        assert (await engine.ask(chat.id, letter, client_id="letter")).stop_reason == "error"
    finished(batch, "sqlite:///batch/chats.db")
    await sound_chats(batch, "sqlite:///batch/chats.db")


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_batch_that_is_killed_leaves_no_worker_and_goes_on_when_it_is_started_again(
    batch: Example, postgres: Server
) -> None:
    url, book, limit = postgres.new_url("killed"), batch.folder / "batch" / "handed-on.txt", time.monotonic() + PATIENCE
    running = batch.start("--store", url, "--letters", str(LETTERS), bare=False)
    try:
        while not book.exists() or len(book.read_text().splitlines()) < LETTERS // 2:
            assert time.monotonic() < limit, "it hands nothing on"
            await asyncio.sleep(0.01)
        workers = children_of(running)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert len(workers) >= 4
    while any(map(is_there, workers)):
        assert time.monotonic() < limit, "a worker outlives the batch"
        await asyncio.sleep(0.01)
    finished(batch, url)
    await sound_chats(batch, url)
