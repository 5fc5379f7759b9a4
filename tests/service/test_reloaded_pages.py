"""Reopened pages read the history, and continue it."""

import json
from typing import Any, Final, Literal

import httpx
import pytest

from support.engines import calling
from support.served import Served, served
from turnwise import Agent, Chat, Engine, TextPart, ToolOutput, ToolResult, delegate, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import FilePart
from turnwise.states.model_errors import ModelError


async def only_chat(service: Served) -> Chat:
    (chat,) = (await service.engine.list_chats()).items
    return chat


async def said_in(service: Served, chat_id: str) -> list[str]:
    return [message.text for message in await service.engine.messages(chat_id) if message.role != "tool"]


async def asked(client: httpx.AsyncClient, chat_id: str, *messages: tuple[str, str, str], **fields: Any) -> None:
    """Send a page's messages, given by id, role and text."""
    page = [{"id": name, "role": role, "parts": [{"type": "text", "text": text}]} for name, role, text in messages]
    answer = await client.post("/ai-sdk/chat", json={"id": chat_id, "messages": page, **fields})
    assert answer.status_code == 200, answer.text


async def test_stored_ids_regenerate_a_question() -> None:
    """The page built its messages from `GET /chats/{id}/messages`; in a fork, too."""
    model = ScriptedModel([f"{number}." for number in range(9)])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        parent = await service.engine.create_chat(owner="ada")
        for text in ("Yes.", "Yes.", "Yes."):
            await service.engine.ask(parent.id, text)
        fork = await service.engine.fork(parent.id, at_version=(await service.engine.get_chat(parent.id)).version)
        for place, chat in enumerate((parent, fork)):
            stored = (await ada.get(f"/chats/{chat.id}/messages")).json()
            has = [(one["id"], one["role"], one["parts"][0]["text"]) for one in stored]
            await asked(ada, chat.id, *has[:3], trigger="regenerate-message")
            assert await said_in(service, chat.id) == ["Yes.", "0.", "Yes.", f"{3 + 3 * place}."]
            await asked(ada, chat.id, *has[1:3], trigger="regenerate-message")  # as a page that sends less
            assert await said_in(service, chat.id) == ["Yes.", "0.", "Yes.", f"{4 + 3 * place}."]
            await asked(ada, chat.id, *has[:1], trigger="regenerate-message")
            assert await said_in(service, chat.id) == ["Yes.", f"{5 + 3 * place}."]


async def test_many_page_messages_cost_one_read() -> None:
    """Excessive messages of one client delay no other."""
    history = [{"role": role, "content": "Well?"} for role in ("user", "assistant") * 100]
    engine = _Counted("sqlite://", model="demo")
    async with served(engine) as service, service.client() as ada:
        chat = (await ada.post("/chats", json={"history": history})).json()
        messages_without_ids = [{"role": "user", "parts": [{"type": "text", "text": "Well?"}]}] * 3000
        messages = [{"id": f"m{number}", **one} for number, one in enumerate(messages_without_ids, 1000)]
        too_many = await ada.post("/ai-sdk/chat", json={"id": chat["id"], "messages": messages}, timeout=120)
    assert (too_many.status_code, too_many.json()["limit"]) == (429, 20)
    assert engine.read == 1


class _Counted(Engine):
    """Counts the reads of its chats' events."""

    read = 0

    def events(self, *arguments: Any, **options: Any) -> Any:
        self.read += 1
        return super().events(*arguments, **options)


async def test_page_ids_may_equal_stored_ids() -> None:
    """The page's third message is `m3`, an id of another stored message, perhaps with equal text."""
    model = ScriptedModel(["One.", "Two.", "Three.", Reply(error=ModelError("bad_request")), "Five.", "Six."])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        has: list[tuple[str, str, str]] = []
        chat_id = ""
        for turn, text in enumerate(["Yes.", "Yes.", "Yes.", "Yes.", "No."], 1):
            has.append((f"m{turn}", "user", text))
            await asked(ada, "tab", *has)
            chat_id = (await only_chat(service)).id
            if turn != 4:
                has.append((f"{chat_id}-t{turn}", "assistant", ""))
        assert await said_in(service, chat_id) == [
            "Yes.", "One.", "Yes.", "Two.", "Yes.", "Three.", "Yes.", "No.", "Five."
        ]  # fmt: skip
        await asked(ada, "tab", *has[:5], trigger="regenerate-message")
        assert await said_in(service, chat_id) == ["Yes.", "One.", "Yes.", "Two.", "Yes.", "Six."]


