"""Real clients of AG-UI and the AI SDK, in Node, against a real service.

The AI SDK's client is `AbstractChat`, on which the hooks of `@ai-sdk/react` are built.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import anyio
import httpx
import pytest
from tests.service.pages import Pages

from support.exploring import few
from support.gated_model import GatedModel
from support.processes.talkative_service import ServiceProcess
from support.served import Served, served
from turnwise import Agent, Chat, Engine, ModelError, Settings, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service.routes import threads
from turnwise.states.messages import FilePart, ToolResultPart

DIALECTS = ("agui", "ai-6", "ai-7")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
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
    """Return a page's messages without its own ids of messages and parts."""
    if any("parts" in message for message in messages):
        return [(one["role"], [part | {"id": None} for part in one["parts"]]) for one in messages]
    return [(one["role"], (one.get("content") or "", one.get("toolCalls"))) for one in messages]


def asked(message_id: str, text: str) -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


async def test_thread_name_belongs_to_its_owner() -> None:
    """Another owner's equal name is another chat, and another owner's chat id is no name of it."""
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


# What a request of a front end does to its chat


SCHEMA: Final = {"type": "object", "properties": {"near": {"type": "string"}}}
PICK: Final = {"name": "pick_date", "description": "Ask for a date.", "input_schema": SCHEMA}
ASKING: Final = Reply("Which? ", calls=[Call("pick_date", {}, id="k")])


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def kinds(answer: httpx.Response) -> list[str]:
    return [one["type"] for one in events_of(answer)]


def words(answer: httpx.Response) -> str:
    return "".join(one["delta"] for one in events_of(answer) if one["type"] in ("text-delta", "TEXT_MESSAGE_CONTENT"))


def user(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}


def replied(*answers: tuple[str, str]) -> dict[str, Any]:
    parts = [
        {"type": "tool-pick_date", "toolCallId": call_id, "state": "output-available", "output": output}
        for call_id, output in answers
    ]
    return {"id": "a", "role": "assistant", "parts": parts}


async def page(client: httpx.AsyncClient, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"id": "tab-1", "client_tools": [PICK], "messages": messages, **fields}
    return await client.post("/ai-sdk/chat", json=body)


def run_message(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


def called(call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "pick_date", "arguments": "{}"}}
    return {"id": f"a-{call_id}", "role": "assistant", "content": "", "toolCalls": [call]}


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"id": f"r-{call_id}", "role": "tool", "toolCallId": call_id, "content": content}


