"""Commands: the bounds of what they take, and what they make of a chat that others change at the same moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from support.chats import untouched
from support.stores import Delegate, stored_at
from turnwise import (
    ClientTool,
    CompactionPolicy,
    ConflictingReplay,
    Engine,
    IllegalTransition,
    InvalidArgument,
    Settings,
    ToolResult,
    ToolResultMismatch,
    tool,
)
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.names import ChatState
from turnwise.states.triggers import LeaseExpired

IDLE = Settings(run_worker=False)
ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


class Between(Delegate):
    """A store in which something else happens, once, right after a question was answered."""

    def __init__(self, store: Any, question: str) -> None:
        super().__init__(store)
        self.question = question
        self.then: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != self.question:
            return real

        async def answered(*given: Any, **more: Any) -> Any:
            answer = await real(*given, **more)
            then, self.then = self.then, None
            if then is not None:
                await then()
            return answer

        return answered


# Bounds


# Answers of clients


@tool(policy="ask")
async def pay(amount: int) -> str:
    """Pay money."""
    return f"paid {amount}"


async def test_each_approval_uses_its_own_edits(open_engine: Any) -> None:
    calls = [Call("pay", {"amount": number}, id=f"p{number}") for number in range(4)]
    async with open_engine(ScriptedModel([Reply(calls=calls), "done"]), tools=[pay]) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        edited: JsonValue = {"approved": True, "arguments": {"amount": "30"}}
        answers: list[JsonValue] = [True, edited, {"approved": True}, {"approved": True, "arguments": {"amount": 7}}]
        await engine.submit_tool_results(chat.id, [ToolResult(f"p{n}", said) for n, said in enumerate(answers)])
        await engine.wait(chat.id)
        results = [message.result for message in await engine.messages(chat.id) if message.result]
        assert [(result.call_id, result.output) for result in results] == [
            ("p0", "paid 0"),
            ("p1", "paid 30"),
            ("p2", "paid 2"),
            ("p3", "paid 7"),
        ]


async def test_approval_shaped_result_is_a_plain_result(open_engine: Any) -> None:
    """Also where the engine has a tool of that name by now, whose arguments would have to fit."""

    @tool(name="ask_user")
    async def namesake(number: int) -> str:
        """Ask."""
        return "never run"

    said: JsonValue = {"approved": True, "arguments": {"else": 1}}
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="a")])])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
    async with open_engine(ScriptedModel(["done"]), tools=[namesake]) as engine:
        await engine.submit_tool_results(chat.id, [ToolResult("a", said)])
        await engine.wait(chat.id)
        assert [message.result.output for message in await engine.messages(chat.id) if message.result] == [said]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("given", [[], ["a", "a"], ["a", "b", "b"], ["a", "c"], ["c"]])
async def test_different_submission_is_no_replay(open_engine: Any, given: list[str], *, over: bool) -> None:
    calls = [Call("ask_user", {}, id="a"), Call("ask_user", {}, id="b")]
    async with open_engine(ScriptedModel([Reply(calls=calls), "done"])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        if over:
            receipt = await engine.submit_tool_results(chat.id, [ToolResult("b", "yes"), ToolResult("a", "yes")])
            await engine.wait(chat.id)
        async with untouched(engine, chat.id):
            with pytest.raises(IllegalTransition if over else ToolResultMismatch):
                await engine.submit_tool_results(chat.id, [ToolResult(name, "yes") for name in given])
            for part_of_it in (["a"], ["b"], ["a", "b"]) if over else ():
                again = await engine.submit_tool_results(chat.id, [ToolResult(name, "yes") for name in part_of_it])
                assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)


# The same again


async def test_repeated_message_returns_first_receipt(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([]), settings=IDLE) as engine:
        chat = await engine.create_chat()
        first, second = [await engine.send_message(chat.id, text, client_id=text) for text in ("one", "two")]
        assert (first.replayed, first.queued, first.seq) == (False, False, chat.last_seq)
        assert (second.replayed, second.queued, second.seq) == (False, True, first.chat.last_seq)
        now = await engine.rename(chat.id, "title")
        async with untouched(engine, chat.id):
            for text, then in (("one", first), ("two", second)):
                again = await engine.send_message(chat.id, text, client_id=text)
                assert again == dataclasses.replace(then, chat=now, replayed=True)
            with pytest.raises(ConflictingReplay, match="'one'"):
                await engine.send_message(chat.id, "two", client_id="one")
        assert not (await engine.send_message(chat.id, "one")).replayed
        assert not (await engine.send_message(chat.id, "one", client_id="three")).replayed


@pytest.mark.parametrize("blank", ["", " \n"])
async def test_blank_client_id_is_refused(open_engine: Any, blank: str) -> None:
    """Every message without an id of its own would repeat the first."""
    async with open_engine(ScriptedModel([]), settings=IDLE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "one")
        commands = [
            engine.create_chat(client_id=blank),
            engine.send_message(chat.id, "two", client_id=blank),
            engine.ask(chat.id, "two", client_id=blank),
            engine.edit_message(chat.id, "m1", "two", client_id=blank),
        ]
        async with untouched(engine, chat.id):
            for command in commands:
                with pytest.raises(InvalidArgument, match="client_id: must say something"):
                    await command
        assert await engine.chat_ids() == [chat.id]


async def test_repeated_submission_returns_first_receipt(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="a")]), "done"])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        first = await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
        assert not first.replayed
        await engine.wait(chat.id)
        async with untouched(engine, chat.id):
            again = await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
            assert (again.receipt_id, again.replayed) == (first.receipt_id, True)
            for other in (ToolResult("a", "no"), ToolResult("a", "yes", is_error=True)):
                with pytest.raises(ConflictingReplay):
                    await engine.submit_tool_results(chat.id, [other])


async def test_results_conflict_with_an_interrupt(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="a")])])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        await engine.interrupt(chat.id, reason="enough")
        assert "enough" in [record.reason for record in await engine.audit(chat.id)]
        async with untouched(engine, chat.id):
            with pytest.raises(ConflictingReplay, match="interrupted"):
                await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])


# Others, at the same moment


@pytest.mark.parametrize("question", ["facts", "rows"])
async def test_overtaken_erasure_starts_over(open_engine: Any, database: Path, question: str) -> None:
    store = Between(stored_at(database), question)
    async with (
        open_engine(ScriptedModel([]), settings=IDLE) as other,
        open_engine(ScriptedModel([]), store=store, settings=IDLE) as engine,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "one")
        store.then = lambda: other.send_message(chat.id, "two")
        report = await engine.erase(chat.id, what=["messages"])
        assert store.then is None
        assert [message.erased for message in await engine.messages(chat.id)] == [True]
        assert [message.text for message in await engine.queued(chat.id)] == []
        assert (len(report.messages), len(report.queued)) == (1, 1)
        assert [record.trigger for record in await engine.audit(chat.id)].count("message_erased") == 1
        assert report.chat == await engine.get_chat(chat.id)


@pytest.mark.parametrize("moved", ["the holder is gone", "another was there"])
async def test_interrupt_keeps_parts_shown_meanwhile(database: Path, moved: str) -> None:
    """What was shown is read before the transaction; meanwhile the lease ends, or another worker came and went."""
    store = Between(stored_at(database), "facts" if moved == "the holder is gone" else "shown")
    expire = plans.plan(plans.move(LeaseExpired(token=plans.HOLDER)))

    async def show(text: str, attempt: int) -> None:
        facts = await store.facts("chat")
        await store.journal("chat", facts.fence, ChatState.streaming, [part(text, attempt=attempt)])

    async def go_on() -> None:
        if moved == "another was there":
            await store.change("chat", plans.plan(plans.claim("other"), plans.start()))
            await show("and then", (await store.facts("chat")).step.attempt)
        await store.change("chat", expire)

    async with Engine(store, model=ScriptedModel([]), settings=IDLE) as engine:
        await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
        await show("so far", 1)
        if moved == "another was there":
            await store.change("chat", expire)
        store.then = go_on
        stopped = await engine.interrupt("chat")
        assert store.then is None
        assert (stopped.state, stopped.settled) == ("interrupted", True)
        kept = (await engine.messages("chat"))[-1]
        assert (kept.text, kept.partial) == ("so far" if moved == "the holder is gone" else "and then", True)


# What an erasure tells


async def test_erased_summary_is_no_longer_a_quote(open_engine: Any) -> None:
    replies = [Reply("long", usage=(90, 1)), Reply("after", usage=(10, 1))]
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    async with open_engine(ScriptedModel(replies), settings=settings) as engine:
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "hi")).messages[0]
        (summary,) = (made.id for found in await engine.compactions(chat.id) for made in found.messages)
        for chosen in ({"messages": [first.id, summary]}, {"what": ["messages"]}):
            fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
            report = await engine.erase(fork.id, **chosen)
            assert {first.id, summary} <= set(report.messages)
            assert report.may_quote == ()
        assert (await engine.erase(chat.id, messages=[first.id])).may_quote == (summary,)
