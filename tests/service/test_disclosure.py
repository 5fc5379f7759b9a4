"""What clients are told: no secret of a provider, and what a provider says of an error only as operators."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from support.served import Served, served, stream_of
from turnwise import Agent, Engine, ModelError, ModelPart, Settings, Usage, delegate
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service.routes.table import ROUTES

SECRET: Final = "canary-1f0c"  # noqa: S105 - of a test
SAID: Final = "sk-canary-77aa"
"""What the provider says of an error."""
SEARCH: Final = {"name": "web_search", "executor": "provider", "metadata": {"secret": SECRET}}
REPLY: Final = Reply(
    parts=[
        ModelPart("reasoning_delta", text="hm", signature=SECRET, metadata={"redacted": SECRET}),
        ModelPart("tool_call", id="s", arguments={"query": "news"}, **SEARCH),
        ModelPart(
            "provider_result",
            call_id="s",
            output=[{"title": "News", "encrypted_content": SECRET, "page": {"signature": SECRET}}],
            metadata={"secret": SECRET},
        ),
        ModelPart("source", url="https://news.example", title="News", metadata={"encrypted_index": SECRET}),
        ModelPart("text_delta", text="There is news.", metadata={"id": SECRET}),
        ModelPart("finish", stop_reason="end_turn", usage=Usage(input_tokens=1)),
    ]
)
AGUI: Final = {"runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}


async def told_by_all_routes(service: Served, who: str, chat: str, thread: str) -> dict[str, str]:
    """Return what every route that reads says of a chat, and every one that follows it."""
    async with service.client(who) as client:
        values = {"chat_id": chat, "thread_id": thread, "digest": "0" * 64, "message_id": "m1", "queued_id": "m1"}
        told = {}
        for row in ROUTES:
            if row.method == "GET" and row.path != "/chats/{chat_id}/events":
                told[row.path] = (await client.get(row.path.format(**values), params={"finished": "true"})).text
        for view in ("user", "model", "raw"):
            told[view] = (await client.get(f"/chats/{chat}/messages", params={"view": view})).text
        told["events"] = str(await stream_of(client, chat, follow="false"))
        told["agui"] = (await client.post("/agui", json={**AGUI, "threadId": thread, "messages": []})).text
        told["audit"] = (await client.get(f"/chats/{chat}/audit?export=true")).text
        return told


async def asked(service: Served, thread: str, agent: str | None = None) -> tuple[str, str]:
    """Let a page of ada's ask; return the chat's id and the stream."""
    async with service.client("ada") as ada:
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Any news?"}]}
        answer = await ada.post("/ai-sdk/chat", json={"id": thread, "messages": [message], "agent": agent})
        return answer.headers["Turnwise-Chat"], answer.text


async def test_provider_secrets_reach_no_client() -> None:
    async with served(Engine("sqlite://", model=ScriptedModel([REPLY, "more"]))) as service:
        chat, streamed = await asked(service, "news")
        told = {who: await told_by_all_routes(service, who, chat, "news") for who in ("ada", "operator")}
        stored = [line async for line in service.engine.export_chat(chat)]
        async with service.client("ada") as ada:
            await ada.post(f"/chats/{chat}/fork", json={"at_version": 4})
            forks = (await ada.get("/chats")).text
    assert SECRET in "".join(stored), "the provider gets it again"
    assert SECRET not in streamed + forks
    assert "There is news." in streamed
    # A whole export is what another store needs: only who may read everything gets one.
    leaks = {(who, path) for who, answers in told.items() for path, text in answers.items() if SECRET in text}
    assert leaks == {("operator", "/chats/{chat_id}/export")}
    assert '"title":"News"' in told["ada"]["/chats/{chat_id}/messages"]


def fails(_request: Any) -> Reply:
    raise RuntimeError(f"401 from https://user:{SAID}@models.example")


@pytest.mark.parametrize("describe", [None, lambda error: f"sorry ({type(error).__name__})"], ids=["default", "own"])
@pytest.mark.parametrize("raised", ["ModelError", "RuntimeError"])
async def test_providers_words_reach_operators_alone(raised: str, describe: Any) -> None:
    """Those of a subagent's provider, too, which its parent is told."""
    error = Reply(error=ModelError("authentication", status=401, message=f"Incorrect API key provided: {SAID}"))
    model = ScriptedModel(lambda request: error) if raised == "ModelError" else ScriptedModel(fails)
    below = Agent("below", model=model)
    asks = Reply(calls=[Call("ask_below", {"task": "go"})])
    lead = Agent("lead", model=ScriptedModel([asks, error]), tools=[delegate(below)])
    engine = Engine("sqlite://", agents=[lead, below], settings=Settings(describe_error=describe))
    async with served(engine) as service:
        chat, streamed = await asked(service, "news", "lead")
        (helper,) = await service.engine.helpers(chat)
        told = {
            who: {one: await told_by_all_routes(service, who, one, "news") for one in (chat, helper.id)}
            for who in ("ada", "operator")
        }
    for answers in (*told["ada"].values(), {"stream": streamed}):
        assert {path for path, text in answers.items() if SAID in text} == set()
    kind = "sorry (ModelError)" if describe else "does not accept the credentials of this service"
    assert kind in streamed
    explained = json.loads(told["operator"][chat]["/chats/{chat_id}/explain"])["last_error"]
    assert explained["detail"] == f"Incorrect API key provided: {SAID}"
    assert kind in explained["message"]
    assert (SAID in told["operator"][helper.id]["/chats/{chat_id}/explain"]) == (raised == "ModelError" or not describe)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("audience", {"role": "user", "content": "Obey.", "audience": "model"}),
        ("parts", {"role": "user", "parts": [{"type": "text", "text": "hi", "metadata": {"cache": True}}]}),
        ("parts", {"role": "assistant", "parts": [{"type": "reasoning", "text": "hm", "signature": "s"}]}),
    ],
    ids=["audience", "metadata", "signature"],
)
async def test_owners_history_holds_nothing_hidden(demo: Served, field: str, message: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "Hello"}, message]
    async with demo.client("ada") as ada, demo.client("operator") as operator:
        refused = await ada.post("/chats", json={"history": history})
        assert (refused.status_code, refused.json()["argument"]) == (400, f"history[1].{field}")
        assert (await operator.post("/chats", json={"history": history})).status_code == 201
