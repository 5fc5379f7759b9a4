"""The explanation of each situation in which a chat is stuck."""

import asyncio
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenChat, OpenEngine
from support.gated_model import PacedModel
from support.latches import Latch
from support.life import BLANK, NOW, client, delegated, local
from support.lives import lives_in
from support.sql_by_hand import by_hand
from turnwise import (
    Agent,
    Chat,
    ChatUnreadable,
    ClientTool,
    Engine,
    Event,
    IllegalTransition,
    ModelError,
    ModelRequest,
    RetryPolicy,
    Settings,
    delegate,
    tool,
)
from turnwise.engine.admin.diagnose import advice_on, is_repairable, summary_of
from turnwise.engine.admin.explain import explanation
from turnwise.engine.agents.delegate import SUBAGENTS, subagent_id
from turnwise.engine.worker.identity import worker_name
from turnwise.persistence.reading import Expiry
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import ToolCall
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, HistoryFacts, Lease
from turnwise.states.messages import QueuedMessage, ScheduledMessage, TextPart
from turnwise.states.names import CallStatus, ChatState, StopReason, Tail
from turnwise.states.step_calls import StepCalls
from turnwise.testing import ManualClock

OVERLOADED_ONCE: Final = [Reply(error=ModelError("overloaded")), Reply("Hello there", chunks=6)]


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def test_explain_of_a_hung_model(place: str, request: pytest.FixtureRequest) -> None:
    """It names the model and start of the request, the last part, earlier failures and the deadline."""
    clock, model = (
        ManualClock(datetime(2026, 11, 1, 12, tzinfo=UTC)),
        PacedModel([Reply(error=ModelError("overloaded")), Reply("Hello there", chunks=2)]),
    )
    settings = Settings(retry=RetryPolicy(first_delay=1, max_delay=1), idle_timeout=45)
    url = lives_in(place, request).url
    async with Engine(url, agents=[Agent("support", model)], settings=settings, clock=clock) as engine:
        chat = await engine.create_chat(agent="support", message="Hello?")
        model.allow(1)
        with anyio.fail_after(60):
            async for event in engine.events(chat.id):
                if event.kind == "retry":
                    clock.advance(1)
                if event.kind == "part":
                    break
        explained = await engine.explain(chat.id)
        async with Engine(url, model="demo", settings=Settings(run_worker=False), clock=clock) as elsewhere:
            seen = await elsewhere.explain(chat.id)
        model.allow(9)
        await engine.wait(chat.id)
    now, end = "2026-11-01 12:00:01 UTC", "2026-11-01 12:00:46 UTC"
    assert (
        f"attempt 2 (agent 'support', model scripted:scripted, since {now}, the last part came at {now}, without "
        f"another it times out at {end}, earlier attempts failed: overloaded at 12:00:00); worker" in explained.reason
    )
    assert f"attempt 2 (agent 'support', since {now}, the last part came at {now}, earlier" in seen.reason


async def test_explain_of_a_running_tool(open_engine: OpenEngine) -> None:
    latch = Latch()

    @tool(timeout=300)
    async def dig() -> str:
        """Dig."""
        await latch.pass_through()
        return "dug"

    async with open_engine(ScriptedModel([Reply(calls=[Call("dig", {})]), Reply("done")]), tools=[dig]) as engine:
        chat = await engine.create_chat(message="Dig!")
        await latch.entered.wait()
        explained = await engine.explain(chat.id)
        latch.open()
        await engine.wait(chat.id)
    assert re.search(r"Tools are running: dig since 20[-0-9]+ [:0-9]+ UTC \(limit 300 s\); worker", explained.reason)


