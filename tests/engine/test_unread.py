"""The unread mark of a chat: every end of a turn sets it, `mark_read` removes it, both are stored."""

from __future__ import annotations

import pytest

from support.lives import SLOW_STORES, lives_in
from support.served import served
from turnwise import Agent, Chat, ClientTool, Engine, ToolResult, delegate
from turnwise.client import Client
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

READ, UNREAD = False, True
STORIES = {
    "nothing has ended": ("mark", READ),
    "a turn has ended": ("say", UNREAD),
    "it was read": ("say mark", READ),
    "and again": ("say mark mark mark:9", READ),
    "a later one has ended": ("say mark say", UNREAD),
    "two have ended": ("say say mark", READ),
    "the last one was shown": ("say say mark:2", READ),
    "only the first was shown": ("say say mark:1", UNREAD),
    "the second is under way": ("say ask mark:1", READ),
    "it ended after the mark": ("say ask mark answer", UNREAD),
    "a stopped turn has ended": ("ask stop", UNREAD),
    "labels are no reading": ("say rename", UNREAD),
}


class Story:
    def __init__(self, engine: Engine, chat: Chat) -> None:
        self.engine, self.id = engine, chat.id
        self.marks: list[str] = []
        """The result of each mark: `written` or `nothing`."""

    async def step(self, name: str) -> None:
        engine = self.engine
        match name.split(":"):
            case ["say"]:
                await engine.ask(self.id, "Hello!")
            case ["ask"]:
                await engine.ask(self.id, "Ask me!")
            case ["answer"]:
                (call,) = (await engine.get_chat(self.id)).open_calls
                await engine.submit_tool_results(self.id, [ToolResult(call.call_id, "yes")])
                await engine.wait(self.id)
            case ["stop"]:
                await engine.interrupt(self.id)
                await engine.wait(self.id)
            case ["rename"]:
                await engine.rename(self.id, "Greetings")
            case ["mark", *turn]:
                before = await engine.get_chat(self.id)
                after = await engine.acting("ada").mark_read(self.id, turn=int(turn[0]) if turn else None)
                self.marks.append("written" if after.version > before.version else "nothing")


ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


def polite(request: ModelRequest) -> Reply:
    last = request.messages[-1]
    return Reply(calls=[Call("ask_user", {})]) if last.text == "Ask me!" else Reply("Hello.")


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_end_of_a_turn_is_unread_until_marked(place: str, request: pytest.FixtureRequest) -> None:
    """A read chat is not written again; each written mark is in the log, with its actor."""
    url = lives_in(place, request).url
    found, written, logged = {}, 0, []
    async with Engine(url, model=ScriptedModel(polite)) as engine:
        for name, (steps, _) in STORIES.items():
            story = Story(engine, await engine.create_chat(client_tools=[ASK], title=name))
            for step in steps.split():
                await story.step(step)
            found[name] = (await engine.get_chat(story.id)).unread
            written += story.marks.count("written")
            logged += [one.actor for one in await engine.audit(story.id) if one.trigger == "marked_read"]
            assert (await engine.verify(story.id)).ok
    assert found == {name: unread for name, (_, unread) in STORIES.items()}
    assert logged == ["ada"] * written
    async with Engine(url, model="demo") as engine:
        listed = {chat.title: chat.unread for chat in (await engine.list_chats(limit=50)).items}
        watched = {one.chat.title: one.chat.unread async for one in engine.watch(follow=False) if one.chat}
    expected = {"Greetings" if "rename" in steps else name: unread for name, (steps, unread) in STORIES.items()}
    assert listed == watched == expected


async def test_owner_marks_as_read_over_http() -> None:
    """Open pages get an event; an archived chat does not change; a subagent's messages are its parent's to read."""
    clerk = Agent("clerk", model=ScriptedModel(["Done."]))
    asks = ScriptedModel([Reply(calls=[Call("ask_clerk", {"task": "it"})]), "All done."])
    lead = Agent("lead", model=asks, tools=[delegate(clerk)])
    async with (
        served(Engine("sqlite://", agents=[lead, clerk])) as service,
        Client(service.url, token="ada-token") as ada,  # noqa: S106
    ):
        chat = await ada.create_chat(agent="lead", message="Do it!")
        ended = await ada.wait(chat.id)
        (subagent,) = await ada.subagents(chat.id)
        assert (ended.unread, subagent.unread) == (True, False)
        last = [one.number async for one in ada.watch(follow=False)][-1]
        assert (await ada.mark_read(chat.id, turn=1)).unread is False
        (change,) = [one async for one in ada.watch(after=last, follow=False)]
        assert change.chat is not None
        assert (change.chat_id, change.chat.unread) == (chat.id, False)
        archived = await service.engine.archive(chat.id)
        assert await ada.mark_read(chat.id) == archived
        async with service.client("auditor") as auditor:
            assert (await auditor.post(f"/chats/{chat.id}/read", json={})).status_code == 403
