"""Repeated requests get the first answer, in any later state of the chat."""

import dataclasses
from typing import Any

import pytest
from tests.engine.chats import lines_of, untouched

from support.engines import OpenChat
from support.latches import Gate
from turnwise import ChatArchived, ClientTool, Engine, InvalidArgument, MessageNotFound, Settings, ToolResult
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ConflictingReplay, DeadlineExpired, IllegalTransition, ToolResultMismatch
from turnwise.testing.clock import ManualClock

ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})
PICK = ClientTool("pick_file", "Pick a file.", {"type": "object"}, deadline=60)
YES = [ToolResult("call_1", "yes")]
ALONE = Settings(run_worker=False)


async def chat_with_open_call(engine: Engine, tool: ClientTool = ASK) -> str:
    chat = await engine.create_chat(client_tools=[tool])
    assert (await engine.ask(chat.id, "go")).chat.state == "requires_action"
    return chat.id


async def test_archived_chat_answers_repeated_requests(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([Reply(calls=[Call("ask_user", {})]), "done", "again", "once more"])) as engine:
        chat_id = await chat_with_open_call(engine)
        submitted = await engine.submit_tool_results(chat_id, YES)
        await engine.wait(chat_id)
        sent = await engine.send_message(chat_id, "more", client_id="a")
        await engine.wait(chat_id)
        await engine.edit_message(chat_id, sent.message_id, "less", client_id="b")
        await engine.wait(chat_id)
        archived = await engine.archive(chat_id)
        async with untouched(engine, chat_id):
            again = await engine.submit_tool_results(chat_id, YES)
            assert (again.receipt_id, again.replayed) == (submitted.receipt_id, True)
            message = await engine.send_message(chat_id, "more", client_id="a")
            assert (message.message_id, message.replayed, message.seq) == (sent.message_id, True, sent.seq)
            assert await engine.edit_message(chat_id, sent.message_id, "less", client_id="b") == archived
            with pytest.raises(ConflictingReplay):
                await engine.submit_tool_results(chat_id, [ToolResult("call_1", "no")])
            with pytest.raises(ConflictingReplay):
                await engine.submit_tool_results(chat_id, [ToolResult("call_1", "yes", is_error=True)])
            with pytest.raises(ChatArchived):
                await engine.submit_tool_results(chat_id, [ToolResult("call_2", "yes")])
            with pytest.raises(MessageNotFound):
                await engine.edit_message(chat_id, sent.message_id, "less", client_id="c")


async def test_mixed_submissions_are_no_replay(open_engine: Any, strict_model: Any) -> None:
    """Each result has its own receipt; no request submitted both together."""
    both = [Call("ask_user", {}, "a"), Call("ask_user", {}, "b")]
    model = strict_model([Reply(calls=both), Reply(calls=[Call("ask_user", {}, "c")]), "done"])
    a, b, c = (ToolResult(call_id, "yes") for call_id in "abc")
    async with open_engine(model) as engine:
        chat_id = await chat_with_open_call(engine)
        first = await engine.submit_tool_results(chat_id, [a, b])
        await engine.wait(chat_id)
        second = await engine.submit_tool_results(chat_id, [c])
        await engine.wait(chat_id)
        async with untouched(engine, chat_id):
            for mixture in ([a, c], [a, b, c]):
                with pytest.raises(IllegalTransition):
                    await engine.submit_tool_results(chat_id, mixture)
            again = [await engine.submit_tool_results(chat_id, results) for results in ([a], [b, a], [c])]
            assert [one.receipt_id for one in again] == [first.receipt_id, first.receipt_id, second.receipt_id]