async def test_explain_names_whose_approval_is_awaited() -> None:
    """Also where a subagent's call waits."""

    @tool(policy="ask")
    async def refund(cents: int) -> str:
        """Refund."""
        return f"refunded {cents}"

    @tool(policy="ask", approver="owner")
    async def forget() -> str:
        """Forget."""
        return "forgotten"

    helper = Agent("helper", ScriptedModel([Reply(calls=[Call("refund", {"cents": 5}, "h1")])]), tools=[refund])
    boss = ScriptedModel([Reply(calls=[Call("ask", {"task": "Refund."}, "b1"), Call("forget", {}, "b2")])])
    agents = [Agent("boss", boss, tools=[delegate("helper", name="ask"), forget]), helper]
    async with Engine("sqlite://", agents=agents) as engine:
        chat = await engine.create_chat(agent="boss", message="Go!")
        await engine.wait(chat.id)
        with anyio.fail_after(60):
            while not (subagents := await engine.subagents(chat.id)):  # noqa: ASYNC110 - no event
                await anyio.sleep(0.01)
        (theirs,) = subagents
        await engine.wait(theirs.id, until={ChatState.requires_action})
        reason = (await engine.explain(chat.id)).reason
    assert reason.startswith("The chat waits for the approval of forget by an owner (b2). Waiting for subagents, too")
    assert f"Subagent {theirs.id} waits for the approval of refund by an operator (h1)." in reason


async def test_spent_budget_of_the_past_is_no_reason() -> None:
    clock = ManualClock(datetime(2026, 3, 31, 22, tzinfo=UTC))

    @tool
    async def look() -> str:
        """Look."""
        return "A fox."

    replies = [Reply(calls=[Call("look", {})], usage=(60, 40)), Reply("Done.", usage=(60, 20))]
    async with Engine("sqlite://", model=ScriptedModel(replies), tools=[look], clock=clock) as engine:
        await engine.set_budget(owner="ada", tokens=100, per="day")
        chat = await engine.create_chat(owner="ada", message="What is outside?")
        await engine.wait(chat.id)
        spent = (await engine.explain(chat.id)).reason
        clock.advance(86_400)
        again = (await engine.explain(chat.id)).reason
    assert spent.startswith("The turn was stopped, as a budget is spent (token_budget): resume it once there is more.")
    assert "The budget of owner 'ada' has 0 of 100 tokens left until 2026-04-01 00:00 UTC" in spent
    assert again == "The turn has spent its budget (token_budget): resume it to go on with a new one."


async def test_explain_and_doctor_name_stuck_consumers(database: Path) -> None:
    async def refuse(event: Event) -> None:
        if event.kind == "turn_finished":
            raise ValueError("not this one")

    async with Engine(f"sqlite:///{database}", model=ScriptedModel(["yes"])) as engine, anyio.create_task_group() as tg:
        chat = await engine.create_chat(message="Hello?")
        tg.start_soon(partial(engine.consume, "billing", refuse, delays=(0.01,)))
        with anyio.fail_after(60):
            while sum([one.undelivered for one in await engine.consumers()]) == 0:  # noqa: ASYNC110 - no event
                await anyio.sleep(0.01)
        reason = (await engine.explain(chat.id)).reason
        found = [diagnosis async for diagnosis in engine.diagnose()]
        tg.cancel_scope.cancel()
    assert "1 event(s) of the chat were not delivered to 'billing': see `turnwise undelivered billing`." in reason
    assert [(one.chat_id, one.issues[0].column) for one in found] == [(None, "undelivered.error")]
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        await engine.create_chat()
        found = [diagnosis async for diagnosis in engine.diagnose()]
    assert "'billing' is 1 commit(s) behind, and no process delivers for it" in found[-1].issues[0].problem


async def test_explain_of_a_waiting_chat(open_chat: OpenChat) -> None:
    async with open_chat([]) as (engine, chat, _):
        explained = await engine.explain(chat.id)
        assert explained.reason == "Nothing to do: the chat waits for the next message."
        assert (explained.state, explained.lease_worker, explained.next_timer) == ("waiting", None, None)
        assert "send_message" in explained.legal_triggers
        assert "edit_message" not in explained.legal_triggers
        assert explained.broken_invariants == ()


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def standing(state: ChatState, **more: Any) -> Facts:
    """Return a chat in a state, held by another worker unless `lease` says otherwise."""
    step = replace(BLANK.step, number=3, attempt=2, failures=1, **more.pop("step", {}))
    return replace(
        BLANK, **{"state": state, "step": step, "version": 1, "lease": Lease("w", 1), "since": later(-60), **more}
    )


