"""Commands: the bounds of what they take, and what they make of a chat that others change at the same moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from support.chats import lines_of, untouched
from support.stores import Delegate, stored_at
from turnwise import (
    ChatArchived,
    ChatBusy,
    ChatNotFound,
    ClientTool,
    CompactionPolicy,
    ConflictingReplay,
    DeadlineExpired,
    Engine,
    IllegalTransition,
    InvalidArgument,
    InvalidContent,
    MessageNotFound,
    Settings,
    SettingsError,
    ToolResult,
    ToolResultMismatch,
    tool,
)
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.names import ChatState
from turnwise.states.triggers import LeaseExpired
from turnwise.testing import ManualClock

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


@pytest.mark.parametrize(("name", "fits"), [("a" * 1024, True), ("é" * 512, True), ("é" * 512 + "a", False)])
async def test_an_actor_has_a_name_of_1024_bytes_at_most(open_engine: Any, name: str, *, fits: bool) -> None:
    async with open_engine(ScriptedModel([]), settings=IDLE) as engine:
        chat = await engine.create_chat()
        if fits:
            await engine.rename(chat.id, "title", actor=name)
        else:
            with pytest.raises(SettingsError, match="1,024 bytes at most; it was 1,025"):
                await engine.rename(chat.id, "title", actor=name)
        assert [record.actor for record in await engine.audit(chat.id)][1:] == [name] * fits


@pytest.mark.parametrize("text", ["é" * 50, "é" * 50 + "a"])
async def test_a_message_is_as_large_as_the_settings_allow_and_no_larger(open_engine: Any, text: str) -> None:
    settings = Settings(run_worker=False, message_limit_bytes=100)
    async with open_engine(ScriptedModel([]), settings=settings) as engine:
        chat = await engine.create_chat()
        if len(text.encode()) <= 100:
            await engine.send_message(chat.id, text)
            assert (await engine.messages(chat.id))[0].text == text
        else:
            with pytest.raises(InvalidContent, match="this one has 101"):
                await engine.send_message(chat.id, text)


async def test_any_version_that_there_was_can_be_forked_and_the_fork_is_made_now(
    open_engine: Any, strict_model: Any
) -> None:
    clock = ManualClock()
    async with open_engine(strict_model(["one"]), clock=clock) as engine:
        chat = await engine.create_chat(title="a chat")
        versions = (await engine.ask(chat.id, "hi")).chat.version
        await clock.advance(60)
        for version, said in ((1, []), (versions, ["user: hi", "assistant: one"])):
            fork = await engine.fork(chat.id, at_version=version)
            assert (fork.parent, fork.title, fork.created_at) == (chat.id, "a chat", clock.now())
            assert lines_of(await engine.messages(fork.id)) == said
            assert f"{chat.id} at version {version}," in str((await engine.audit(fork.id))[0].reason)
        with pytest.raises(SettingsError, match=f"from 1 to {versions}; it was {versions + 1}"):
            await engine.fork(chat.id, at_version=versions + 1)


async def test_every_message_that_waits_behind_others_is_said_to_wait(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([]), settings=IDLE) as engine:
        chat = await engine.create_chat()
        sent = [await engine.send_message(chat.id, f"{number}") for number in range(3)]
        assert [receipt.queued for receipt in sent] == [False, True, True]
        assert len({receipt.message_id for receipt in sent}) == 3


@pytest.mark.parametrize("content", ["else", ""])
async def test_a_message_of_a_chat_that_is_not_there_is_not_what_is_missing(open_engine: Any, content: str) -> None:
    async with open_engine(ScriptedModel([]), settings=IDLE) as engine:
        with pytest.raises(ChatNotFound if content else InvalidContent):
            await engine.edit_message("nowhere", "m1", content)


# Answers of clients


@tool(policy="ask")
async def pay(amount: int) -> str:
    """Pay money."""
    return f"paid {amount}"


async def test_of_several_approvals_each_counts_with_its_own_edits(open_engine: Any) -> None:
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


async def test_what_is_no_approval_is_refused_as_such_whatever_its_edits(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([Reply(calls=[Call("pay", {"amount": 1}, id="p")])]), tools=[pay]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        unfit: JsonValue = {"amount": "much"}
        said: dict[str, JsonValue] = {"belong to an approval": False, "answer true, false": "yes"}
        for problem, approved in said.items():
            with pytest.raises(InvalidContent, match=problem):
                await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": approved, "arguments": unfit})])
        with pytest.raises(InvalidContent, match=r"edited arguments of call 'p'.*amount"):
            await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": True, "arguments": unfit})])


async def test_edits_may_be_as_large_as_a_message(open_engine: Any) -> None:
    @tool(name="pay", policy="ask")
    async def noted(note: str) -> str:
        """Pay."""
        return f"{len(note)}"

    model = ScriptedModel([Reply(calls=[Call("pay", {"note": ""}, id="p")]), "done"])
    settings = Settings(message_limit_bytes=100)
    async with open_engine(model, tools=[noted], settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        room = 100 - len('{"note":""}')
        with pytest.raises(InvalidContent, match="these have 101"):
            await engine.submit_tool_results(
                chat.id, [ToolResult("p", {"approved": True, "arguments": {"note": "x" * (room + 1)}})]
            )
        await engine.submit_tool_results(
            chat.id, [ToolResult("p", {"approved": True, "arguments": {"note": "x" * room}})]
        )
        assert (await engine.wait(chat.id)).state == "waiting"


async def test_a_result_that_looks_like_an_approval_is_a_result_where_none_was_asked_for(open_engine: Any) -> None:
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
async def test_what_does_not_repeat_a_submission_is_none_of_its_replays(
    open_engine: Any, given: list[str], *, over: bool
) -> None:
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


async def test_a_message_that_is_repeated_is_told_what_it_was_the_first_time(open_engine: Any) -> None:
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
async def test_a_client_id_that_says_nothing_is_refused(open_engine: Any, blank: str) -> None:
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


async def test_an_edit_that_is_repeated_cuts_nothing_more(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model(["one", "two"])) as engine:
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "hi")).messages[0]
        await engine.edit_message(chat.id, first.id, "else", client_id="k")
        await engine.wait(chat.id)
        async with untouched(engine, chat.id):
            again = await engine.edit_message(chat.id, first.id, "else", client_id="k")
            assert again == await engine.get_chat(chat.id)
            with pytest.raises(ConflictingReplay):
                await engine.edit_message(chat.id, first.id, "other", client_id="k")
            with pytest.raises(MessageNotFound):
                await engine.edit_message(chat.id, first.id, "else")
            for other in ("m404", (await engine.messages(chat.id))[-1].id):
                with pytest.raises(MessageNotFound, match="user message"):
                    await engine.edit_message(chat.id, other, "else", client_id="l")


async def test_a_submission_that_is_repeated_has_the_first_receipt(open_engine: Any) -> None:
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


async def test_results_that_come_too_late_close_their_calls_and_are_told_so_each_time(database: Path) -> None:
    """Nobody has swept them yet; of an archived chat nothing is closed."""
    store = stored_at(database)
    async with Engine(store, model=ScriptedModel([]), settings=IDLE) as engine:
        asked = (plans.send("go"), plans.claim(), plans.start(), plans.reply("?", client=["a", "b"]))
        for chat_id in ("chat", "archived"):
            await plans.created(store, chat_id, *asked)
        both = [ToolResult("a", "yes"), ToolResult("b", "yes")]
        await engine.archive("archived")
        async with untouched(engine, "archived"):
            with pytest.raises(ChatArchived):
                await engine.submit_tool_results("archived", both)
        for given in (both, both[:1], both):
            with pytest.raises(DeadlineExpired) as refused:
                await engine.submit_tool_results("chat", given)
            assert refused.value.call_ids == tuple(result.call_id for result in given)
        results = [message.result for message in await engine.messages("chat") if message.result]
        assert [(result.call_id, result.outcome) for result in results] == [("a", "timed_out"), ("b", "timed_out")]


async def test_results_of_calls_that_a_stop_has_closed_conflict_with_it(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="a")])])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        await engine.interrupt(chat.id, reason="enough")
        assert "enough" in [record.reason for record in await engine.audit(chat.id)]
        async with untouched(engine, chat.id):
            with pytest.raises(ConflictingReplay, match="interrupted"):
                await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("how", ["send", "promote", "interrupt"])
async def test_what_interrupts_a_chat_that_nobody_holds_settles_it_with_what_was_shown(
    database: Path, how: str, *, held: bool
) -> None:
    store = stored_at(database)
    expired = () if held else (plans.move(LeaseExpired(token=plans.HOLDER)),)
    async with Engine(store, model=ScriptedModel([]), settings=IDLE) as engine:
        await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start(), plans.send("later"))
        await store.journal("chat", 1, ChatState.streaming, [part("so far")])
        await store.change("chat", plans.plan(*expired))
        with pytest.raises(ChatBusy):
            await engine.send_message("chat", "now", when_busy="reject")
        if how == "send":
            stopped = (await engine.send_message("chat", "now", when_busy="interrupt")).chat
        elif how == "promote":
            stopped = await engine.promote_queued("chat", (await engine.queued("chat"))[0].id)
        else:
            stopped = await engine.interrupt("chat")
        assert stopped.settled is not held
        assert ("so far" in [message.text for message in await engine.messages("chat")]) is not held
        assert stopped.state == ("interrupted" if held or how == "interrupt" else "pending")


# Others, at the same moment


@pytest.mark.parametrize("question", ["facts", "rows"])
async def test_an_erasure_that_others_overtake_is_worked_out_again(
    open_engine: Any, database: Path, question: str
) -> None:
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


async def test_an_edit_that_others_overtake_cuts_what_they_said_too(open_engine: Any, database: Path) -> None:
    store = Between(stored_at(database), "cut_at")
    async with (
        open_engine(ScriptedModel(["one"])) as other,
        open_engine(ScriptedModel([]), store=store, settings=IDLE) as engine,
    ):
        chat = await other.create_chat()
        first = (await other.ask(chat.id, "hi")).messages[0]
        await other.ask(chat.id, "hello")
        store.then = lambda: other.erase_message(chat.id, first.id)
        edited = await engine.edit_message(chat.id, first.id, "else")
        assert store.then is None
        assert edited.id == chat.id
        assert (await engine.messages(chat.id))[0].text == "else"
        records = await engine.audit(chat.id)
        assert [record.trigger for record in records if record.trigger in {"edit_message", "message_erased"}] == [
            "message_erased",
            "edit_message",
        ]


@pytest.mark.parametrize("moved", ["the holder is gone", "another was there"])
async def test_a_stop_keeps_what_was_shown_up_to_that_moment(database: Path, moved: str) -> None:
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


async def test_a_summary_that_is_erased_with_what_it_sums_up_quotes_nothing_more(open_engine: Any) -> None:
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


async def test_forks_are_told_once_each_though_a_damaged_store_has_them_in_a_ring(
    open_engine: Any, database: Path
) -> None:
    class Ring(Delegate):
        async def forks(self, chat_id: str) -> list[str]:
            return {chat.id: ["a", "b"], "a": ["b", "c"], "b": ["a"], "c": []}[chat_id]

    async with open_engine(ScriptedModel([]), store=Ring(stored_at(database)), settings=IDLE) as engine:
        chat = await engine.create_chat(title="secret")
        assert sorted((await engine.erase(chat.id, what=["title"])).forks) == ["a", "b", "c"]