async def run(client: httpx.AsyncClient, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
    tools = [{"name": "pick_date", "description": "Ask for a date.", "parameters": SCHEMA}]
    body = {"threadId": "tab-1", "runId": "r", "state": {}, "context": [], "forwardedProps": {}, "tools": tools}
    return await client.post("/agui", json=body | {"messages": messages, **fields})


async def history(service: Served, answer: httpx.Response) -> list[tuple[str, str]]:
    messages = await service.engine.messages(answer.headers["turnwise-chat"])
    return [(message.role, message.text) for message in messages]


async def test_thread_begins_with_its_owner_agent_and_tools() -> None:
    """The chat belongs to the caller, under the page's name, with the agent and tools of the request."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return "Hello."

    agents = [Agent("support", ScriptedModel(answer)), Agent("sales", ScriptedModel(answer))]
    async with served(Engine("sqlite://", agents=agents)) as service, service.client() as ada:
        answers = [
            await page(ada, user("u", "Hi!"), agent="sales"),
            await run(ada, run_message("u", "Hi!"), threadId="tab-2", forwardedProps={"agent": "sales"}),
        ]
        chats = [await service.engine.get_chat(answer.headers["turnwise-chat"]) for answer in answers]
        odd = await run(ada, run_message("u", "Hi!"), threadId="tab-3", forwardedProps=["agent"])
    expected = [("ada", {"thread": "tab-1"}, "sales"), ("ada", {"thread": "tab-2"}, "sales")]
    assert [(chat.owner, chat.metadata, chat.agent) for chat in chats] == expected
    assert [[(one.name, one.description, one.schema) for one in request.tools] for request in seen] == [
        [("pick_date", "Ask for a date.", SCHEMA)]
    ] * 2
    assert (odd.status_code, odd.json()["field"]) == (400, "agent"), "several agents, and none was named"
    assert answers[0].headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answers[0].headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert "x-vercel-ai-ui-message-stream" not in answers[1].headers
    assert answers[0].text.endswith("data: [DONE]\n\n")
    assert "[DONE]" not in answers[1].text


async def test_agui_result_brings_files() -> None:
    """The model sees them beside the text, and a page that repeats the request gets no conflict."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Reply | str:
        seen.append(request)
        return "Nice." if len(seen) > 1 else Reply(calls=[Call("pick_date", {}, id="k")])

    source = {"type": "data", "value": "iVBORw==", "mimeType": "image/png"}
    content = [{"type": "text", "text": "as on "}, {"type": "image", "source": source}, {"type": "text", "text": "it"}]
    conversation = (run_message("u", "When?"), called("k"), result("k", content))
    async with served(Engine("sqlite://", model=ScriptedModel(answer))) as service, service.client() as ada:
        await run(ada, conversation[0])
        answers = [await run(ada, *conversation) for _ in range(2)]
    (result_part,) = [part for one in seen[1].messages for part in one.parts if isinstance(part, ToolResultPart)]
    assert [words(one) for one in answers] == ["Nice.", "Nice."]
    assert (result_part.output, [(file.media_type, file.data) for file in result_part.attachments]) == (
        "as on it", [("image/png", "iVBORw==")]
    )  # fmt: skip


async def test_two_tabs_start_a_thread_at_once() -> None:
    """Each first message is answered: the later one waits in the queue of the chat that the other created."""
    async with served(Engine("sqlite://", model="demo")) as service, service.client() as ada:
        answers: list[httpx.Response] = []

        async def start(tab: str) -> None:
            answers.append(await page(ada, user(tab, f"Hello from {tab}!")))
            answers.append(await run(ada, run_message(tab, f"Hello from {tab}!"), threadId="tab-2"))

        async with anyio.create_task_group() as tasks:
            for tab in ("u1", "u2"):
                tasks.start_soon(start, tab)
        roles = await stored(service)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert roles == [["user", "assistant"] * 2] * 2


async def test_thread_is_known_by_name_and_chat_id() -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        first = await page(ada, user("u1", "1"))
        chat_id = first.headers["turnwise-chat"]
        again = await page(ada, user("u1", "1"))
        by_id = await page(ada, user("u2", "2"), id=chat_id)
        by_other_name = await run(ada, run_message("u3", "3"), threadId=chat_id)
        replays = [
            await ada.get(f"/ai-sdk/chat/{name}/stream", params={"finished": True}) for name in ("tab-1", chat_id)
        ]
        said_now = await history(service, first)
    assert {answer.headers["turnwise-chat"] for answer in (again, by_id, by_other_name, *replays)} == {chat_id}
    assert [words(answer) for answer in (first, again, by_id, by_other_name)] == ["One.", "One.", "Two.", "Three."]
    assert [words(replay) for replay in replays] == ["Three.", "Three."]
    assert replays[0].text.endswith("data: [DONE]\n\n")
    assert [text for role, text in said_now if role == "user"] == ["1", "2", "3"]


STEP: Final = ["text-start", "text-delta", "text-end"]
CALLED: Final = ["tool-input-start", "tool-input-available"]


async def test_page_answers_are_accepted_once() -> None:
    replies = [ASKING, Reply("And? ", calls=[Call("pick_date", {}, id="l")]), "Booked.", "Again."]
    async with served(Engine("sqlite://", model=ScriptedModel(replies))) as service, service.client() as ada:
        asked = await page(ada, user("u", "A table!"))
        answer = replied(("k", "Friday"))
        once, twice = [await page(ada, user("u", "A table!"), answer) for _ in range(2)]
        answer = replied(("k", "Friday"), ("l", "Noon"))
        both, both_again = [await page(ada, user("u", "A table!"), answer) for _ in range(2)]
        odd_trigger = await page(ada, user("u", "A table!"), answer, trigger="regenerate-message")
        nothing = [await page(ada), await page(ada, user("u", "A table!"), replied())]
        unknown = await page(ada, user("u", "A table!"), replied(("x", "Friday")))
        roles = [role for role, _ in await history(service, asked)]
    assert kinds(asked) == ["start", "start-step", *STEP, *CALLED, "finish-step", "finish"]
    assert kinds(once) == kinds(twice) == kinds(asked)
    assert (words(asked), words(once), words(twice)) == ("Which? ", "And? ", "And? ")
    assert kinds(both) == kinds(both_again) == ["start", "start-step", *STEP, "finish-step", "finish"]
    assert [words(answer) for answer in (both, both_again, odd_trigger)] == ["Booked."] * 3
    assert {events_of(answer)[0]["messageId"] for answer in (asked, once, both)} == {events_of(asked)[0]["messageId"]}
    for refused in nothing:
        problem = {"field": "messages", "problem": "must end with what is new: a message or an answer"}
        assert (refused.status_code, refused.json()["problems"]) == (400, [problem])
    assert words(unknown) == "Which? And? Booked.", "the turn is told from its start"
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


async def test_approved_call_is_not_announced_again() -> None:
    replies = [Reply(calls=[Call("pay", {"cents": 3}, id="p")], usage=(9, 4)), Reply("Paid.", usage=(12, 2))]
    model = ScriptedModel(replies * 2)
    approval = {"id": "p", "approved": True}
    allowed = {"type": "tool-pay", "toolCallId": "p", "state": "approval-responded", "approval": approval}
    call = {"id": "p", "type": "function", "function": {"name": "pay", "arguments": '{"cents": 3}'}}
    asked = {"id": "a", "role": "assistant", "content": "", "toolCalls": [call]}
    resumed = [{"interruptId": "p", "status": "resolved", "payload": True}]
    async with served(Engine("sqlite://", model=model, tools=[pay])) as service, service.client() as ada:
        await page(ada, user("u", "Pay!"))
        by_page = await page(ada, user("u", "Pay!"), {"id": "a", "role": "assistant", "parts": [allowed]})
        first_run = await run(ada, run_message("u", "Pay!"), threadId="tab-2")
        by_run = await run(ada, run_message("u", "Pay!"), asked, threadId="tab-2", resume=resumed)
    assert kinds(by_page) == [
        "start", "tool-output-available", "start-step", *STEP, "finish-step", "finish"
    ]  # fmt: skip
    assert kinds(by_run) == [
        "RUN_STARTED", "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    used = [events_of(answer)[-1]["usage"] for answer in (first_run, by_run)]
    assert used == [[{"inputTokens": 9, "outputTokens": 4}], [{"inputTokens": 12, "outputTokens": 2}]]


async def test_changed_message_conflicts_and_stops_no_other() -> None:
    """A page that edits a message repeats its id, and sends it with the next message."""
    for say, talk in ((page, user), (run, run_message)):
        model = ScriptedModel(["One.", "Two."])
        async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
            await say(ada, talk("u1", "1"))
            edited = await say(ada, talk("u1", "One"))
            after = await say(ada, talk("u1", "One"), talk("u2", "2"))
            texts = [text for _, text in await history(service, after)]
        problem = edited.json()
        assert (edited.status_code, problem["title"], problem["client_id"]) == (409, "Conflicting replay", "u1")
        assert words(after) == "Two."
        assert texts == ["1", "One.", "2", "Two."]


async def test_one_bad_message_refuses_the_whole_request() -> None:
    """The request takes no answer, sends no message and creates no chat; the error says so."""
    settings = Settings(file_types=("image/*",))
    for say, talk, answers, file in (
        (page, user, [replied(("k", "Friday"))], {"type": "file", "mediaType": "text/csv", "url": "data:,1"}),
        (
            run,
            run_message,
            [called("k"), result("k", "Friday")],
            {"type": "document", "source": {"type": "data", "value": "MQ==", "mimeType": "text/csv"}},
        ),
    ):
        held = "parts" if say is page else "content"
        bad = [talk("u3", "\0"), {"id": "u3", "role": "user", held: [file]}]
        engine = Engine("sqlite://", model=ScriptedModel([ASKING, "Booked."]), settings=settings)
        async with served(engine) as service, service.client() as ada:
            first = await say(ada, talk("u1", "A table!"))
            before = await engine.get_chat(first.headers["turnwise-chat"])
            refused = [
                await say(ada, *said_before, one, **thread)
                for one in bad
                for said_before in (answers, [talk("u2", "And a chair!")])
                for thread in ({}, {"id": "tab-2", "threadId": "tab-2"})
            ]
            assert [answer.status_code for answer in refused] == [400] * 8
            assert {answer.json()["detail"].partition(":")[0] for answer in refused} == {"message 'u3'"}
            assert all(answer.json()["detail"].endswith("; nothing was written") for answer in refused)
            assert await engine.get_chat(before.id) == before
            assert len((await engine.list_chats()).items) == 1


async def test_answer_with_messages_streams_both_turns() -> None:
    for say, asks, answers in (
        (
            run,
            run_message("u1", "A table!"),
            (called("k"), result("k", "Friday"), run_message("u2", "Bye!"), run_message("u3", "Still?")),
        ),
        (page, user("u1", "A table!"), (replied(("k", "Friday")), user("u2", "Bye!"), user("u3", "Still?"))),
    ):
        model = ScriptedModel([ASKING, "Booked. ", "Bye! ", "Gone."])
        async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
            await say(ada, asks)
            both = await say(ada, asks, *answers)
            texts = [text for role, text in await history(service, both) if role in ("user", "assistant")]
            again = await say(ada, asks, *answers)
        assert words(both) == "Booked. Bye! Gone.", say
        assert texts == ["A table!", "Which? ", "Booked. ", "Bye!", "Bye! ", "Still?", "Gone."]
        assert words(again) == "Gone.", "what is sent again begins nothing"
        chat_id, first = both.headers["turnwise-chat"], events_of(both)[0]
        assert first.get("messageId") == (None if say is run else f"{chat_id}-t2"), "the page has the first one"


async def queued(engine: Engine, chat: Chat) -> None:
    """Wait until a message is in the queue of a chat; fail if its turn has ended."""
    async for event in engine.events(chat.id, after=chat.last_seq):
        if event.kind in ("queue", "turn_finished"):
            return


async def test_last_message_is_regenerated() -> None:
    """An unknown message is sent, after any others. The model may repeat the question."""
    again = {"trigger": "regenerate-message"}
    model = ScriptedModel(["One.", "Well?", "Three.", "Four."])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        first = await page(ada, user("u1", "Well?"))
        anew = await page(ada, user("u1", "Well?"), **again)
        told_anew = await history(service, anew)
        once_more = await page(ada, user("u1", "Well?"), **again)
        sent = await page(ada, user("u1", "Well?"), user("u2", "And?"), **again)
        in_the_end = await history(service, sent)
    assert [words(answer) for answer in (first, anew, once_more, sent)] == ["One.", "Well?", "Three.", "Four."]
    assert told_anew == [("user", "Well?"), ("assistant", "Well?")]
    assert in_the_end == [("user", "Well?"), ("assistant", "Three."), ("user", "And?"), ("assistant", "Four.")]


async def test_large_file_is_uploaded_and_named_by_digest() -> None:
    """By the page's own id of the chat, before its first message; in both protocols."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return "A map."

    async with served(Engine("sqlite://", model=ScriptedModel(answer))) as service, service.client() as ada:
        chat = (await ada.post("/chats", json={}, headers={"Idempotency-Key": "tab-1"})).json()
        put = await ada.post(
            f"/files?chat={chat['id']}&name=map.png", content=b"\x89PNG" * 50_000, headers={"Content-Type": "image/png"}
        )
        file = put.json()
        stored = {"digest": file["blob"], "mediaType": file["media_type"], "name": file["name"], "size": file["size"]}
        odd: list[Any] = [None, "map", {}, {"digest": 7}, {"digest": "map.png"}, {"file": "their own"}]
        parts = [{"type": "data-file", "data": data} for data in (stored, *odd)]
        source = {"type": "file", "value": file["blob"], "mimeType": "image/png"}
        answers = [
            await page(ada, {"id": "u1", "role": "user", "parts": parts}),
            await run(ada, run_message("u2", [{"type": "image", "source": source}])),  # type: ignore[arg-type] # not text alone
        ]
        missing = {"type": "data-file", "data": {**stored, "digest": "0" * 64}}
        refused = await page(ada, {"id": "u3", "role": "user", "parts": [missing]})
        messages = await service.engine.messages(chat["id"])
    assert [answer.headers["turnwise-chat"] for answer in answers] == [chat["id"]] * 2
    asked = [message.parts for message in messages if message.role == "user"]
    assert [[(part.blob, part.size, part.name) for part in parts if isinstance(part, FilePart)] for parts in asked] == [
        [(file["blob"], 200_000, "map.png")],
        [(file["blob"], 200_000, None)],
    ]
    assert [len(request.messages[-1].parts) for request in seen] == [1, 1]
    assert (refused.status_code, refused.json()["type"]) == (404, "urn:turnwise:problem:file-not-found")


ANEW: Final = {"trigger": "regenerate-message"}
"""The body of a page's retry button, whether the message arrived before or not."""


async def test_retry_resumes_a_stopped_chat() -> None:
    """Their turns would not start by themselves, in the order of the messages."""
    failing = Reply(error=ModelError("bad_request"))
    for stopped in ("error", "interrupted"):
        model = GatedModel(
            lambda request: failing if len(request.messages) == 1 else f"To {request.messages[-1].text}. "
        )
        async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
            chat = await service.engine.create_chat(owner="ada")
            for name in ("1", "2", "3"):
                await service.engine.send_message(chat.id, name, client_id=f"u{name}")
            if stopped == "interrupted":
                await service.engine.interrupt(chat.id)
            model.gate.set()
            rested = await service.engine.wait(chat.id)
            again = await page(ada, user("u1", "1"), replied(), user("u2", "2"), user("u3", "3"), id=chat.id, **ANEW)
        assert (rested.state, rested.queued) == (stopped, 2)
        assert words(again) == "To 2. To 3. "


async def test_run_without_input_repeats_its_turn() -> None:
    """A client that was cut off gets the messages before the answer, and the answer."""
    model = ScriptedModel(["One.", ASKING, "Booked."])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        empty = await run(ada)
        await run(ada, run_message("u1", "1"))
        before = [run_message("u1", "1"), {"id": "a1", "role": "assistant", "content": "One."}, run_message("u2", "2")]
        await run(ada, *before)
        cut_off = await run(ada, *before, called("k"))
        await run(ada, *before, called("k"), result("k", "Friday"))
        again = await run(ada, *before, called("k"), result("k", "Friday"))
    assert kinds(empty) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert events_of(empty)[1]["messages"] == []
    assert kinds(cut_off) == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED",
    ]  # fmt: skip
    for answer, text in ((cut_off, "Which? "), (again, "Which? Booked.")):
        snapshot = [
            (message["id"], message["role"], message["content"]) for message in events_of(answer)[1]["messages"]
        ]
        assert snapshot == [("u1", "user", "1"), ("a1", "assistant", "One."), ("u2", "user", "2")]
        assert words(answer) == text
    assert "TOOL_CALL_RESULT" in kinds(again)


async def test_page_resumes_a_running_turn() -> None:
    model = GatedModel(lambda _: "At last.")
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        silent = (await ada.post("/chats", json={})).json()["id"]
        statuses = [
            (await ada.get(f"/ai-sdk/chat/{name}/stream", params={"finished": finished})).status_code
            for name in ("never", silent)
            for finished in (False, True)
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(page, ada, user("u", "Well?"))
            while model.busy < 1:  # noqa: ASYNC110 - no event
                await anyio.sleep(0.01)

            async def come_back() -> None:
                assert words(await ada.get("/ai-sdk/chat/tab-1/stream")) == "At last."

            for _ in range(2):
                tasks.start_soon(come_back)
            while "turnwise_open_streams 3" not in (await ada.get("/metrics")).text:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
            model.gate.set()
        rested = await ada.get("/ai-sdk/chat/tab-1/stream")
        finished = await ada.get("/ai-sdk/chat/tab-1/stream", params={"finished": True})
    assert statuses == [204] * 4
    assert (rested.status_code, rested.content) == (204, b"")
    assert words(finished) == "At last."


@pytest.mark.parametrize("name", few(["tab 1/%2F?b#é\n", "/", "a?b#c", "%2F", "é/😀"], 1))
async def test_thread_name_may_be_any_text(name: str) -> None:
    """The AI SDK's transport encodes it as one part of the path, which servers decode."""
    async with served(Engine("sqlite://", model="demo")) as service, service.client() as ada:
        first = await page(ada, user("u", "Hi!"), id=name)
        again = await ada.get(f"/ai-sdk/chat/{quote(name, safe='')}/stream", params={"finished": True})
    assert events_of(again) == events_of(first)


@pytest.mark.parametrize("look_back", [1, 10])
async def test_turn_start_is_found_without_its_question(look_back: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is sent once more at the end, so that readers may blank it; the turn starts at its position."""
    monkeypatch.setattr(threads, "_LOOK_BACK", look_back)

    @tool
    def count() -> int:
        """Count."""
        return 3

    model = ScriptedModel(["One.", *(Reply(calls=[Call("count", {}, id=f"c{place}")]) for place in range(3)), "Three."])
    async with served(Engine("sqlite://", model=model, tools=[count])) as service, service.client() as ada:
        await page(ada, user("u1", "1"))
        asked = await page(ada, user("u2", "2"))
        chat = asked.headers["turnwise-chat"]
        before = await ada.get("/ai-sdk/chat/tab-1/stream", params={"finished": True})
        question = (await service.engine.messages(chat))[2]
        await service.engine.erase_message(chat, question.id)
        after = await ada.get("/ai-sdk/chat/tab-1/stream", params={"finished": True})
        again = await run(ada, run_message("u2", "2"), {"id": "a", "role": "assistant", "content": ""})
    assert words(after) == words(again) == "Three."
    assert kinds(after).count("tool-output-available") == kinds(again).count("TOOL_CALL_RESULT") == 3
    assert events_of(after)[0] == events_of(before)[0] == events_of(asked)[0]


async def test_second_answer_learns_the_first() -> None:
    asking = Reply(calls=[Call("pick_date", {}, id="k"), Call("pick_date", {}, id="l")])
    model = ScriptedModel([asking, "Booked."])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        await page(ada, user("u", "A table!"))
        await page(ada, user("u", "A table!"), replied(("k", "Friday"), ("l", "Noon")))
        other = await page(ada, user("u", "A table!"), replied(("k", "Monday"), ("l", "Noon")))
        same = await page(ada, user("u", "A table!"), replied(("k", "Friday"), ("l", "Noon")))
    assert events_of(other)[1] == {"type": "tool-output-available", "toolCallId": "k", "output": "Friday"}
    assert kinds(other) == ["start", "tool-output-available", *kinds(same)[1:]]
    assert words(other) == words(same) == "Booked."
