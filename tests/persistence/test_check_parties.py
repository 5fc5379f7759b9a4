"""Who may have fired what: an actor of another party is found, in commits of versions that name their workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.persistence.spelled_log import refusal_of

from support.rewriting import rewrite
from turnwise import Engine

SENT: Final = "ann>create - waiting 0 0 0 profile= facts=0\nann>send_message waiting pending 1 0 0 message=m1 facts=1\n"
CLAIM: Final = "worker:w>claimed pending streaming 1 1 0 lease=1~w\n"
CLAIMED: Final = SENT + CLAIM
STARTED: Final = CLAIMED + "worker:w>attempt_started streaming streaming 1 1 1 facts=2\n"
ANSWER: Final = "step_finished streaming waiting 1 1 1 message=m2 lease:dropped=1 facts=3\n"
STOPPED: Final = SENT + "ann>interrupt pending interrupted 1 0 0\n"

HONEST: Final = {
    "a worker answers": STARTED + "worker:w>" + ANSWER,
    "whoever stops a chat that nobody holds settles it": STOPPED + "bob>settled interrupted interrupted 1 0 0 facts=2",
    "a worker settles what it claims": STOPPED + "worker:w>claimed interrupted interrupted 1 0 0 lease=1~w facts=2\n"
    "worker:w>settled interrupted interrupted 1 0 0 lease:dropped=1 facts=3",
    "another worker ends a lease": STARTED + "worker:v>lease_expired streaming pending 1 1 1 lease:dropped=1 facts=3",
    "whoever imports a chat ends its lease": STARTED + "ann>imported streaming streaming 1 1 1\n"
    "ann>lease_expired streaming pending 1 1 1 lease:dropped=1 facts=3",
    "a worker repairs": STARTED + "worker:v>repaired streaming error 1 1 1 facts=3",
    "an operator repairs": STARTED + "operator>repaired streaming error 1 1 1 facts=3",
    "turnwise makes a title": STARTED + "system>renamed streaming streaming 1 1 1 profile= facts=3",
    "nobody is named": STARTED.replace("worker:w>", "system>") + "system>" + ANSWER,
    "a claim that finds nothing to do": SENT + "worker:w>claimed pending waiting 1 0 0 facts=2",
}
FORGED: Final = {
    "a client that claims": (3, SENT + CLAIM.replace("worker:w>", "ann>") + "ann>renamed streaming streaming 1 1 0 "
        "profile= facts=2", "it is by 'ann', but token 1 was granted to another, a worker"),
    "a claim in the name of another worker": (3, SENT + CLAIM.replace("worker:w", "worker:v") + "ann>renamed streaming "
        "streaming 1 1 0 profile= facts=2", "it is by 'worker:v', but token 1 was granted to another"),
    "an answer of another worker": (5, STARTED + "worker:v>" + ANSWER, "it is by 'worker:v', but token 1 was granted"),
    "an answer of a client": (5, STARTED + "ann>" + ANSWER, "it is by 'ann', but token 1 was granted to another"),
    "an answer of a client called like the worker": (5, STARTED + "w>" + ANSWER, "it is by 'w', but token 1 was"),
    "a chat without a name for its worker": (5, STARTED + ">" + ANSWER, "it is by '', but token 1 was granted"),
    "a client that ends a turn by a claim": (3, SENT + "ann>claimed pending waiting 1 0 0 facts=2",
        "it is by 'ann', but only a worker may claim a chat"),
    "a worker that speaks for the client": (2, SENT.replace("ann>send", "worker:w>send"),
        "it is by 'worker:w', but a worker fires nothing that is for the client"),
    "a worker that labels": (5, STARTED + "worker:w>renamed streaming streaming 1 1 1 profile= facts=3",
        "a worker fires nothing that is for the administrator"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_actor_of_the_right_party_passes(name: str) -> None:
    assert refusal_of(HONEST[name]) is None


@pytest.mark.parametrize("name", FORGED)
def test_actor_of_another_party_is_refused(name: str) -> None:
    version, log, words = FORGED[name]
    refusal = refusal_of(log)
    assert refusal[0] == version
    assert words in refusal[1]


async def test_rehashed_record_of_another_actor_is_refused(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model="demo") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        claim = next(record for record in await engine.audit(chat.id) if record.trigger == "claimed")
        rewrite(tmp_path / "chats.db", chat.id, claim.version, actor="client")
        verdict = await engine.verify(chat.id)
    assert verdict.position == claim.version
    assert "it is by 'client', but token 1 was granted to another" in str(verdict.problem)