async def test_repeated_edit_changes_nothing(open_chat: OpenChat) -> None:
    """The message that it names is gone since the first request."""
    async with open_chat(["one", "two"]) as (engine, chat, _):
        first = (await engine.ask(chat.id, "hello")).messages[0]
        await engine.edit_message(chat.id, first.id, "good day", client_id="e")
        await engine.wait(chat.id)
        async with untouched(engine, chat.id):
            again = await engine.edit_message(chat.id, first.id, "good day", client_id="e")
            assert again == await engine.get_chat(chat.id)
            for message_id, content in ((first.id, "good night"), ("m404", "good day")):
                with pytest.raises(ConflictingReplay):
                    await engine.edit_message(chat.id, message_id, content, client_id="e")
            with pytest.raises(ConflictingReplay):
                await engine.send_message(chat.id, "good day", client_id="e")
            with pytest.raises(MessageNotFound):
                await engine.edit_message(chat.id, first.id, "good day")
            with pytest.raises(MessageNotFound):
                await engine.edit_message(chat.id, first.id, "good day", client_id="f")
        assert lines_of(await engine.messages(chat.id)) == ["user: good day", "assistant: two"]


async def test_late_result_is_refused_without_worker(open_engine: Any, strict_model: Any) -> None:
    clock = ManualClock()
    model = strict_model([Reply(calls=[Call("pick_file", {})]), "I go on"])
    async with open_engine(model, clock=clock) as engine:
        chat_id = await chat_with_open_call(engine, PICK)
    async with open_engine(model, clock=clock, settings=ALONE) as alone:
        await clock.advance(3600)
        for _ in range(2):
            with pytest.raises(DeadlineExpired) as refused:
                await alone.submit_tool_results(chat_id, YES)
            assert refused.value.call_ids == ("call_1",)
        assert (await alone.get_chat(chat_id)).state == "pending"
        result = (await alone.messages(chat_id))[-1]
        assert (result.result.outcome, result.synthetic) == ("timed_out", True)
        assert [record.trigger for record in await alone.audit(chat_id)].count("deadline_passed") == 1
    async with open_engine(model, clock=clock) as engine:
        await engine.wait(chat_id)
        assert (await engine.messages(chat_id))[-1].text == "I go on"


async def test_late_result_closes_its_own_call_only(open_engine: Any, open_chat: OpenChat) -> None:
    clock = ManualClock()
    script = [Reply(calls=[Call("pick_file", {}), Call("ask_user", {})]), "I go on"]
    async with open_chat(script, client_tools=[ASK, PICK], clock=clock) as (engine, chat, model):
        await engine.ask(chat.id, "go")
    async with open_engine(model, clock=clock, settings=ALONE) as alone:
        await clock.advance(61)
        with pytest.raises(DeadlineExpired) as refused:
            await alone.submit_tool_results(chat.id, [*YES, ToolResult("call_2", "yes")])
        assert refused.value.call_ids == ("call_1",)
        with pytest.raises(DeadlineExpired) as refused:  # both that were asked for, though one is closed by now
            await alone.submit_tool_results(chat.id, [*YES, ToolResult("call_2", "yes")])
        assert refused.value.call_ids == ("call_1",)
        still = await alone.get_chat(chat.id)
        assert (still.state, [call.call_id for call in still.open_calls]) == ("requires_action", ["call_2"])
        await alone.submit_tool_results(chat.id, [ToolResult("call_2", "yes")])
        assert (await alone.get_chat(chat.id)).state == "pending"