S: Final = ChatState
ASKED: Final = StepCalls(
    (
        client("a", 0, status=CallStatus.started, deadline=later(60)),
        client("b", 1, status=CallStatus.started, deadline=later(30)),
        client("c", 2, status=CallStatus.started),
    )
)
MIXED: Final = StepCalls((local("l", 0), client("a", 1, status=CallStatus.started)))
SUBAGENT: Final = delegated("h", 1)
RESEARCH: Final = subagent_id(BLANK.chat_id, "h")
WAITS: Final = replace(
    delegated("w", 2), name="wait", subagent=None, subagent_action="wait", arguments={SUBAGENTS: ["x"]}
)
WAITS_FOR_ALL: Final = replace(WAITS, arguments={})
QUEUED: Final = tuple(QueuedMessage(id=f"m{n}", parts=(TextPart(text="x"),), accepted_at=NOW) for n in range(2))
UNANSWERED: Final = HistoryFacts(tail=Tail.awaits_answer)
SCHEDULE: Final = ScheduledMessage(id="s5", parts=(TextPart(text="x"),), due=later(60), by="jane")
NO_WORKER: Final = "There is work to do: the chat waits for a worker that runs agent 'default'; is one running?"
ANSWERING: Final = "The request of step 3 is being made, or the model is answering it, attempt 2"
UNSETTLED: Final = "The interrupt waits to be settled by a worker with any agents; is one running, with room?"
OPENING: Final = "Tools run as soon as the chat's deps are open"
GONE: Final = f"{worker_name().rpartition(':')[0][:-1]}:x"
"""A worker of this machine without a process: its number belongs to another one."""
NOTHING: Final = "Nothing to do: the chat waits for the next message."
UNANSWERED_LAST: Final = "The last message has no answer: resume the chat to get it, or send another message."
RAN_OUT: Final = "The lease of worker w ran out {} s ago: it is dead or cut off; any worker may take over."
AGAIN: Final = "In back-off: the model call failed 1 time(s) in a row; next attempt in {}."
TAKEN_OVER: Final = f"Worker {GONE} holds the chat, but its process is dead: any worker of this machine takes over."
TWO_TOOLS: Final = StepCalls((local("l"), replace(local("m", 1), name="add", status=CallStatus.started)))


def resting(state: ChatState, reason: str, *calls: ToolCall, **more: Any) -> tuple[Facts, None, str]:
    """Return a situation without a worker, and its reason."""
    return standing(state, lease=None, calls=StepCalls(calls), **more), None, reason


def held(state: ChatState, reason: str, expires: float | None = 20, **more: Any) -> tuple[Facts, float | None, str]:
    """Return a situation in which a worker holds the chat, and its reason."""
    return standing(state, **more), expires, reason


