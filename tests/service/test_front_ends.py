"""Real clients of AG-UI and the AI SDK, in Node, against a real service.

The AI SDK's client is `AbstractChat`, on which the hooks of `@ai-sdk/react` are built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.pages import Pages

from support.processes.talkative_service import ServiceProcess
from support.served import Served, served
from turnwise import Engine, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

DIALECTS = ("agui", "ai-6", "ai-7")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """Run a service in a process of its own."""
    with ServiceProcess.running(f"sqlite:///{tmp_path}/chats.db") as running:
        yield running


async def stored(service: Served) -> list[list[str]]:
    async with service.client() as ada:
        chats = (await ada.get("/chats")).json()["items"]
        histories = [(await ada.get(f"/chats/{chat['id']}/messages")).json() for chat in chats]
    return [[message["role"] for message in history] for history in histories]


@pytest.mark.parametrize("dialect", ["ai-7", *(pytest.param(one, marks=pytest.mark.deep) for one in ("agui", "ai-6"))])
async def test_npm_client_answers_its_own_tool(pages: Pages, dialect: str) -> None:
    model = ScriptedModel([Reply("Wait. ", calls=[Call("pick_date", {"near": "May"}, id="k")]), "Booked."])
    async with served(Engine("sqlite://", model=model)) as service:
        page = pages.open(dialect, service.url)
        asked = await page("say", "A table!")
        booked = await page("answer", "Friday")
        roles = await stored(service)
    assert page.text.endswith("Booked.")
    assert "pick_date" in json.dumps(asked["messages"])
    assert json.dumps(booked["messages"]).count('"k"') == json.dumps(asked["messages"]).count('"k"') + (
        dialect == "agui"
    ), "the call was told of again"
    assert roles == [["user", "assistant", "tool", "assistant"]]
    assert model.requests[-1].messages[-1].result.output == "Friday"  # type: ignore[union-attr]


@tool(policy="ask", approver="owner")
async def pay(cents: int) -> str:
    """Pay money."""
    return f"paid {cents}"


@pytest.mark.deep
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_npm_client_reloads_approves_and_interrupts(pages: Pages, dialect: str) -> None:
    asking = Reply("Shall I? ", reasoning="Hm.", calls=[Call("pay", {"cents": 3}, id="p")])
    model = ScriptedModel([asking, "Paid.", Reply("One two three", chunks=3, stall_after=1), "Again."])
    async with served(Engine("sqlite://", model=model, tools=[pay])) as service:
        page = pages.open(dialect, service.url)
        before = await page("say", "Pay!")
        after = await page("reload")
        assert shown(after["messages"]) == shown(before["messages"])
        await page("approve", True)  # noqa: FBT003
        done = await page("settle")
        assert "paid 3" in json.dumps(done["messages"])
        assert page.text.endswith("Paid.")
        await page("say", "Count!", until="One")
        await page("interrupt")
        assert page.text == "One"
        if dialect == "agui":
            await page("say", "Again!")
        else:
            await page("reload")
            await page("regenerate")
        assert page.text == "Again."


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return what a page shows of its messages, without the names that it gives to them and their parts."""
    if any("parts" in message for message in messages):
        return [(one["role"], [part | {"id": None} for part in one["parts"]]) for one in messages]
    return [(one["role"], (one.get("content") or "", one.get("toolCalls"))) for one in messages]


def asked(message_id: str, text: str) -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


async def test_thread_name_belongs_to_its_owner() -> None:
    """The same name of another owner is another chat, and another owner's chat id is no name of it."""
    body = {"id": "tab-1", "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "secret"}]}]}
    async with (
        served(Engine("sqlite://", model="demo")) as service,
        service.client() as ada,
        service.client("bob") as bob,
    ):
        first = await ada.post("/ai-sdk/chat", json=body)
        again = await ada.post("/ai-sdk/chat", json=body)
        chat_id = first.headers["Turnwise-Chat"]
        body["messages"][0]["parts"][0]["text"] = "Hello!"  # type: ignore[index]
        other = await bob.post("/ai-sdk/chat", json=body)
        by_id = await bob.post("/ai-sdk/chat", json=body | {"id": chat_id})
        resumed = [
            (await bob.get(f"/ai-sdk/chat/{name}/stream", params={"finished": True})).text
            for name in ("tab-1", chat_id)
        ]
        unknown = await bob.get("/ai-sdk/chat/never/stream")
        resting = await ada.get("/ai-sdk/chat/tab-1/stream")
    assert again.text == first.text
    assert len({chat_id, other.headers["Turnwise-Chat"], by_id.headers["Turnwise-Chat"]}) == 3
    assert not [text for text in (other.text, by_id.text, *resumed) if "secret" in text]
    assert [unknown.status_code, resting.status_code] == [204, 204]
    assert first.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert first.text.endswith("data: [DONE]\n\n")
