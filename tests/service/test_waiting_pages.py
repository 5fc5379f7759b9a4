"""Pages that wait for an operator's approval, of their own chat or a subagent: their streams show the outcome."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from support.engines import calling
from support.served import Served, served, streaming
from turnwise import Agent, Engine, ToolResult, delegate, tool
from turnwise.client import Client


def crew(asker: str) -> Engine:
    """Return an engine whose lead asks for an approval itself, or delegates to a subagent that does."""

    @tool(policy="ask")
    async def refund(order: str) -> str:
        """Pay money back."""
        return f"paid {order}"

    clerk = Agent("clerk", model=calling("refund", order="4711"), tools=[refund])
    lead = Agent("lead", model=calling("ask_clerk", task="Pay!"), tools=[delegate(clerk)])
    return Engine("sqlite://", agents=[clerk] if asker == "itself" else [lead, clerk])


@asynccontextmanager
async def asking(asker: str) -> AsyncIterator[tuple[Served, str, Client]]:
    """Serve a chat of Ada's that waits for an operator, and yield the operator's client."""
    async with served(crew(asker)) as service, Client(service.url, token="operator-token") as operator:  # noqa: S106
        agent = "clerk" if asker == "itself" else "lead"
        chat = await service.engine.create_chat(owner="ada", agent=agent, message="My money!")
        yield service, chat.id, operator


async def approve(operator: Client) -> None:
    with anyio.fail_after(60):
        async for _ in operator.watch():
            for item in await operator.inbox():
                allowed = [ToolResult(call.call_id, {"approved": True}) for call in item.calls]
                await operator.submit_tool_results(item.chat_id, allowed)
                return


ASKERS = pytest.mark.parametrize("asker", ["itself", "a subagent"])


@ASKERS
async def test_chat_stream_shows_an_operators_approval(asker: str) -> None:
    async with asking(asker) as (service, chat_id, operator), service.client("ada") as ada:
        results, states = [], []
        with anyio.fail_after(60):
            async with streaming(ada, chat_id) as events:
                async for event in events:
                    if event.event == "status":
                        states.append(event.data["state"])
                    if states[-1:] == ["requires_action"] and event.event == "status":
                        await approve(operator)
                    if event.event == "tool_result":
                        results.append(event.data["output"])
                    if states[-1] == "waiting" and results:
                        break
    assert results == ["paid 4711" if asker == "itself" else "I have paid 4711"]
    assert states[states.index("requires_action") :][1:2] == ["pending"]


@ASKERS
async def test_resumed_page_is_told_once_an_operator_approves(asker: str) -> None:
    """The stream stays open meanwhile: it shows the awaited operator, then continues to the turn's end."""
    async with asking(asker) as (service, chat_id, operator), service.client("ada") as ada:
        await service.engine.wait(chat_id, until=["requires_action"])
        chunks: list[dict[str, Any]] = []
        with anyio.fail_after(60):
            async with ada.stream("GET", f"/ai-sdk/chat/{chat_id}/stream") as answer:
                async for chunk in _chunks(answer):
                    chunks.append(chunk)
                    if chunk["type"] == "data-awaiting-operator":
                        await approve(operator)
    kinds = [chunk["type"] for chunk in chunks]
    assert kinds.count("data-awaiting-operator") == 1
    assert "tool-approval-request" not in kinds
    results = [chunk["output"] for chunk in chunks if chunk["type"] == "tool-output-available"]
    assert results == ["paid 4711" if asker == "itself" else "I have paid 4711"]
    assert chunks[-1] == {"type": "finish", "finishReason": "stop"}


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
