"""The stream of all chats, the inbox and consumers, through HTTP and its client."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from support.served import STRICT, Served, served
from turnwise import Agent, ChatChange, ClientTool, Engine, StoreError, ToolResult
from turnwise.client import Client
from turnwise.http_problems import NotAllowed
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


def engine() -> Engine:
    return Engine("sqlite://", model=ScriptedModel([Reply(calls=[Call("ask_user", {}, id="k")]), Reply("fine")]))


def client_of(service: Served, who: str) -> Client:
    return Client(service.url, token=f"{who}-token")


async def test_owner_watches_own_chats_and_answers_from_the_inbox() -> None:
    """Other owners' chats and deletions are hidden; the stream continues after a number."""
    async with served(engine(), settings=STRICT) as service:
        async with (
            client_of(service, "ada") as ada,
            client_of(service, "operator") as operator,
        ):
            other = await operator.create_chat(owner="bob", title="bob's")
            chat = await operator.create_chat(owner="ada", client_tools=[ASK])
            seen: list[ChatChange] = []
            with anyio.fail_after(120):
                async with aclosing(ada.watch()) as changes:
                    async for change in changes:
                        seen.append(change)
                        assert change.chat is not None
                        if len(seen) == 1:
                            await operator.delete_chat(other.id)
                            await ada.send_message(chat.id, "hi")
                        if change.chat.state == "requires_action":
                            break
            assert {one.chat_id for one in seen} == {chat.id}
            (item,) = await ada.inbox()
            assert (item.chat_id, [call.call_id for call in item.calls], item.within) == (chat.id, ["k"], None)
            await ada.submit_tool_results(item.chat_id, [ToolResult("k", "yes")])
            await ada.wait(chat.id)
            assert await ada.inbox() == []
            rest = [one async for one in ada.watch(after=seen[-1].number, follow=False)]
            assert [(one.chat_id, one.chat and one.chat.state) for one in rest] == [(chat.id, "waiting")]
            gone = [one.chat_id async for one in operator.watch(after=1, follow=False) if one.chat is None]
            assert gone == [other.id]
            for about_all in (ada.consumers, ada.workers):
                with pytest.raises(NotAllowed):
                    await about_all()
            assert all(one.chats == [] for one in await operator.workers())
            assert await operator.consumers() == await operator.undelivered("none") == []
            assert (await operator.deliver_again("none"), await operator.drop_consumer("none")) == (0, False)
        async with service.client() as http:
            answer = await http.get(
                "/events", params={"follow": False}, headers={"Last-Event-ID": str(seen[-1].number)}
            )
            assert answer.text.count("event: chat") == 1
            assert f"id: {rest[-1].number}\n" in answer.text
            assert answer.text.rstrip().endswith(": end")


async def test_stream_ends_with_its_reader_and_the_next_has_another() -> None:
    async def fail(*_: object, **_more: object) -> None:
        raise StoreError("it is broken")

    async with Engine("sqlite://", model="demo") as engine:
        await engine.create_chat()
        with anyio.fail_after(20):
            async with aclosing(engine.watch()) as stream:
                last = (await anext(stream)).number
                setattr(engine._store, "changes", fail)  # noqa: B010 - a method
                await engine.create_chat()
                with pytest.raises(StoreError, match="it is broken"):
                    await anext(stream)
            delattr(engine._store, "changes")
            async with aclosing(engine.watch(after=last)) as stream:
                second = await anext(stream)
                third = await engine.create_chat()
                assert [second.chat_id == third.id, (await anext(stream)).chat_id == third.id] == [False, True]


async def test_watched_agent_loses_a_chat_that_another_answers() -> None:
    agents = [Agent("one", "demo"), Agent("two", "demo")]
    async with Engine("sqlite://", agents=agents) as own:
        chat, _ = await own.create_chat(agent="one"), await own.create_chat(agent="two")
        with anyio.fail_after(120):
            async with aclosing(own.watch(agent="one")) as changes:
                first = await anext(changes)
                assert (first.chat_id, first.chat is None) == (chat.id, False)
                await own.configure(chat.id, agent="two")
                second = await anext(changes)
                assert (second.chat_id, second.chat) == (chat.id, None)
