"""Steering messages over HTTP: as commands, and from pages of both protocols."""

from typing import Any

import anyio
import httpx
import pytest

from support.latches import Gate
from support.served import served
from turnwise import Engine
from turnwise.client import Client
from turnwise.providers.scripted import Call, Reply, ScriptedModel

TOKEN = "ada-token"  # noqa: S105 - of a test
PAGES = {
    "/ai-sdk/chat": lambda chat_id, talk: {
        "id": chat_id,
        "messages": [
            {"id": name, "role": role, "parts": [{"type": "text", "text": text}]} for name, role, text in talk
        ],
        "when_busy": "steer",
    },
    "/agui": lambda chat_id, talk: {
        "threadId": chat_id,
        "runId": "r",
        "state": {},
        "context": [],
        "tools": [],
        "messages": [{"id": name, "role": role, "content": text} for name, role, text in talk],
        "forwardedProps": {"when_busy": "steer"},
    },
}


@pytest.mark.parametrize("path", PAGES)
async def test_page_steers_the_turn(path: str) -> None:
    """The stream starts with its message; a reopened page shows the position of the steering."""
    model, gate = ScriptedModel([Reply("On it.", calls=[Call("work", {}, id="w")]), "Left it is."]), Gate()
    engine = Engine("sqlite://", model=model, tools=[gate.tool])
    async with served(engine) as service, service.client() as ada, Client(service.url, token=TOKEN) as client:
        chat = await engine.create_chat(owner="ada", message="go")
        await gate.entered.wait()
        by_client = await client.send_message(chat.id, "by client", when_busy="steer")
        talk = [("u1", "user", "go"), (f"{chat.id}-t1", "assistant", "On it."), ("u2", "user", "left")]
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await ada.post(path, json=PAGES[path](chat.id, talk)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            async for event in engine.events(chat.id, after=by_client.chat.last_seq):
                if event.kind == "queue":
                    break
            queue = (await ada.get(f"/chats/{chat.id}/queue")).json()
            assert [(one["parts"][0]["text"], one["steers"]) for one in queue] == [("by client", True), ("left", True)]
            gate.open.set()
        assert answers[0].status_code == 200
        assert "Left it is." in answers[0].text
        assert "On it." not in answers[0].text
        asked = [one.text for one in model.requests[1].messages if one.role == "user"]
        assert asked == ["go", "by client", "left"]
        stored = (await ada.get(f"/ai-sdk/chat/{chat.id}/messages")).json()
        assert [one["role"] for one in stored] == ["user", "assistant", "user", "user", "assistant"]
        first, second = (one["id"] for one in stored if one["role"] == "assistant")
        assert (first, second) == (f"{chat.id}-t1", f"{chat.id}-t1-{stored[3]['id']}")
        if path == "/ai-sdk/chat":
            assert f'"messageId": "{second}"' in answers[0].text
        resumed = await ada.get(f"/ai-sdk/chat/{chat.id}/stream", params={"finished": True})
        assert f'"messageId": "{second}"' in resumed.text
        assert "On it." not in resumed.text
        again = await ada.post(path, json=PAGES[path](chat.id, [*talk[:2], (stored[3]["id"], "user", "left")]))
        assert (again.status_code, len(await engine.messages(chat.id))) == (200, 6), "it is known there"


async def test_unknown_wish_is_refused() -> None:
    body: dict[str, Any] = PAGES["/agui"]("tab", [("u1", "user", "go")])
    async with served(Engine("sqlite://", model="demo")) as service, service.client() as ada:
        for path, sent, field in (
            ("/agui", body | {"forwardedProps": {"when_busy": "now"}}, "forwardedProps.when_busy"),
            ("/ai-sdk/chat", PAGES["/ai-sdk/chat"]("tab", []) | {"when_busy": "now"}, "when_busy"),
        ):
            refused = await ada.post(path, json=sent)
            assert (refused.status_code, field in refused.text) == (400, True)
        assert (await ada.get("/chats")).json()["items"] == []
