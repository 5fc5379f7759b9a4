"""The batch: with any kills, each letter gets its own answer once, and the costs are summed."""

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from tests.examples.examples import Example

from support.processes.postgres_server import Server
from support.terminal import Finished
from turnwise import Chat

pytestmark = pytest.mark.deep
LETTERS = 60
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
    """Run the batch to its end, and check its output and its files."""
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
    """Return the chats, one for each letter with one answer each, and the number of each trigger."""
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


async def test_letters_are_answered_once_despite_a_killed_worker(batch: Example, url: str) -> None:
    done = finished(batch, url)
    assert re.search(r"kill -9 \d+, a worker", done.out)
    chats, triggers = await sound_chats(batch, url)
    assert triggers["lease_expired"] > 0, "the worker that was killed had chats at work"
    assert ("at least" in done.out) == any(chat.usage.partial for chat in chats)
    finished(batch, url)
    again, _ = await sound_chats(batch, url)
    assert {chat.id: chat.version for chat in again} == {chat.id: chat.version for chat in chats}
