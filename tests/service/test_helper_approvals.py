"""Approvals that a subagent waits for reach the page of the chat that waits for it, and are answered there."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx

from support.served import served
from turnwise import Agent, Engine, ModelRequest, delegate, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

AGUI: Final = {"threadId": "page", "state": {}, "tools": [], "context": [], "forwardedProps": {"agent": "lead"}}
QUESTION: Final = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Clean up."}]}
SAID: Final = {"id": "u1", "role": "user", "content": "Clean up."}


def _asking(name: str, arguments: dict[str, str]) -> ScriptedModel:
    """Return a model that calls a tool and then says what it has got."""

    def answer(request: ModelRequest) -> Reply:
        results = [message.result.output for message in request.messages if message.result is not None]
        return Reply(f"I have {results[0]}") if results else Reply(calls=[Call(name, arguments, id=f"{name}-1")])

    return ScriptedModel(answer)


def crew() -> Engine:
    """Return an engine whose lead asks a foreman who asks a janitor, who needs an approval."""

    @tool(policy="ask", approver="owner")
    async def wipe(what: str) -> str:
        """Wipe."""
        return f"wiped {what}"

    janitor = Agent("janitor", model=_asking("wipe", {"what": "disk"}), tools=[wipe])
    foreman = Agent("foreman", model=_asking("ask_janitor", {"task": "wipe"}), tools=[delegate(janitor)])
    lead = Agent("lead", model=_asking("ask_foreman", {"task": "clean"}), tools=[delegate(foreman)])
    return Engine("sqlite://", agents=[lead, foreman, janitor])


async def chunks(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a stream tells until it ends."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_ai_sdk_page_answers_for_a_subagent() -> None:
    async with served(crew()) as service, service.client("ada") as ada:
        body = {"id": "page", "agent": "lead", "messages": [QUESTION]}
        told = await chunks(ada, "/ai-sdk/chat", body)
        kinds = [chunk["type"] for chunk in told]
        assert kinds[-4:] == ["tool-input-available", "tool-approval-request", "finish-step", "finish"]
        asked = told[-3]
        opened = (await ada.get("/ai-sdk/chat/page/messages")).json()
        states = [(part["type"], part.get("state")) for part in opened[-1]["parts"]]
        assert states[-2:] == [("step-start", None), ("tool-wipe", "approval-requested")]
        assert opened[-1]["parts"][-1]["input"] == {"what": "disk"}
        part = opened[-1]["parts"][-1] | {"state": "approval-responded"}
        part["approval"] = {"id": asked["approvalId"], "approved": True}
        opened[-1]["parts"][-1] = part
        told = await chunks(ada, "/ai-sdk/chat", {**body, "messages": opened})
        text = "".join(chunk["delta"] for chunk in told if chunk["type"] == "text-delta")
        assert text == "I have I have I have wiped disk"
        assert told[-1] == {"type": "finish", "finishReason": "stop"}


async def test_agui_page_answers_for_a_subagent() -> None:
    async with served(crew()) as service, service.client("ada") as ada:
        told = await chunks(ada, "/agui", {**AGUI, "runId": "r1", "messages": [SAID]})
        (interrupt,) = told[-1]["outcome"]["interrupts"]
        assert interrupt["message"] == "Allow wipe?"
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        told = await chunks(ada, "/agui", {**AGUI, "runId": "r2", "messages": [SAID], "resume": resume})
        text = "".join(event["delta"] for event in told if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert (text, told[-1]["outcome"]) == ("I have I have I have wiped disk", {"type": "success"})