async def read_by(service: Served, who: str, chat_id: str) -> httpx.Response:
    async with service.client(who) as client:
        return await client.get(f"/ai-sdk/chat/{chat_id}/messages")


async def test_page_reads_only_what_its_user_may_see() -> None:
    """It lacks messages for the model only; another owner's chat looks unknown."""
    async with served(Engine("sqlite://", model=ScriptedModel(["Hello."], summary="secret"))) as service:
        chat = await service.engine.create_chat(owner="ada", system="secret")
        await service.engine.ask(chat.id, "Hi!")
        await service.engine.request_compaction(chat.id)
        await service.engine.wait(chat.id)
        seen = [await read_by(service, who, chat.id) for who in ("ada", "operator", "auditor")]
        unseen = [await read_by(service, "bob", name) for name in (chat.id, "never")]
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as stranger:
            refused = await stranger.get(f"/ai-sdk/chat/{chat.id}/messages")
    for answer in seen:
        assert answer.json() == [
            {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi!"}]},
            {
                "id": f"{chat.id}-t1",
                "role": "assistant",
                "parts": [{"type": "step-start"}, {"type": "text", "text": "Hello.", "state": "done"}],
            },
        ]
        assert answer.headers["Turnwise-Chat"] == chat.id
    assert [(one.status_code, one.json(), one.headers.get("Turnwise-Chat")) for one in unseen] == [(200, [], None)] * 2
    assert refused.status_code == 401


@tool
async def look() -> ToolOutput:
    """Look, and draw what is there."""
    return ToolOutput("a cat", attachments=(FilePart.from_bytes(b"\x89PNG", "image/png", name="seen.png"),))


@tool(policy="ask", approver="owner")
async def pay(cents: int) -> str:
    """Pay money."""
    return f"paid {cents}"


async def test_history_has_files_reasoning_and_calls() -> None:
    calls = [Call("look", {}, id="l"), Call("pay", {"cents": 3}, id="p")]
    model = ScriptedModel([Reply("See. ", reasoning="Hm.", calls=calls), "A cat.", "Bye."])
    picture = FilePart(media_type="image/png", url="https://a.example/p.png", name="p.png")
    async with served(Engine("sqlite://", model=model, tools=[look, pay])) as service, service.client() as ada:
        chat = await service.engine.create_chat(owner="ada")
        await service.engine.ask(chat.id, [TextPart(text="What is it?"), picture])
        (question, answer) = (await ada.get(f"/ai-sdk/chat/{chat.id}/messages")).json()
        await service.engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": False})])
        await service.engine.wait(chat.id)
        denied = (await ada.get(f"/ai-sdk/chat/{chat.id}/messages")).json()[1]["parts"]
        await service.engine.ask(chat.id, "Thanks.")
        run = {"threadId": chat.id, "runId": "r", "messages": [], "tools": [], "context": [], "state": {}}
        stream = (await ada.post("/agui", json=run | {"forwardedProps": {}})).text
    head = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm.", "state": "done"},
        {"type": "text", "text": "See. ", "state": "done"},
        {"type": "tool-look", "state": "output-available", "toolCallId": "l", "input": {}, "output": "a cat"},
    ]
    paying = {"type": "tool-pay", "toolCallId": "p", "input": {"cents": 3}}
    cat = {"type": "file", "url": "data:image/png;base64,iVBORw==", "mediaType": "image/png"}
    asked = paying | {"state": "approval-requested", "approval": {"id": "p"}}
    refused = paying | {"state": "output-denied", "approval": {"id": "p", "approved": False}}
    assert question["parts"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "file", "mediaType": "image/png", "url": picture.url, "filename": "p.png"},
    ]
    assert answer["parts"] == [*head, asked, cat]
    assert denied[:6] == [*head, refused, cat]
    snapshot = json.loads(stream.split("data: ")[2])["messages"]
    source = {"type": "url", "value": picture.url, "mimeType": "image/png"}
    assert snapshot[0]["content"] == [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    assert [one["role"] for one in snapshot] == ["user", "reasoning", "assistant", "tool", "tool", "assistant", "user"]
    assert [call["id"] for call in snapshot[2]["toolCalls"]] == ["l", "p"]
    assert snapshot[3]["content"][1]["type"] == "image"
    assert snapshot[4]["error"].startswith("Not run: the user did not approve")


# Approvals that a subagent waits for


AGUI: Final = {"threadId": "page", "state": {}, "tools": [], "context": [], "forwardedProps": {"agent": "lead"}}
QUESTION: Final = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Clean up."}]}
SAID: Final = {"id": "u1", "role": "user", "content": "Clean up."}


def crew() -> Engine:
    """Return an engine whose lead asks a foreman who asks a janitor, who needs an approval."""

    @tool(policy="ask", approver="owner")
    async def wipe(what: str) -> str:
        """Wipe."""
        return f"wiped {what}"

    janitor = Agent("janitor", model=calling("wipe", what="disk"), tools=[wipe])
    foreman = Agent("foreman", model=calling("ask_janitor", task="wipe"), tools=[delegate(janitor)])
    lead = Agent("lead", model=calling("ask_foreman", task="clean"), tools=[delegate(foreman)])
    return Engine("sqlite://", agents=[lead, foreman, janitor])


async def chunks(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream until it ends."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_ai_sdk_page_answers_for_a_subagent() -> None:
    async with served(crew()) as service, service.client("ada") as ada:
        body = {"id": "page", "agent": "lead", "messages": [QUESTION]}
        stream = await chunks(ada, "/ai-sdk/chat", body)
        kinds = [chunk["type"] for chunk in stream]
        assert kinds[-4:] == ["tool-input-available", "tool-approval-request", "finish-step", "finish"]
        asked = stream[-3]
        opened = (await ada.get("/ai-sdk/chat/page/messages")).json()
        states = [(part["type"], part.get("state")) for part in opened[-1]["parts"]]
        assert states[-2:] == [("step-start", None), ("tool-wipe", "approval-requested")]
        assert opened[-1]["parts"][-1]["input"] == {"what": "disk"}
        part = opened[-1]["parts"][-1] | {"state": "approval-responded"}
        part["approval"] = {"id": asked["approvalId"], "approved": True}
        opened[-1]["parts"][-1] = part
        stream = await chunks(ada, "/ai-sdk/chat", {**body, "messages": opened})
        text = "".join(chunk["delta"] for chunk in stream if chunk["type"] == "text-delta")
        assert text == "I have I have I have wiped disk"
        assert stream[-1] == {"type": "finish", "finishReason": "stop"}


async def test_agui_page_answers_for_a_subagent() -> None:
    async with served(crew()) as service, service.client("ada") as ada:
        stream = await chunks(ada, "/agui", {**AGUI, "runId": "r1", "messages": [SAID]})
        (interrupt,) = stream[-1]["outcome"]["interrupts"]
        assert interrupt["message"] == "Allow wipe?"
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        stream = await chunks(ada, "/agui", {**AGUI, "runId": "r2", "messages": [SAID], "resume": resume})
        text = "".join(event["delta"] for event in stream if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert (text, stream[-1]["outcome"]) == ("I have I have I have wiped disk", {"type": "success"})


@pytest.mark.parametrize("role", ["ada", "operator"])
@pytest.mark.parametrize("approver", ["operator", "owner"])
async def test_owner_page_is_not_asked_for_an_operator(role: str, approver: Literal["operator", "owner"]) -> None:
    """An owner's answer would be refused: both protocols show the awaited approval instead."""

    @tool(policy="ask", approver=approver)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([Reply("", calls=[Call("pay", {})])] * 2)
    async with served(Engine("sqlite://", model=model, tools=[pay])) as service, service.client(role) as page:
        streamed = await chunks(page, "/ai-sdk/chat", {"id": "page", "messages": [QUESTION]})
        opened = (await page.get("/ai-sdk/chat/page/messages")).json()[-1]["parts"]
        run = await chunks(page, "/agui", {**AGUI, "runId": "r1", "messages": [SAID]})
    waits = (role, approver) == ("ada", "operator")
    kinds = {chunk["type"] for chunk in streamed} & {"data-awaiting-operator", "tool-approval-request"}
    assert kinds == {"data-awaiting-operator" if waits else "tool-approval-request"}
    states = {part.get("state", part["type"]) for part in opened} - {"step-start"}
    assert states == ({"input-available", "data-awaiting-operator"} if waits else {"approval-requested"})
    awaited = [event["value"][0]["toolName"] for event in run if event.get("name") == "awaiting_operator"]
    assert (awaited, run[-1]["outcome"]["type"]) == ((["pay"], "success") if waits else ([], "interrupt"))
    assert "pendingToolCallIds" not in run[-1]["outcome"]