REASONS: Final = [
    held(S.waiting, "The chat is archived; unarchive it to go on.", None, archived=True),
    resting(S.waiting, NOTHING),
    resting(S.waiting, NOTHING, stop_reason=StopReason.end_turn, history=UNANSWERED),
    resting(S.waiting, NOTHING, stop_reason=StopReason.stop_after_tool, history=UNANSWERED),
    resting(S.waiting, UNANSWERED_LAST, stop_reason=None, history=UNANSWERED),
    resting(S.waiting, UNANSWERED_LAST, stop_reason=StopReason.content_filter, history=UNANSWERED),
    *(
        resting(
            S.waiting,
            f"The turn has spent its budget ({budget}): resume it to go on with a new one.",
            stop_reason=budget,
            history=UNANSWERED,
        )
        for budget in ("max_steps", "token_budget", "cost_budget", "time_budget")
    ),
    resting(S.waiting, NOTHING, stop_reason=StopReason.max_steps),
    resting(S.pending, NO_WORKER),
    resting(S.pending, NO_WORKER.replace("'default'", "'default' with tool 'search'"), local("l")),
    resting(S.pending, NO_WORKER.replace("'default'", "'default' with tools 'add', 'search'"), *TWO_TOOLS),
    resting(S.interrupted, UNSETTLED, settled=False),
    resting(S.interrupted, "The user said stop; resume it or send a message to go on.", history=UNANSWERED),
    resting(S.interrupted, "The user said stop; send a message to go on."),
    resting(
        S.interrupted,
        "The user said stop; 2 queued message(s) wait; resume it or send a message to go on.",
        queue=QUEUED,
    ),
    resting(S.error, "The chat cannot go on without the user: an unknown error."),
    *(
        resting(
            S.error,
            f"The chat cannot go on without the user: no money.{scheduled}",
            last_error=ErrorInfo(kind="quota", message=message),
            **more,
        )
        for message in ("no money", "no money.")
        for scheduled, more in (
            ("", {}),
            (" Schedule 's5' of jane sends a message at 2026-11-01 12:01:00 UTC.", {"schedules": (SCHEDULE,)}),
        )
    ),
    *(
        resting(
            S.error,
            "The chat cannot go on without the user: Too big. The provider does not take message 'm1': "
            "edit or erase it, clear the context, or configure another model.",
            last_error=ErrorInfo(kind="bad_request", message=message, message_id="m1"),
        )
        for message in ("Too big", "Too big.")
    ),
    resting(
        S.requires_action,
        "The chat waits for the client's results of ask (a), ask (b), ask (c), until 2026-11-01 12:00:30 UTC.",
        *ASKED,
    ),
    resting(S.requires_action, "The chat waits for the client's results of ask (c).", ASKED[2]),
    resting(
        S.requires_action,
        "The chat waits for the client's results of ask (c). "
        f"Waiting for subagents, too: {RESEARCH} (agent 'research').",
        ASKED[2],
        SUBAGENT,
    ),
    resting(
        S.requires_action,
        f"Waiting for subagents: {RESEARCH} (agent 'research'), wait of none.",
        SUBAGENT,
        WAITS_FOR_ALL,
    ),
    resting(S.requires_action, "Waiting for subagents: wait of x.", WAITS, background=("x", "y")),
    resting(S.requires_action, "Waiting for subagents: wait of x, y.", WAITS_FOR_ALL, background=("x", "y")),
    pytest.param(*held(S.streaming, TAKEN_OVER, -5, lease=Lease(GONE, 1)), id="a dead process"),
    held(S.streaming, RAN_OUT.format(5), -5, step={"retry_at": later(9)}),
    held(S.streaming, RAN_OUT.format(0), 0),
    held(S.streaming, AGAIN.format("9 s, at 12:00:09 UTC"), step={"retry_at": later(9)}),
    held(S.streaming, AGAIN.format("43200 s, at 2026-11-02 00:00:00 UTC"), step={"retry_at": later(12 * 3600)}),
    held(S.streaming, f"{ANSWERING}; worker w holds the chat.", step={"retry_at": NOW}),
    held(S.streaming, f"{ANSWERING}; worker w holds the chat.", None),
    held(S.executing_tools, f"{OPENING}: search; worker w holds the chat.", calls=MIXED),
    held(S.executing_tools, "Tools are running: add; worker w holds the chat.", calls=TWO_TOOLS),
    held(S.compacting, "The history is being summarised; worker w holds the chat."),
    held(S.interrupted, "The interrupt is being settled; worker w holds the chat.", settled=False),
    held(S.waiting, "The chat is held; worker w holds the chat."),
]


@pytest.mark.parametrize(("facts", "expires", "reason"), REASONS)
def test_reason_for_each_situation(facts: Facts, expires: float | None, reason: str) -> None:
    until = None if expires is None else later(expires)
    explained = explanation(facts, None if until is None else Expiry(until, NOW))
    assert explained.reason == reason
    assert explained.lease_expires == until
    assert explained.lease_worker == (facts.lease.worker if facts.lease else None)
    assert (explained.chat_id, explained.state, explained.since) == (facts.chat_id, facts.state, facts.since)
    assert (explained.queued, explained.last_error) == (len(facts.queue), facts.last_error)
    assert [call.call_id for call in explained.open_calls] == [call.call_id for call in facts.open_calls]


@pytest.mark.parametrize(
    ("facts", "expires", "due"),
    [
        (standing(S.waiting, lease=None), None, None),
        (standing(S.requires_action, lease=None, calls=ASKED), None, 30),
        (standing(S.streaming), 20, 20),
        (standing(S.streaming, step={"retry_at": later(9)}), 20, 9),
        (standing(S.compacting, step={"retry_at": later(9)}), 5, 5),
        (standing(S.error, lease=None, step={"retry_at": later(9)}), None, None),
    ],
)
def test_next_timer_is_the_earliest(facts: Facts, expires: float | None, due: float | None) -> None:
    explained = explanation(facts, None if expires is None else Expiry(later(expires), NOW))
    assert explained.next_timer == (None if due is None else later(due))


