"""Pages that are opened again: they read what was said, and go on with it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from support.served import Served, served
from turnwise import Chat, Engine, TextPart, ToolOutput, ToolResult, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ModelError
from turnwise.states.messages import FilePart


async def only_chat(service: Served) -> Chat:
    (chat,) = (await service.engine.list_chats()).items
    return chat


async def said_in(service: Served, chat_id: str) -> list[str]:
    return [message.text for message in await service.engine.messages(chat_id) if message.role != "tool"]


async def asked(client: httpx.AsyncClient, chat_id: str, *messages: tuple[str, str, str], **fields: Any) -> None:
    """Send what a page has, by id, role and text."""
    told = [{"id": name, "role": role, "parts": [{"type": "text", "text": text}]} for name, role, text in messages]
    answer = await client.post("/ai-sdk/chat", json={"id": chat_id, "messages": told, **fields})
    assert answer.status_code == 200, answer.text


async def test_stored_ids_regenerate_a_question() -> None:
    """It has made its messages of `GET /chats/{id}/messages`; in a fork, too."""
    model = ScriptedModel([f"{number}." for number in range(9)])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        parent = await service.engine.create_chat(owner="ada")
        for text in ("Yes.", "Yes.", "Yes."):
            await service.engine.ask(parent.id, text)
        fork = await service.engine.fork(parent.id, at_version=(await service.engine.get_chat(parent.id)).version)
        for place, chat in enumerate((parent, fork)):
            kept = (await ada.get(f"/chats/{chat.id}/messages")).json()
            has = [(one["id"], one["role"], one["parts"][0]["text"]) for one in kept]
            await asked(ada, chat.id, *has[:3], trigger="regenerate-message")
            assert await said_in(service, chat.id) == ["Yes.", "0.", "Yes.", f"{3 + 3 * place}."]
            await asked(ada, chat.id, *has[1:3], trigger="regenerate-message")  # as a page that sends less
            assert await said_in(service, chat.id) == ["Yes.", "0.", "Yes.", f"{4 + 3 * place}."]
            await asked(ada, chat.id, *has[:1], trigger="regenerate-message")
            assert await said_in(service, chat.id) == ["Yes.", f"{5 + 3 * place}."]


async def test_many_page_messages_cost_one_read() -> None:
    """What somebody sends on purpose holds nobody else up."""
    history = [{"role": role, "content": "Well?"} for role in ("user", "assistant") * 100]
    engine = _Counted("sqlite://", model="demo")
    async with served(engine) as service, service.client() as ada:
        chat = (await ada.post("/chats", json={"history": history})).json()
        said = [{"role": "user", "parts": [{"type": "text", "text": "Well?"}]}] * 3000
        messages = [{"id": f"m{number}", **one} for number, one in enumerate(said, 1000)]
        too_many = await ada.post("/ai-sdk/chat", json={"id": chat["id"], "messages": messages}, timeout=120)
    assert (too_many.status_code, too_many.json()["limit"]) == (429, 20)
    assert engine.read == 1


class _Counted(Engine):
    """Counts how often the events of its chats are read."""

    read = 0

    def events(self, *arguments: Any, **options: Any) -> Any:
        self.read += 1
        return super().events(*arguments, **options)


async def test_page_ids_may_equal_stored_ids() -> None:
    """Its third message is `m3`, which is another one in the store, and may say the same."""
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
    """Not what only the model sees; and of another owner's chat not even that it is there."""
    async with served(Engine("sqlite://", model=ScriptedModel(["Hello."], summary="secret"))) as service:
        chat = await service.engine.create_chat(owner="ada", system="secret")
        await service.engine.ask(chat.id, "Hi!")
        await service.engine.request_compaction(chat.id)
        await service.engine.wait(chat.id)
        seen = [await read_by(service, who, chat.id) for who in ("ada", "operator", "auditor")]
        unseen = [await read_by(service, "bob", name) for name in (chat.id, "never")]
        async with httpx.AsyncClient(base_url=service.url) as nobody:
            refused = await nobody.get(f"/ai-sdk/chat/{chat.id}/messages")
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
