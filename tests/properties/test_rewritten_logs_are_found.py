"""Checkpoints reveal a rewritten log, with every hash recomputed, up to the last checkpoint.

Seen red: checkpoints whose hash is not compared; a log that counts as covered up to its end; a check of the first
checkpoint of a chat alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from support.lives import STORES, StoredLife, Walk, lives_in
from support.logged_life import rehashed
from turnwise import Checkpoints, Engine, Settings, SigningKey, verify_export
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS, AuditRecord, export
from turnwise.providers.scripted import ScriptedModel

pytestmark = pytest.mark.hypothesis
KEY, OTHER = SigningKey.generate(), SigningKey.generate()


@pytest.mark.parametrize("place", STORES)
def test_a_published_log_cannot_be_rewritten(place: str, request: pytest.FixtureRequest) -> None:
    met = lives_in(place, request).each(live, sqlite=15, postgres=4)
    least = {"sqlite": 50, "postgres": 10}[place]
    assert met["rewritten before the last checkpoint"] >= least
    assert met["cut"] >= least // 2
    assert met["rewritten behind it"] >= least // 10


def live(walk: Walk) -> None:
    """Publish checkpoints at times; then rewrite the log in many ways."""
    life, lines, counts = walk.life, list[str](), list[int]()
    assert isinstance(life, StoredLife)
    for _ in range(walk.random.randint(1, 3)):
        walk.live(8)
        count, head = life.do(life.store.head(life.chat_id))
        foreign = Head("another", walk.random.randint(1, 9), "5" * 64)
        for stands in walk.random.sample([Head(life.chat_id, count, head), foreign], 2):
            prev = hash_of_line(lines[-1]) if lines else GENESIS
            lines.append(checkpoint_line(stands, at=life.now, prev=prev, key=KEY))
        counts.append(count)
    walk.live(walk.random.choice([0, 5]))
    records = life.do(life.store.audit(life.chat_id))
    checkpoints = "".join(f"{line}\n" for line in lines)
    sound = judged(life.chat_id, records, checkpoints)
    assert (sound.ok, sound.covered) == (True, counts[-1])
    assert not judged(life.chat_id, records, checkpoints, key=OTHER).ok
    for _ in range(6):
        version = walk.random.randint(1, len(records))
        verdict = judged(life.chat_id, rewritten(records, version, walk.random), checkpoints)
        if version <= counts[-1]:
            assert not verdict.ok
            assert verdict.position in {count for count in counts if count >= version}
            walk.met["rewritten before the last checkpoint"] += 1
        else:
            assert (verdict.ok, verdict.covered) == (True, counts[-1])
            walk.met["rewritten behind it"] += 1
    for _ in range(2):
        shorter = records[: walk.random.randrange(1, counts[-1])]
        assert not judged(life.chat_id, shorter, checkpoints).ok
        walk.met["cut"] += 1


def judged(chat_id: str, records: Sequence[AuditRecord], checkpoints: str, *, key: SigningKey = KEY):  # noqa: ANN201
    return verify_export(export(chat_id, list(records)), checkpoints=checkpoints, public_key=key.public_pem)


def rewritten(records: Sequence[AuditRecord], version: int, random: Random) -> list[AuditRecord]:
    """Return the log with one record changed within the table's rules, and every hash recomputed."""
    forged = [*records]
    record = forged[version - 1]
    messages = [place for place, write in enumerate(record.writes) if write.kind == "message"]
    if not messages or random.random() < 0.3:
        later = forged[version].at if version < len(forged) else record.at + timedelta(days=1)
        earlier = forged[version - 2].at if version > 1 else record.at - timedelta(days=1)
        at = random.choice([earlier, later])
        forged[version - 1] = replace(record, at=at if at != record.at else record.at + timedelta(microseconds=1))
    else:
        place = random.choice(messages)
        writes = [*record.writes]
        writes[place] = writes[place]._replace(digest="e" * 64)
        forged[version - 1] = replace(record, writes=tuple(writes))
    return rehashed(forged)


@pytest.mark.parametrize("place", STORES)
async def test_what_an_engine_publishes_finds_it(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url, file = lives_in(place, request).url, tmp_path / "checkpoints.jsonl"
    options = {"settings": Settings(durability="normal"), "checkpoints": Checkpoints(KEY, to=file)}
    async with Engine(url, model=ScriptedModel(lambda request: f"{len(request.messages)}"), **options) as engine:  # type: ignore[arg-type]
        chat = await engine.create_chat()
        for number in range(3):
            await engine.ask(chat.id, f"text {number}")
    async with Engine(url, model=ScriptedModel("."), settings=Settings(durability="normal")) as engine:
        await engine.rename(chat.id, "not published")
        records = await engine.audit(chat.id)
        log = [AuditRecord(**{name: getattr(one, name) for name in AuditRecord.__slots__}) for one in records]
    published, random = file.read_text(), Random(0)  # noqa: S311 - no secret
    for version in range(1, len(log)):
        assert not judged(chat.id, rewritten(log, version, random), published).ok
    assert judged(chat.id, rewritten(log, len(log), random), published).ok