async def test_tool_timeout_is_no_missed_deadline(open_chat: OpenChat) -> None:
    """The client approved the call in time; the tool itself ran for too long."""
    clock = ManualClock()
    work = Gate(policy="ask", timeout=5)
    approved = [ToolResult("call_1", output=True)]
    script = [Reply(calls=[Call("work", {})]), "done"]
    async with open_chat(script, tools=[work.tool], clock=clock) as (engine, chat, _):
        await engine.ask(chat.id, "go")
        first = await engine.submit_tool_results(chat.id, approved)
        await work.entered.wait()
        await clock.advance(5)
        await engine.wait(chat.id)
        assert (await engine.messages(chat.id))[2].result.outcome == "timed_out"
        async with untouched(engine, chat.id):
            again = await engine.submit_tool_results(chat.id, approved)
            assert (again.receipt_id, again.replayed) == (first.receipt_id, True)
            with pytest.raises(ConflictingReplay):
                await engine.submit_tool_results(chat.id, [ToolResult("call_1", output=False)])


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", "b", "b"], ["a", "c"], ["c"]])
async def test_different_submission_is_no_replay(names: list[str], open_chat: OpenChat, *, over: bool) -> None:
    calls = [Call("ask_user", {}, id="a"), Call("ask_user", {}, id="b")]
    async with open_chat(ScriptedModel([Reply(calls=calls), "done"]), client_tools=[ASK]) as (engine, chat, _):
        await engine.ask(chat.id, "go")
        if over:
            receipt = await engine.submit_tool_results(chat.id, [ToolResult("b", "yes"), ToolResult("a", "yes")])
            await engine.wait(chat.id)
        async with untouched(engine, chat.id):
            with pytest.raises(IllegalTransition if over else ToolResultMismatch):
                await engine.submit_tool_results(chat.id, [ToolResult(name, "yes") for name in names])
            for part_of_it in (["a"], ["b"], ["a", "b"]) if over else ():
                again = await engine.submit_tool_results(chat.id, [ToolResult(name, "yes") for name in part_of_it])
                assert (again.receipt_id, again.replayed) == (receipt.receipt_id, True)


async def test_repeated_message_returns_first_receipt(open_chat: OpenChat) -> None:
    async with open_chat(ScriptedModel([]), settings=ALONE) as (engine, chat, _):
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
            with pytest.raises(ConflictingReplay):
                await engine.edit_message(chat.id, first.message_id, "one", client_id="one")
        assert not (await engine.send_message(chat.id, "one")).replayed
        assert not (await engine.send_message(chat.id, "one", client_id="three")).replayed


async def test_blank_client_id_is_refused(open_chat: OpenChat) -> None:
    """Otherwise all messages without an id would repeat the first one."""
    async with open_chat(ScriptedModel([]), settings=ALONE) as (engine, chat, _):
        await engine.send_message(chat.id, "one")
        commands = [
            engine.create_chat(client_id=" \n"),
            engine.send_message(chat.id, "two", client_id=" \n"),
            engine.ask(chat.id, "two", client_id=" \n"),
            engine.edit_message(chat.id, "m1", "two", client_id=" \n"),
        ]
        async with untouched(engine, chat.id):
            for command in commands:
                with pytest.raises(InvalidArgument, match="client_id: must say something"):
                    await command
        assert await engine.chat_ids() == [chat.id]


async def test_results_conflict_with_an_interrupt(open_engine: Any) -> None:
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="a")])])) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
        await engine.interrupt(chat.id, reason="enough")
        assert "enough" in [record.reason for record in await engine.audit(chat.id)]
        async with untouched(engine, chat.id):
            with pytest.raises(ConflictingReplay, match="interrupted"):
                await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])


async def test_replayed_answers_are_confirmed(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby may lack the commit that was read: a later commit must succeed before the acknowledgement."""
    confirmed: list[str] = []

    async def confirm(_store: object) -> None:
        confirmed.append("")

    monkeypatch.setattr(SQLiteStore, "confirm", confirm)
    async with open_engine(ScriptedModel([Reply(calls=[Call("ask_user", {}, id="call_1")]), "thanks", "so"])) as engine:
        chat_id = await chat_with_open_call(engine)
        requests = (
            lambda: engine.submit_tool_results(chat_id, YES),
            lambda: engine.send_message(chat_id, "hi", client_id="m"),
            lambda: engine.edit_message(chat_id, "m1", "hello", client_id="e"),
            lambda: engine.create_chat(client_id="c"),
        )
        for times, request in enumerate(requests, start=1):
            await request()
            await engine.wait(chat_id)
            assert len(confirmed) == times - 1
            await request()
            assert len(confirmed) == times
