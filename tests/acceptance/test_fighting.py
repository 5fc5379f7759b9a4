"""Processes that fight over the same chats: each is worker and client at once, and none holds back for another."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import anyio
import pytest

from acceptance.crew import Crew
from acceptance.problems import problems_of_all
from acceptance.worker_process import ASK, REFUSALS, Place, answers
from turnwise import Chat, Engine
from turnwise.providers.demo import DemoModel

CHATS = 4
PATIENCE = 240.0
"""Seconds in which every chat must come to rest once the fight is over."""


@pytest.fixture
def place(url: str, tmp_path: Path) -> Place:
    return Place(url, tmp_path)


async def help_on(client: Engine, chat: Chat) -> None:
    """Do what a client owes to a chat that does not go on by itself."""
    try:
        if chat.archived:
            await client.unarchive(chat.id)
        if chat.state == "requires_action":
            await client.submit_tool_results(chat.id, answers(chat.open_calls))
        elif chat.state == "error" or (chat.state == "interrupted" and chat.settled):
            await client.resume(chat.id)
    except REFUSALS:
        pass  # it went on meanwhile


async def at_rest(client: Engine, chats: list[str]) -> None:
    """Wait until every chat has done all that was asked of it."""
    with anyio.fail_after(PATIENCE):
        for chat_id in chats:
            while (chat := await client.get_chat(chat_id)).state != "waiting" or chat.archived:
                await help_on(client, chat)
                await anyio.sleep(0.02)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
async def test_two_processes_fight_over_the_same_chats_and_both_live(place: Place, seed: int) -> None:
    async with Engine(place.url, model=DemoModel(), settings=place.settings(run_worker=False)) as client:
        chats = [(await client.create_chat(client_tools=[ASK])).id for _ in range(CHATS)]
        with Crew.on(place) as crew:
            fighters = [crew.fight(chats, 10 * seed + number) for number in range(2)]
            for fighter in fighters:
                await crew.ended(fighter)
            assert [fighter.exitcode for fighter in fighters] == [0, 0], place.words.read_text()[-4000:]
            crew.hire()
            await at_rest(client, chats)
        logs = [await client.audit(chat_id) for chat_id in chats]
        workers = {record.actor for log in logs for record in log if record.trigger == "claimed"}

    accepted = defaultdict[str, list[str]](list)
    for line in place.accepted.read_text().splitlines():
        chat_id, message_id = line.split()
        accepted[chat_id].append(message_id)
    assert sorted(accepted) == sorted(chats)
    assert len(workers) > 1, workers
    assert await problems_of_all(place, accepted) == []