def test_unreadable_chat_is_the_first_reason() -> None:
    issue = IntegrityIssue("chats.turn", "is no JSON")
    explained = explanation(standing(S.streaming), None, issues=[issue])
    assert explained.unreadable == (issue,)
    assert explained.reason.startswith("Something stored of the chat cannot be read: chats.turn: is no JSON. ")
    assert explanation(standing(S.streaming), None).unreadable == ()


# Diagnoses


CHAT = IntegrityIssue("chats.turn", "is no JSON")
LOG = IntegrityIssue("audit.hash", "is not that of its record")


@pytest.mark.parametrize(
    ("issues", "repairs", "words"),
    [([CHAT], True, (True, False)), ([LOG], False, (False, True)), ([CHAT, LOG], True, (True, True))],
)
def test_advice_repairs_everything_but_the_log(
    issues: list[IntegrityIssue], repairs: bool, words: tuple[bool, bool]
) -> None:
    assert is_repairable(issues) == repairs
    advice = advice_on(issues)
    assert ("--repair" in advice, "evidence" in advice) == words


def test_summary_of_issues_is_bounded() -> None:
    assert summary_of([CHAT, LOG]) == "chats.turn: is no JSON; audit.hash: is not that of its record"
    assert summary_of([]) == ""
    many = summary_of([CHAT] * 500)
    assert len(many) == 2000
    assert many.startswith("chats.turn: is no JSON; chats.turn")


async def _broken(database: Path, *, of: int, sound: int) -> list[str]:
    """Make chats with an issue, and one without; return their ids."""
    url = f"sqlite:///{database}"
    async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
        chats = [(await engine.create_chat(title="a title")).id for _ in range(of)]
    await by_hand(
        url,
        f"UPDATE profiles SET body = '[' WHERE chat <> (SELECT number FROM chats WHERE id = '{chats[sound]}')",  # noqa: S608 - an id of ours
    )
    return chats


