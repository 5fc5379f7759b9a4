"""Real clients of AG-UI and the AI SDK, in Node, against a real service.

`AbstractChat`, on which the hooks of `@ai-sdk/react` are built, is here; the hooks are in `test_page.py`, in a browser.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from support.gated_model import PacedModel
from support.processes.pages import Pages, installed
from support.processes.service_process import TOKEN
from support.processes.talkative_service import ServiceProcess
from support.served import Served, served
from turnwise import Engine, RetryPolicy, Settings
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ModelError

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


@pytest.mark.deep
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_npm_client_sends_only_new_messages(pages: Pages, dialect: str) -> None:
    model = ScriptedModel([Reply("Hello, Ada.", reasoning="Who is it?"), "You are welcome."])
    async with served(Engine("sqlite://", model=model)) as service:
        page = pages.open(dialect, service.url)
        texts = []
        for said in ("Hi!", "Thanks."):
            await page("say", said)
            texts.append(page.text)
        roles = await stored(service)
    assert texts == ["Hello, Ada.", "You are welcome."]
    assert roles == [["user", "assistant"] * 2]


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


@pytest.mark.deep
async def test_agui_client_replaces_discarded_reasoning(pages: Pages) -> None:
    overloaded = ModelError("overloaded")
    model = PacedModel(
        [
            Reply("Wrong words", chunks=["Wrong", " words"], reasoning="bad thought", error=overloaded, error_after=3),
            Reply("Right.", reasoning="good thought", chunks=2),
        ]
    )
    settings = Settings(retry=RetryPolicy(first_delay=0.001), coalesce=0)
    async with served(Engine("sqlite://", model=model, settings=settings)) as service:
        page = pages.open("agui", service.url)
        model.allow(2)
        half = await page("say", "Think!", until="Wrong")
        model.allow(100)
        seen = [await page("settle"), await page("resume"), await page("resume")]
    assert [one["content"] for one in half["messages"]] == ["Think!", "bad thought", "Wrong"]
    for has in seen:
        assert [one["content"] for one in has["messages"]] == ["Think!", "good thought", "Right."]


@pytest.mark.deep
async def test_npm_clients_resume_after_kill(pages: Pages, service: ServiceProcess) -> None:
    """Each has seen half of its answer, loses the line, and ends with the answer as it is kept: nothing is doubled."""
    opened = [pages.open(dialect, service.url, token=TOKEN) for dialect in DIALECTS]
    for page in opened:
        await page("say", "crawl", until="two")
        assert page.text.startswith("One two"), page.has
        assert "eight" not in page.text
    await anyio.to_thread.run_sync(service.kill)
    lost = [await page("settle") for page in opened]
    await anyio.to_thread.run_sync(service.start)
    async with anyio.create_task_group() as tasks:
        for page in opened:
            tasks.start_soon(page, "resume")
    assert [bool(has["error"]) for has in lost] == [True, True, True]
    assert [page.text for page in opened] == ["One two three four five six seven eight."] * 3
    assert [len(page.has["messages"]) for page in opened] == [2, 2, 2]


def requested(version: str, step: str) -> list[str]:
    """Return what a page that is written as the guide says requests in a step: method, address, token and body."""
    guide = (Path(__file__).parents[2] / "docs/guides/front-ends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    shown = "".join(block for block in blocks if "ChatTransport" in block)
    page = f"""
        import {{ DefaultChatTransport }} from "ai-{version}";
        const [token, threadId, headers] = ["t", "tab", {{ Authorization: "Bearer t" }}];
        const HttpAgent = class {{}};
        {shown}
        globalThis.fetch = async (url, {{ method, headers, body }}) => {{
          console.log([method, url, new Headers(headers).get("authorization"), body].join("\\n"));
          return new Response(method === "GET" ? null : "", {{ status: method === "GET" ? 204 : 200 }});
        }};
        await {step};
    """
    node = ["node", "--input-type=module", "--eval", page]
    done = subprocess.run(node, cwd=installed().parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n").split("\n")


@pytest.mark.deep
@pytest.mark.parametrize("version", ["6", "7"])
def test_transport_of_the_guide_resumes(version: str) -> None:
    where = "https://chats.example/ai-sdk/chat/tab-1%2Fa/stream?version=7&finished=true"
    assert requested(version, "transport.reconnectToStream({ chatId: 'tab-1/a' })")[:3] == ["GET", where, "Bearer t"]


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
