"""The threat model names every role, and every route that strangers may take; what owners may not do is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from support.served import served
from turnwise import Engine, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import Role
from turnwise.service.routes.table import OPEN_ROUTES

MODEL = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", MODEL.split("## What a thief gets")[0], re.MULTILINE)


def test_strangers_may_take_the_open_routes_and_no_others() -> None:
    (may,) = (row[1] for row in ROWS if row[0] == "nobody's")
    assert set(re.findall(r"`(/[\w.]+)`", may)) == {row.path for row in OPEN_ROUTES} | {"/inspector", "/openapi.json"}


@pytest.mark.parametrize("role", get_args(Role))
def test_every_role_has_its_row(role: str) -> None:
    assert [row[0] for row in ROWS if re.fullmatch(rf"an {role}'s token", row[0])]


async def test_the_owner_of_a_chat_may_approve_its_calls_and_nobody_elses_token_may_see_them() -> None:
    """The page says it in bold, because it surprises: approving is part of answering."""
    paid = []

    @tool(policy="ask")
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    model = ScriptedModel([Reply(calls=[Call("pay", {"cents": 5}, id="p")]), "Done."])
    engine = Engine("sqlite://", model=model, tools=[pay])
    async with (
        served(engine) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("auditor") as auditor,
    ):
        chat = (await ada.post("/chats", json={})).json()["id"]
        await ada.post(f"/chats/{chat}/messages", json={"content": "Pay!"})
        await engine.wait(chat)
        answer = {"results": [{"call_id": "p", "output": {"approved": True}}]}
        refused = [
            (await other.post(f"/chats/{chat}/tool-results", json=answer)).status_code for other in (bob, auditor)
        ]
        assert (refused, paid) == ([404, 403], [])
        assert (await ada.post(f"/chats/{chat}/tool-results", json=answer)).status_code == 202
        await engine.wait(chat)
    assert paid == [5]