@pytest.mark.parametrize("at_once", [1, 2, 6])
async def test_each_damaged_chat_is_diagnosed_once(
    database: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("turnwise.engine.admin.diagnose.CHATS_PER_READ", at_once)
    chats = await _broken(database, of=5, sound=3)
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        found = [diagnosis async for diagnosis in engine.diagnose()]
    assert [each.chat_id for each in found] == [*chats[:3], chats[4]]
    assert all(each.issues[0].column == "profiles.body" for each in found)
    assert all("--repair" in each.advice for each in found)


async def test_orphaned_rows_are_reported_last(database: Path) -> None:
    chats = await _broken(database, of=2, sound=1)
    await by_hand(f"sqlite:///{database}", "UPDATE events SET chat = 99 WHERE chat = 2")
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        *_, last = [diagnosis async for diagnosis in engine.diagnose()]
    assert (last.chat_id, last.advice.startswith("no chat reads these rows")) == (None, True)
    assert chats[0] not in str(last)


async def test_repair_records_what_it_quarantined(database: Path) -> None:
    broken, sound = await _broken(database, of=2, sound=1)
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        (issues,) = [diagnosis.issues async for diagnosis in engine.diagnose()]
        error = (await engine.repair(broken)).last_error
        assert error.kind == "repaired"
        assert error.message == f"repaired, and put aside what could not be read: {summary_of(issues)}"
        assert (await engine.audit(broken))[-1].reason == summary_of(issues)
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        assert (await engine.get_chat(sound)).title == "a title"


# Questions about long chats


LONG: Final = 0.5
"""Seconds that the answer takes here."""
QUESTIONS: Final[dict[str, tuple[str, Callable[[Engine, str], Awaitable[Any]]]]] = {
    "explain": ("engine.admin.diagnose.examine", lambda engine, chat: engine.explain(chat)),
    "verify": ("engine.commands.report_handlers.verify_stored", lambda engine, chat: engine.verify(chat)),
    "export the log": ("engine.chats.reports.export", lambda engine, chat: engine.export_audit(chat, key=b"key")),
    "export the rows": ("engine.engine.lines_of", lambda engine, chat: engine.export_rows(chat)),
}


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(LONG)
        return function(*arguments, **options)

    return slowly


@pytest.mark.parametrize(
    "question", [*list(QUESTIONS)[:2], *(pytest.param(one, marks=pytest.mark.deep) for one in list(QUESTIONS)[2:])]
)
async def test_slow_question_blocks_no_other_chat(
    database: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    place, ask = QUESTIONS[question]
    module, _, name = place.rpartition(".")
    async with Engine(f"sqlite:///{database}", model=ScriptedModel([Reply("hello")])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        quick = await ask(engine, chat.id)
        original = getattr(__import__(f"turnwise.{module}", fromlist=[name]), name)
        monkeypatch.setattr(f"turnwise.{place}", slow(original))
        answers: list[Any] = []
        lived = 0

        async def answer() -> None:
            answers.append(await ask(engine, chat.id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            await anyio.lowlevel.checkpoint()
            while not answers:
                await engine.create_chat()
                lived += 1
        assert lived > 3, "others went on"
        assert answers == [quick]


# One chat that cannot be read is that chat's problem alone


DAMAGES = {
    "facts": "UPDATE chats SET facts = '{' WHERE id = ?",
    "state": "UPDATE chats SET state = 'dreaming' WHERE id = ?",
    "version": "UPDATE chats SET version = 'many' WHERE id = ?",
    "profile": "UPDATE profiles SET body = '[' WHERE chat = (SELECT number FROM chats WHERE id = ?)",
    "calls": "UPDATE calls SET body = 'no JSON' WHERE chat = (SELECT number FROM chats WHERE id = ?)",
    "queue": "UPDATE queue SET body = 'no JSON' WHERE chat = (SELECT number FROM chats WHERE id = ?)",
    "token": "UPDATE chats SET token = 'mine' WHERE id = ?",
}
"""Damages that make a chat unreadable while its tool runs and a message is queued."""
REPLACED = {"calls", "queue"}
"""Rows that the holder has in memory and overwrites with its next commit: the chat loses nothing."""


def poison(database: Path, sql: str, *values: object) -> None:
    """Write past turnwise, as a broken disk or manual SQL could."""
    with closing(sqlite3.connect(database)) as on, on:
        assert on.execute(sql, values).rowcount > 0


async def test_unreadable_chat_is_listed_with_its_reason(open_engine: OpenEngine, database: Path) -> None:
    """The list shows its readable fields; all others are listed as before."""
    async with Engine(f"sqlite:///{database}", model=ScriptedModel(())) as engine:
        sound = await engine.create_chat(title="sound")
        broken = await engine.create_chat(title="broken", owner="ann")
        poison(database, "UPDATE chats SET facts = '{\"serial\": [}' WHERE id = ?", broken.id)
        listed = {chat.id: chat for chat in (await engine.list_chats()).items}
        assert listed[sound.id].unreadable is None
        found = listed[broken.id]
        assert found.unreadable is not None
        assert "chats.facts" in found.unreadable
        assert (found.title, found.owner, found.version) == ("broken", "ann", 1)
        with pytest.raises(ChatUnreadable) as raised:
            await engine.get_chat(broken.id)
        assert (raised.value.column, raised.value.chat_id) == ("chats.facts", broken.id)
        with pytest.raises(ChatUnreadable):
            await engine.send_message(broken.id, "hello")
        assert (await engine.ask(sound.id, "hello", timeout=60)).chat.state == "error"


async def test_unreadable_message_stops_the_chat_until_repair(database: Path) -> None:
    """A claim reads no messages, so the attempt has started by then."""
    url = f"sqlite:///{database}"
    async with Engine(url, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        chat_id = (await engine.create_chat()).id
        await engine.send_message(chat_id, "hello")
    poison(database, "UPDATE messages SET body = '{}' WHERE chat = (SELECT number FROM chats WHERE id = ?)", chat_id)
    async with Engine(url, model=ScriptedModel(["hello again"])) as engine:
        failed = await engine.wait(chat_id, timeout=60)
        assert (failed.state, failed.last_error.kind) == ("error", "unreadable")
        assert "messages.body" in (await engine.explain(chat_id)).last_error.detail
        with pytest.raises(ChatUnreadable):
            await engine.messages(chat_id)
        await engine.repair(chat_id)
        assert (await engine.ask(chat_id, "again", timeout=60)).text == "hello again"


@pytest.mark.parametrize(
    "damage",
    [pytest.param(one, marks=() if one in ("facts", "calls", "token") else pytest.mark.deep) for one in DAMAGES],
)
async def test_chat_damaged_while_running_affects_no_other(
    database: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its row is damaged in the middle of a step; the worker continues with other chats, and can repair it."""
    latch = Latch()

    @tool(parallel_safe=True)
    async def work() -> str:
        """Work."""
        await latch.pass_through()
        return "worked"

    def answer(request: ModelRequest) -> Reply:
        if request.messages[-1].role == "tool":
            return Reply("done")
        return Reply(calls=[Call("work", {})]) if request.messages[-1].text == "go" else Reply("fine")

    settings = Settings(renew_every=0.05, poll_interval=0.05)
    async with Engine(f"sqlite:///{database}", model=ScriptedModel(answer), tools=[work], settings=settings) as engine:
        broken, sound = await engine.create_chat(), await engine.create_chat()
        for chat in (broken, sound):
            await engine.send_message(chat.id, "go")
            await engine.wait(chat.id, until=["executing_tools"])
            await engine.send_message(chat.id, "and then?")
        await latch.entered.wait()
        followed = asyncio.create_task(_rested(engine, broken))
        await anyio.wait_all_tasks_blocked()
        poison(database, DAMAGES[damage], broken.id)
        latch.open()
        for _ in range(2):
            assert (await engine.wait(sound.id, timeout=60)).state == "waiting"
            assert (await engine.ask(sound.id, "once more", timeout=60)).text == "fine"
        assert (await engine.verify(sound.id)).ok
        assert await followed in {"waiting", "error", "unreadable"}
        if damage in REPLACED:
            while await _rested(engine, broken) == "unreadable":
                await anyio.lowlevel.checkpoint()
        else:
            await _repaired(engine, broken)
            assert (await engine.get_chat(broken.id)).state == "error"
        assert (await engine.ask(broken.id, "once more", timeout=60)).chat.state == "waiting"
    assert not [record for record in caplog.records if "task_failed" in record.getMessage()]


async def _rested(engine: Engine, chat: Chat) -> str:
    try:
        return (await engine.wait(chat.id, timeout=60)).state
    except ChatUnreadable:
        return "unreadable"


async def _repaired(engine: Engine, chat: Chat) -> None:
    """Repair an unreadable chat, unless a sweep has done it."""
    try:
        await engine.repair(chat.id)
    except IllegalTransition:
        assert "repaired" in [record.trigger for record in await engine.audit(chat.id)]


async def test_unknown_state_is_reported_and_repaired(
    open_engine: OpenEngine, database: Path, strict_model: MakeModel
) -> None:
    """It is not reported as a chat in `error` with open calls; subscribers do not end there."""
    model = strict_model([Reply(calls=[Call("ask", {}, id="c1")]), "done"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("ask", "Ask.", {"type": "object"})])
        await _turn(engine, chat.id, "m1")
    async with Engine(f"sqlite:///{database}", model=model, settings=Settings(run_worker=False)) as engine:
        poison(database, DAMAGES["state"], chat.id)
        listed = (await engine.list_chats()).items[0]
        for found in (await engine.get_chat(chat.id), listed):
            assert "'dreaming'" in str(found.unreadable)
            assert found.open_calls == []
        explained = await engine.explain(chat.id)
        assert explained.broken_invariants == ("state_is_declared",)
        assert explained.legal_triggers == ("repaired",)
        assert "chats.state" in explained.reason
        assert [issue.column for issue in explained.unreadable] == ["chats.state"]
        assert "'dreaming' is no state of the table's" in explained.reason
        assert (await engine.list_chats(state="error")).items == []
        with pytest.raises(IllegalTransition) as refused:
            await engine.resume(chat.id)
        assert refused.value.allowed == ("repaired",)
        followed = asyncio.create_task(_turn(engine, chat.id, "m1"))
        waited = asyncio.create_task(engine.wait(chat.id))
        await anyio.wait_all_tasks_blocked()
        repaired = await engine.repair(chat.id)
        assert (repaired.state, repaired.unreadable, repaired.open_calls) == ("error", None, [])
        assert repaired.last_error.kind == "repaired"
        assert (await waited).state == "error"
        (*_, last) = await followed
        assert (last.kind, last.stop_reason) == ("turn_finished", "error")
    async with open_engine(model) as engine:
        assert (await engine.ask(chat.id, "go on")).chat.state == "waiting"


async def _turn(engine: Engine, chat_id: str, client_id: str) -> list[Any]:
    """Return the events of a turn, from a message that was sent before, until the chat rests."""
    return [event async for event in engine.stream(chat_id, "go", client_id=client_id)]
