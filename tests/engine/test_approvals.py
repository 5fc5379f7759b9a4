"""A tool of policy `ask` runs only once the client has allowed the call."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue

from turnwise import (
    ConflictingReplay,
    Engine,
    InvalidContent,
    Settings,
    ToolResult,
    tool,
)
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
async def test_approved_call_runs_once(allowed: JsonValue) -> None:
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


NOT_RUN = "Not run: the user did not approve this call."


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (ToolResult("p", output=False), NOT_RUN),
        (ToolResult("p", "no", is_error=True), NOT_RUN),
        (ToolResult("p", {"approved": False, "reason": "too much"}), f"{NOT_RUN} Reason: too much"),
        (ToolResult("p", {"approved": False, "reason": ""}), NOT_RUN),
    ],
)
async def test_denied_call_never_runs(answer: ToolResult, output: str) -> None:
    model = asking()
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [answer])
        await engine.wait(chat.id)
        assert ran == ["look at it"]
        assert results(model)[0] == ("p", output, True)
        assert (await engine.verify(chat.id)).ok


async def test_approved_call_runs_with_edited_arguments() -> None:
    model = asking()
    answer = ToolResult("p", {"approved": True, "arguments": {"amount": "5"}, "reason": "less"})
    async with Engine("sqlite://", model=model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        planned = {record.writes[0].digest for record in await engine.audit(chat.id) if record.writes}
        receipt = await engine.submit_tool_results(chat.id, [answer])
        await engine.wait(chat.id)

        assert ran == ["look at it", "pay 5"]
        history = await engine.messages(chat.id)
        assert history[1].calls[0].arguments == {"amount": 3}
        result = next(message.result for message in history if message.result and message.result.call_id == "p")
        assert (result.output, result.edited_arguments) == ("paid 5", {"amount": 5})
        told = {call_id: output for call_id, output, _ in results(model)}["p"]
        assert told == '[The user allowed this call with other arguments: {"amount":5}]\npaid 5'

        approved = [w for record in await engine.audit(chat.id) for w in record.writes if "approved" in w.kind]
        assert len(approved) == 1
        assert approved[0].digest not in planned
        assert (await engine.verify(chat.id)).ok
        again = await engine.submit_tool_results(chat.id, [answer])
        assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)
        with pytest.raises(ConflictingReplay):
            await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": True, "arguments": {"amount": 6}})])


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("perhaps", "asks for approval"),
        ({"approved": True, "arguments": {"amount": "much"}}, "edited arguments.*amount"),
        ({"approved": True, "arguments": [3]}, "arguments are an object"),
        ({"approved": True, "arguments": {"amount": 3, "to": "x" * 1000}}, r"at most 1,000 bytes"),
        ({"approved": False, "arguments": {"amount": 3}}, "belong to an approval"),
        ({"approved": True, "args": {"amount": 3}}, "it held 'args'"),
        ({"approved": False, "reason": 3}, "a reason is text"),
        ({"approved": "yes"}, "answer true, false"),
    ],
)
async def test_invalid_approval_is_refused(output: JsonValue, problem: str) -> None:
    settings = Settings(message_limit_bytes=1000)
    async with Engine("sqlite://", model=asking(), tools=[pay, look], settings=settings) as engine:
        chat = await engine.create_chat()
        before = (await engine.ask(chat.id, "pay")).chat
        with pytest.raises(InvalidContent, match=problem):
            await engine.submit_tool_results(chat.id, [ToolResult("p", output)])
        assert await engine.get_chat(chat.id) == before
        assert ran == ["look at it"]
        await engine.submit_tool_results(chat.id, [ToolResult("p", output=True)])
        await engine.wait(chat.id)
        assert ran == ["look at it", "pay 3"]


async def test_edits_for_an_unknown_tool_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with Engine(url, model=asking(), tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
    async with Engine(url, model=asking(), settings=Settings(run_worker=False)) as elsewhere:
        before = await elsewhere.get_chat(chat.id)
        with pytest.raises(InvalidContent, match="this engine has no tool named 'pay'"):
            await elsewhere.submit_tool_results(
                chat.id, [ToolResult("p", {"approved": True, "arguments": {"amount": 5}})]
            )
        assert await elsewhere.get_chat(chat.id) == before
