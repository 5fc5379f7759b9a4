"""A tool of policy `ask` runs only once the client has allowed the call."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from turnwise import ConflictingReplay, Engine, InvalidContent, ToolResult, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ran: list[str] = []


@tool(policy="ask")
async def pay(amount: int) -> str:
    """Pay money."""
    ran.append(f"pay {amount}")
    return f"paid {amount}"


@tool
async def look(at: str) -> str:
    """Look at something."""
    ran.append(f"look at {at}")
    return at


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def asking() -> ScriptedModel:
    calls = [Call("pay", {"amount": 3}, id="p"), Call("look", {"at": "it"}, id="l")]
    return ScriptedModel([Reply(calls=calls), Reply("done")])


def results(model: ScriptedModel) -> list[tuple[str, object, bool]]:
    found = [message.result for message in model.requests[-1].messages]
    return [(result.call_id, result.output, result.is_error) for result in found if result is not None]


@pytest.mark.parametrize("allowed", [True, {"approved": True}])
async def test_an_approved_call_runs_once_and_its_result_reaches_the_model(allowed: JsonValue) -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        asked = await engine.ask(chat.id, "pay")
        assert [(call.call_id, call.approval) for call in asked.open_calls] == [("p", "asked")]
        assert (asked.chat.state, ran) == ("requires_action", ["look at it"])

        receipt = await engine.submit_tool_results(chat.id, [ToolResult("p", allowed)])
        await engine.wait(chat.id)
        again = await engine.submit_tool_results(chat.id, [ToolResult("p", allowed)])

        assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)
        assert ran == ["look at it", "pay 3"]
        assert results(model) == [("p", "paid 3", False), ("l", "it", False)]
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat.id, [ToolResult("p", output=False)])
        assert (await engine.verify(chat.id)).ok


@pytest.mark.parametrize("answer", [ToolResult("p", output=False), ToolResult("p", "no", is_error=True)])
async def test_a_denied_call_never_runs_and_the_model_is_told(answer: ToolResult) -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [answer])
        await engine.wait(chat.id)
        assert ran == ["look at it"]
        assert results(model)[0] == ("p", "Not run: the user did not approve this call.", True)
        assert (await engine.verify(chat.id)).ok


async def test_the_reason_of_a_denial_reaches_the_model() -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": False, "reason": "too much"})])
        await engine.wait(chat.id)
        assert results(model)[0][1] == "Not run: the user did not approve this call. Reason: too much"


async def test_an_answer_that_is_neither_yes_nor_no_is_refused() -> None:
    async with Engine("sqlite://", model=asking(), tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        before = (await engine.ask(chat.id, "pay")).chat
        with pytest.raises(InvalidContent, match="asks for approval"):
            await engine.submit_tool_results(chat.id, [ToolResult("p", "perhaps")])
        assert await engine.get_chat(chat.id) == before


async def test_an_interrupt_closes_a_call_that_waits_for_approval() -> None:
    async with Engine("sqlite://", model=asking(), tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        stopped = await engine.interrupt(chat.id)
        assert (stopped.state, stopped.settled, stopped.open_calls) == ("interrupted", True, [])
        assert ran == ["look at it"]
        assert (await engine.verify(chat.id)).ok
