"""Filters of lists, counts, and all chats of one owner: through HTTP, its client, and the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.served import STRICT, served
from turnwise import Engine
from turnwise.client import Client
from turnwise.http_problems import NotAllowed
from turnwise.providers.scripted import ScriptedModel


async def test_lists_and_owners_over_http() -> None:
    """An owner lists and counts own chats, and may neither erase nor import an owner."""
    engine, elsewhere = (Engine("sqlite://", model=ScriptedModel([])) for _ in range(2))
    async with served(engine, settings=STRICT) as service, served(elsewhere, settings=STRICT) as other:
        async with (
            Client(service.url, token="ada-token") as ada,  # noqa: S106 - of the tests
            Client(service.url, token="operator-token") as operator,  # noqa: S106
            Client(other.url, token="operator-token") as abroad,  # noqa: S106
        ):
            chat = await operator.create_chat(owner="ada", title="Refund", metadata={"ticket": "7"})
            theirs = await operator.create_chat(owner="bob", metadata={"ticket": "7"})
            found = await operator.list_chats(metadata={"ticket": "7"}, title="ref", archived=False)
            assert [one.id for one in found.items] == [chat.id]
            assert [one.id for one in (await ada.list_chats(metadata={"ticket": "7"})).items] == [chat.id]
            later = chat.created_at + timedelta(hours=1)
            assert (await operator.list_chats(created_after=later)).items == []
            assert len((await operator.list_chats(created_before=later, agent="default")).items) == 2
            assert (await operator.count_chats()).states == {"waiting": 2}
            assert (await ada.count_chats()).states == {"waiting": 1}
            assert await operator.usage_report(by=["owner", "day"], since=chat.created_at) == []
            with pytest.raises(NotAllowed):
                await ada.usage_report()
            with pytest.raises(NotAllowed):
                await ada.erase_owner("bob")
            await operator.set_budget(owner="ada", tokens=1000)
            lines = [line async for line in operator.export_owner("ada")]
            assert (await abroad.import_owner(lines)).imported == [chat.id]
            assert (await abroad.import_owner(lines)).present == [chat.id]
            assert [one.tokens for one in await abroad.budgets(owner="ada")] == [1000]
            assert (await operator.erase_owner("ada")).deleted == [chat.id]
            assert [one.id for one in (await operator.list_chats()).items] == [theirs.id]
        async with service.client("operator") as http:
            answer = await http.get("/chats", params={"metadata": "[7]"})
            assert answer.status_code == 400
