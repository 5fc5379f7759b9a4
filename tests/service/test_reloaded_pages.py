"""Pages that are opened anew: real clients of AG-UI and the AI SDK, in Node, have what was said and go on with it."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

from support.gated_model import PacedModel
from support.processes.pages import Pages
from support.served import Served, served
from turnwise import Chat, Engine, Settings, ToolOutput, tool
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ModelError
from turnwise.states.messages import FilePart

DIALECTS: Final = ("agui", "ai-6", "ai-7")
SDKS: Final = ("ai-6", "ai-7")
CITED: Final = ModelPart(type="source", url="https://example.org", title="A page")


@tool(policy="ask")
async def pay(cents: int) -> str:
    """Pay money."""
    return f"paid {cents}"


@tool
async def look() -> ToolOutput:
    """Look, and draw what is there."""
    return ToolOutput("a cat", attachments=(FilePart.from_bytes(b"\x89PNG", "image/png", name="seen.png"),))


@tool
async def fail() -> str:
    """Fail."""
    raise RuntimeError("no way")


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return what a page shows of its messages, without the names that it gives to them and their parts."""
    if any("parts" in message for message in messages):
        return [(one["role"], [_told(part) for part in one["parts"]]) for one in messages]
    return [(one["role"], (one.get("content") or "", one.get("toolCalls"))) for one in messages]


def _told(part: dict[str, Any]) -> dict[str, Any]:
    hidden = {"reasoning": "id", "source-url": "sourceId"}.get(part["type"])
    return {name: value for name, value in part.items() if name != hidden}


async def only_chat(service: Served) -> Chat:
    (chat,) = (await service.engine.list_chats()).items
    return chat


async def said_in(service: Served, chat_id: str) -> list[str]:
    return [message.text for message in await service.engine.messages(chat_id) if message.role != "tool"]


@pytest.mark.deep
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_reloaded_page_shows_the_same(pages: Pages, dialect: str) -> None:
    """Words, thoughts, sources, files, calls and results, of all turns, whether the last one is told again or not."""
    image = {"data": "iVBORw0KGgo=", "mediaType": "image/png"}
    model = ScriptedModel(
        [
            Reply("Let me see. ", reasoning="Hm.", calls=[Call("look", {}, id="l"), Call("fail", {}, id="f")]),
            Reply("A cat.", reasoning="So it is."),
            Reply(parts=[ModelPart(type="text_delta", text="See "), CITED, ModelPart(type="finish")]),
            Reply(calls=[Call("look", {}, id="m")]),
            Reply("A cat, still.", reasoning="So it is."),
        ]
    )
    async with served(Engine("sqlite://", model=model, tools=[pay, look, fail])) as service:
        page = pages.open(dialect, service.url)
        await page("say", "What is it?", image)
        for said in ("Thanks.", "And now?"):
            before = await page("say", said)
            anew = await page("reload")
            assert shown(anew["messages"]) == shown(before["messages"])
            if dialect != "agui":
                assert shown((await page("resume"))["messages"]) == shown(before["messages"])


@pytest.mark.deep
@pytest.mark.parametrize("dialect", SDKS)
async def test_reloaded_page_regenerates_repeatedly(pages: Pages, dialect: str) -> None:
    model = ScriptedModel(["One.", "Two.", "Three.", "Four.", "Five.", "Six.", "Seven."])
    async with served(Engine("sqlite://", model=model)) as service:
        page = pages.open(dialect, service.url)
        await page("say", "1")
        await page("say", "2")
        chat = await only_chat(service)
        for answer in ("Three.", "Four."):
            await page("reload")
            await page("regenerate")
            assert await said_in(service, chat.id) == ["1", "One.", "2", answer]
        await page("regenerate")
        assert await said_in(service, chat.id) == ["1", "One.", "2", "Five."]
        await page("regenerate", page.has["messages"][0]["id"])
        assert await said_in(service, chat.id) == ["1", "Six."]
        await page("say", "2")
    assert [len(message["parts"]) for message in page.has["messages"]] == [1, 2, 1, 2]


@pytest.mark.deep
@pytest.mark.parametrize("dialect", SDKS)
async def test_reloaded_page_edits_a_question(pages: Pages, dialect: str) -> None:
    """By its route, under the id that it has there; from then on the page says the new text."""
    model = ScriptedModel(["One.", "Two.", "Three.", "Four.", "Five."])
    async with served(Engine("sqlite://", model=model)) as service:
        page = pages.open(dialect, service.url)
        await page("say", "1")
        await page("say", "2")
        await page("reload")
        await page("edit", page.has["messages"][2]["id"], "zwei")
        chat = await only_chat(service)
        assert await said_in(service, chat.id) == ["1", "One.", "zwei", "Three."]
        assert page.text == "Three."
        await page("regenerate")
        assert await said_in(service, chat.id) == ["1", "One.", "zwei", "Four."]
        await page("say", "3")
        assert await said_in(service, chat.id) == ["1", "One.", "zwei", "Four.", "3", "Five."]


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


@pytest.mark.deep
@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_reloaded_page_approves_a_call(pages: Pages, dialect: str, resumes: bool) -> None:  # noqa: FBT001
    model = ScriptedModel([Reply("Shall I? ", calls=[Call("pay", {"cents": 3}, id="p")]), "Paid."])
    async with served(Engine("sqlite://", model=model, tools=[pay])) as service:
        page = pages.open(dialect, service.url)
        before = await page("say", "Pay!")
        anew = await page("reload")
        assert anew.get("pending") == before.get("pending")
        if resumes:
            anew = await page("resume")
        assert shown(anew["messages"]) == shown(before["messages"])
        await page("approve", True)  # noqa: FBT003
        done = await page("settle")
        (result,) = [one.result for one in await service.engine.messages((await only_chat(service)).id) if one.result]
        assert shown((await page("reload"))["messages"]) == shown(without_approvals(done["messages"]))
    assert page.text == "Shall I? Paid." if dialect != "agui" else "Paid."
    assert result.output == "paid 3"


def without_approvals(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without what a page notes of a call that it has allowed: the call has run since."""
    for message in messages:
        for part in message.get("parts", ()):
            part.pop("approval", None)
    return messages


@pytest.mark.deep
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_page_opened_in_mid_answer_follows_it(pages: Pages, dialect: str) -> None:
    """The answer stands once, in its place, whatever is there already of its turn."""
    model = PacedModel(
        ["Hello.", Reply("See. ", calls=[Call("look", {}, id="l")]), Reply("One two", chunks=["One", " two"])]
    )
    async with served(Engine("sqlite://", model=model, tools=[look], settings=Settings(coalesce=0))) as service:
        first, other = (pages.open(dialect, service.url, thread="tab") for _ in range(2))
        model.allow(6)  # up to the first word of the third reply
        await first("say", "Hi!")
        await first("say", "What is it?", until="One")
        if dialect == "agui":
            await other("reload", until="One")
        else:
            await other("reload")
            await other("resume", until="See." if dialect == "ai-6" else "One")  # to 6 no word is told too early
        model.allow(9)
        done, seen = await first("settle"), await other("settle")
    assert shown(seen["messages"]) == shown(done["messages"])
    assert other.text.endswith("One two")


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
