"""Erasures: erased and remaining content, and the events and records of an erasure."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.engines import OpenChat, OpenEngine
from support.events import events_of
from support.sql_by_hand import by_hand, raw
from turnwise import ChatUnreadable, ClientTool, CompactionPolicy, Engine, ModelError, Settings, ToolResult, fold, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

SECRET = "hunter2-erase"  # noqa: S105
EDITED = {"approved": True, "arguments": {"to": SECRET}}
IDLE = Settings(run_worker=False)


@tool(policy="ask")
async def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


@pytest.mark.parametrize("what", ["everything", "messages", "errors", "title"])
@pytest.mark.parametrize("situation", ["calls", "error", "queue"])
async def test_connected_client_sees_an_erasure(open_engine: OpenEngine, situation: str, what: Any) -> None:
    """A page that folds events must not show erased content; unchanged content causes no event."""
    refusal = ModelError("authentication", message=f"no key of {SECRET}")
    replies = {"calls": Reply(calls=[Call("pay", {"to": SECRET}), Call("sign", {"as": SECRET})])}
    model = ScriptedModel([replies.get(situation, Reply(error=refusal))])
    async with open_engine(model, tools=[pay], settings=IDLE if situation == "queue" else None) as engine:
        chat = await engine.create_chat(title="a title", client_tools=[ClientTool("sign", "Sign.", {"type": "object"})])
        await engine.send_message(chat.id, SECRET)
        if situation == "queue":
            await engine.send_message(chat.id, SECRET)
        else:
            await engine.wait(chat.id)
        page = await engine.transcript(chat.id)
        kinds = []
        for _ in range(2):
            await engine.erase(chat.id, what=[what])
            replayed = [event async for event in engine.events(chat.id, after=page.seq, follow=False)]
            kinds.append({event.kind for event in replayed})
            page = fold(replayed, page)
            assert page == await engine.transcript(chat.id)
        is_reached = what in {"everything", "errors" if situation == "error" else "messages"}
        last_error = (await engine.explain(chat.id)).last_error
        assert is_reached != (SECRET in str((page.open_calls, last_error, page.queue)))
        kind = {"calls": "action_required", "error": "error", "queue": "queue"}[situation]
        assert [kind in some for some in kinds] == [is_reached, False]


async def test_result_erased_with_its_call_loses_its_output(database: Path, open_chat: OpenChat) -> None:
    """The call alone would take only the arguments along."""
    model = ScriptedModel([Reply(calls=[Call("pay", {"to": "ann"}, id="p")]), Reply("done")])
    async with open_chat(model, tools=[pay]) as (engine, chat, _):
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [ToolResult("p", EDITED)])
        await engine.wait(chat.id)
        _, asking, result, *_ = [message.id for message in await engine.messages(chat.id)]
        assert {asking, result} == set((await engine.erase(chat.id, messages=[asking, result])).messages)
        assert SECRET.encode() not in raw(database)


async def test_erasing_a_call_erases_its_edited_arguments_only(open_chat: OpenChat) -> None:
    asks = [Call("pay", {"to": "ann"}, id="edited"), Call("pay", {"to": "ann"}, id="granted")]
    model = ScriptedModel([Reply(calls=asks), "done", Reply(calls=[Call("pay", {"to": "bob"}, id="later")]), "done"])
    async with open_chat(model, tools=[pay]) as (engine, chat, _):
        await engine.ask(chat.id, "pay")
        await engine.submit_tool_results(chat.id, [ToolResult("edited", EDITED), ToolResult("granted", output=True)])
        await engine.wait(chat.id)
        await engine.ask(chat.id, "pay again")
        await engine.submit_tool_results(chat.id, [ToolResult("later", EDITED)])
        await engine.wait(chat.id)
        asking = next(message.id for message in await engine.messages(chat.id) if message.calls)
        last = (await engine.get_chat(chat.id)).last_seq
        await engine.erase(chat.id, messages=[asking])
        results = [message.result for message in await engine.messages(chat.id) if message.result is not None]
        expected = {"edited": None, "granted": None, "later": EDITED["arguments"]}
        assert {one.call_id: one.edited_arguments for one in results} == expected
        sent = [event.message for event in await events_of(engine, chat.id, "message", after=last)]
        assert [message.result.call_id for message in sent if message.result is not None] == ["edited"]
        writes = (await engine.audit(chat.id))[-1].writes
        assert len([write for write in writes if write.kind == "erase:edits"]) == 1


@pytest.mark.parametrize("label", ["title", "metadata", "system"])
async def test_each_label_can_be_erased_alone(open_engine: OpenEngine, database: Path, label: Any) -> None:
    async with open_engine("demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="a title", metadata={"a": 1}, system="Be terse.")
        report = await engine.erase(chat.id, what=[label])
        assert report.labels == (label,)
        stored = {"title": "a title", "metadata": {"a": 1}, "system": "Be terse."}
        stored[label] = {} if label == "metadata" else None
        ((body,),) = await by_hand(f"sqlite:///{database}", "SELECT body FROM profiles")
        assert {name: json.loads(body).get(name) or ({} if name == "metadata" else None) for name in stored} == stored


async def test_erasing_messages_of_an_empty_chat_writes_nothing(open_engine: OpenEngine) -> None:
    """The log would record an erasure that erased nothing."""
    async with open_engine("demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="a title")
        before = await engine.archive(chat.id)
        report = await engine.erase(chat.id, what=["messages"])
        assert (report.messages, report.queued, report.chat) == ((), (), before)
        await engine.erase(chat.id, what=["messages", "title"])
        assert [record.trigger for record in await engine.audit(chat.id)][before.version :] == ["message_erased"]


@pytest.mark.parametrize("before_it", [0, 1])
async def test_report_names_summaries_that_may_quote_erased_text(before_it: int) -> None:
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    model = ScriptedModel([Reply("long", usage=(90, 1)), "after", "third"], summary="all of it")
    async with Engine("sqlite://", model=model, settings=settings) as engine:
        chat = await engine.create_chat()
        early = (await engine.ask(chat.id, "hi")).messages[0].id
        late = (await engine.ask(chat.id, "more")).messages[-1].id
        (summary,) = [
            message.id for message in await engine.messages(chat.id, view="model") if "all of it" in message.text
        ]
        report = await engine.erase(chat.id, messages=[early, late] if before_it else [late])
        assert report.may_quote == ((summary,) if before_it else ())
        assert (await engine.erase(chat.id, messages=[early, summary])).may_quote == ()
        assert (await engine.erase(chat.id, messages=[early])).may_quote == (), "it says nothing any more"


@pytest.mark.parametrize("label", ["system", "title"])
async def test_any_summary_may_quote_the_system_prompt(open_engine: OpenEngine, label: Any) -> None:
    """The strategy sees the system prompt; no message refers to it, and titles are requested without it."""
    async with open_engine(ScriptedModel(["hi"], summary="all of it")) as engine:
        chat = await engine.create_chat(system="Be terse.", title="a title")
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
        (summary,) = await engine.messages(chat.id, view="model")
        assert (await engine.erase(chat.id, what=[label])).may_quote == ((summary.id,) if label == "system" else ())
        assert (await engine.erase(chat.id, messages=[summary.id], what=[label])).may_quote == ()


async def test_quarantine_is_erased_only_on_request(open_engine: OpenEngine) -> None:
    """Without quarantined rows the log records no deletion."""
    async with open_engine("demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="a title")
        sent = await engine.send_message(chat.id, "hi")
        await engine.erase(chat.id, messages=[sent.message_id], what=["title"])
        assert "quarantine" not in await engine.export_audit(chat.id)
        await engine.erase(chat.id, what=["quarantine"])
        assert "quarantine" in await engine.export_audit(chat.id)


async def test_unreadable_event_stops_the_erasure(database: Path) -> None:
    """An unreadable event no longer names the queued message."""
    url = f"sqlite:///{database}"
    async with Engine(url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="a title")
        sent = [await engine.send_message(chat.id, text) for text in ("hi", "and then")]
        before = await engine.get_chat(chat.id)
        await by_hand(url, "UPDATE events SET body = '[' WHERE kind = 'queue'")
        with pytest.raises(ChatUnreadable, match=r"events\.body"):
            await engine.erase(chat.id, messages=[sent[0].message_id], what=["title"])
        assert await engine.get_chat(chat.id) == before


@pytest.mark.parametrize("lost", ["its event", "its record"])
async def test_queued_message_is_erased_by_event_or_record(database: Path, lost: str) -> None:
    """The log serves where no event names the message any more, the event where its record is unreadable."""
    url = f"sqlite:///{database}"
    async with Engine(url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        sent = await engine.send_message(chat.id, SECRET)
        await engine.delete_queued(chat.id, sent.message_id)
    await by_hand(
        url, "DELETE FROM events WHERE kind = 'queue'" if lost == "its event" else "UPDATE audit SET body = '['"
    )
    async with Engine(url, model="demo", settings=IDLE) as engine:
        assert (await engine.erase(chat.id, messages=[sent.message_id])).queued == (sent.message_id,)
        assert SECRET.encode() not in raw(database)
