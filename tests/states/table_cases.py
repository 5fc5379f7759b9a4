"""Cases of the table's tests: for every row a matching chat, and the row's writes and events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from support.life import (
    ERROR,
    SCHEDULED,
    Life,
    asking,
    client,
    compacting,
    delegated,
    executing,
    failed,
    interrupted,
    local,
    pending,
    queued,
    refused,
    streaming,
    text_parts,
    unsettled,
    waiting,
)
from turnwise.states import ChatState, Trigger
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing
from turnwise.states.budgets import Funds, StoredBudget
from turnwise.states.calls import ToolCall
from turnwise.states.draft import Draft
from turnwise.states.facts import Facts, Lease
from turnwise.states.names import Need
from turnwise.states.table import BUSY, Row, rows_of
from turnwise.states.triggers import trigger_of

S = ChatState
Fire = Callable[[Life], Any]


@dataclass(frozen=True)
class Case:
    """One way to match a row: the chat's state, the trigger, the writes and the events."""

    build: Callable[[], Life]
    fire: Fire
    writes: str = ""
    """The kinds of the writes, in order."""
    events: str = ""
    """The kinds of the events, in order."""


def standing(state: ChatState) -> Life:
    """Return a life in `state`, with a running job where the state has one."""
    builders: dict[ChatState, Callable[[], Life]] = {
        S.waiting: waiting,
        S.pending: pending,
        S.streaming: streaming,
        S.executing_tools: executing,
        S.compacting: compacting,
        S.requires_action: asking,
        S.interrupted: interrupted,
        S.error: failed,
    }
    life = builders[state]()
    assert life.facts.state is state
    return life


def stray(state: ChatState | None = None) -> Life:
    """Return a chat whose stored facts break an invariant: an unknown state, or an open call without a step."""
    life = standing(state or S.waiting)
    if state is None:
        life.facts = replace(life.facts, stored_state="brooding")
    else:
        life.facts = replace(life.facts, lease=Lease("w", 99), calls=(local("lost"),))
    return life


def changed(life: Life, **facts: Any) -> Life:
    """Return the life with facts that no sequence of triggers reaches."""
    life.facts = replace(life.facts, **facts)
    return life


def two_results(life: Life) -> Life:
    for call in life.facts.open_calls:
        if call.is_local:
            life.start(call.call_id)
            life.finish(call.call_id)
    return life


def abandoned_compaction() -> Life:
    """Return a pending chat with a client call from before a compaction whose worker was lost."""
    life = compacting(client("a"))
    life.held(t.LeaseExpired)
    return life


def client_left_open() -> Life:
    """Return a pending chat with an open client call and no compaction due, which no sequence of triggers reaches."""
    life = abandoned_compaction()
    return changed(life, compaction=replace(life.facts.compaction, need=Need.none, step=1))


def compacted_unanswered() -> Life:
    """Return a waiting chat whose last message is unanswered: it was stopped, then compacted."""
    life = interrupted()
    life.fire(t.RequestCompaction)
    life.claim()
    life.compact(1)
    return life


def lazily(build: Callable[..., Life], *args: Any, **limits: Any) -> Callable[[], Life]:
    return lambda: build(*args, **limits)


def send(life: Life) -> None:
    life.send("more", client_id="k")


def steer(life: Life) -> None:
    life.send("left", when_busy="steer", client_id="k")


def send_now(life: Life) -> None:
    life.send("now", when_busy="interrupt")


def fired(trigger: type[Trigger], **arguments: Any) -> Fire:
    return lambda life: life.fire(trigger, **arguments)


def held(trigger: type[Trigger], **arguments: Any) -> Fire:
    return lambda life: life.held(trigger, **arguments)


def on_head(trigger: type[Trigger], **arguments: Any) -> Fire:
    return lambda life: life.fire(trigger, queued_id=life.facts.queue[0].id, **arguments)


def erase(life: Life) -> None:
    blank = replace(life.messages[0], parts=(), erased=True)
    life.fire(t.MessageErased, erasing=Erasing(messages=(blank,)))


def handed_back(state: ChatState) -> Life:
    """Return a chat whose worker stopped in the middle of the job of `state`."""
    life = unsettled() if state is S.interrupted else standing(state)
    life.held(t.Released)
    return life


def folding(**limits: Any) -> Life:
    """Return a chat with a running attempt at a summary."""
    life = compacting(**limits)
    life.attempt()
    return life


def waiting_for_a_retry() -> Life:
    life = streaming()
    life.discard()
    return life


def started(state: ChatState) -> Life:
    """Return a chat in `state` whose call, if any, has started."""
    life = standing(state)
    for call in life.facts.calls:
        life.start(call.call_id)
    return life


def finished(*calls: ToolCall, queue: bool = False, tokens: int | None = None, **limits: Any) -> Life:
    """Return a chat whose local calls have ended, and are not concluded."""
    life = two_results(executing(*calls, tokens=tokens, **limits))
    return queued(life) if queue else life


def crowded(**limits: Any) -> Life:
    """Return a pending chat whose new message and history exceed the window."""
    life = streaming(**limits)
    life.reply(tokens=60)
    life.send("word " * 40)
    return life


def out_of_steps(*, queue: bool = False) -> Life:
    """Return a pending chat with its client's results and no step left for the model."""
    life = asking(max_steps=1)
    if queue:
        life.send()
    life.submit()
    return life


def stopped(*, promote: bool) -> Life:
    """Return an unsettled chat with queued messages."""
    life = queued(streaming(promote_after_interrupt=promote))
    life.interrupt()
    return life


def steered() -> Life:
    """Return an unsettled chat that will answer another message next."""
    life = streaming()
    life.send("now", when_busy="interrupt")
    return life


def rested() -> Life:
    """Return a chat that compacts after its final step, then rests."""
    return compacting(after_final_step="rest")


def overdue(*calls: ToolCall) -> Life:
    """Return a chat whose client missed the deadline."""
    life = asking(*calls)
    life.wait(1)
    return life


def archived(state: ChatState) -> Life:
    life = standing(state)
    life.fire(t.Archived)
    return life


def on_last(trigger: type[Trigger]) -> Fire:
    return lambda life: life.fire(trigger, queued_id=life.facts.queue[-1].id)


def with_queue(state: ChatState) -> Life:
    """Return a life in `state` with two queued messages."""
    if state in (S.interrupted, S.error):
        life = queued(streaming(), "later", "last")
        if state is S.error:
            life.fail()
        else:
            life.interrupt()
            life.settle(life.partial())
        return life
    return queued(standing(state), "later", "last")


def steering(life: Life, *texts: str) -> Life:
    """Return a life with messages that steer its turn, two by default, and one that does not."""
    life.send("later")
    for text in texts or ("left", "right"):
        life.send(text, when_busy="steer")
    return life


def scheduled(life: Life, **fields: Any) -> Life:
    life.fire(t.Schedule, message=replace(SCHEDULED, **fields))
    return life


def wake(life: Life) -> None:
    life.fire(t.ScheduleFired, message=life.facts.schedules[0])


ENDED = "turn_finished"
TAKEN = "dequeue:taken message"
STEERED = "dequeue:steered message dequeue:steered message"
JOINED = "message message queue"
PLANNED = "call:planned:at_most_once"
ASKED = "call:planned:client"
NO_FUNDS = Funds((StoredBudget(owner="anna", tokens=0),))
LEASED = (S.streaming, S.executing_tools, S.compacting)


def cases() -> Iterator[Case]:
    """Yield a case for every row of the table, in its order."""
    yield from from_the_client()
    yield from around_schedules()
    yield from around_the_queue()
    yield from from_the_holder()
    yield from after_a_step()
    yield from after_a_compaction()
    yield from stopping()
    yield from from_the_clock()
    yield from administration()


def from_the_client() -> Iterator[Case]:
    yield Case(Life, Life.create, "profile", "status")

    for at in (S.waiting, S.error, S.interrupted):
        yield Case(lazily(standing, at), send, "message receipt", "message status")
    for at in (S.error, S.interrupted):
        yield Case(lazily(with_queue, at), send, f"receipt enqueue {TAKEN}", "queue message queue status")
        yield Case(lazily(with_queue, at), steer, f"receipt enqueue:steer move {TAKEN}", "queue message queue status")
    yield Case(unsettled, send, "receipt enqueue", "queue")
    yield Case(unsettled, steer, "receipt enqueue:steer", "queue")
    yield Case(unsettled, send_now, "enqueue", "queue")
    for at in BUSY:
        yield Case(lazily(standing, at), send, "receipt enqueue", "queue")
        yield Case(lazily(standing, at), send_now, "enqueue", "queue status")
        yield Case(lazily(with_queue, at), steer, "receipt enqueue:steer move", "queue")

    answered = ("call:succeeded message", "message tool_result")
    yield Case(asking, Life.submit, answered[0], f"{answered[1]} status")
    yield Case(lazily(asking, client("a"), delegated("b", 1)), Life.submit, *answered)

    for at in BUSY:
        yield Case(lazily(standing, at), Life.interrupt, "reason", "status")
    yield Case(steered, Life.interrupt, "reason", "")

    for at in (S.interrupted, S.error):
        yield Case(lazily(with_queue, at), fired(t.Resume), TAKEN, "message queue status")
        yield Case(lazily(standing, at), fired(t.Resume), "", "status")
    yield Case(compacted_unanswered, fired(t.Resume), "", "status")

    yield from edits()

    for at in (S.waiting, S.error, S.interrupted):
        yield Case(lazily(standing, at), fired(t.RequestCompaction), "", "status")
    yield Case(waiting, fired(t.ClearContext), "message boundary:clear", "message")
    for at in (S.error, S.interrupted):
        yield Case(lazily(standing, at), fired(t.ClearContext), "message boundary:clear", "message status")


def edits() -> Iterator[Case]:
    first = "m1"
    lost = {
        S.streaming: ("usage cut message lease:dropped", "attempt_discarded history_reset message status"),
        S.executing_tools: ("cut call:cancelled message lease:dropped", "history_reset message status"),
        S.compacting: ("cut message lease:dropped", "history_reset message status"),
        S.requires_action: ("cut call:cancelled message", "history_reset message status"),
        S.pending: ("cut message", "history_reset message"),
    }
    for at in (S.waiting, *BUSY, S.error, S.interrupted):
        writes, events = lost.get(at, ("cut message", "history_reset message status"))
        yield Case(lazily(standing, at), lambda life: life.edit(first), writes, events)


def around_schedules() -> Iterator[Case]:
    fires = "schedule:fired schedule:dropped"
    for at in S:
        yield Case(lazily(standing, at), fired(t.Schedule, message=SCHEDULED), "schedule")
        yield Case(lambda at=at: scheduled(standing(at)), fired(t.Unschedule, schedule_id="s"), "schedule:dropped")
    for at in (S.waiting, S.error, S.interrupted):
        yield Case(lambda at=at: scheduled(standing(at)), wake, f"{fires} message", "message status")
    for at in (S.error, S.interrupted):
        writes = f"{fires} enqueue {TAKEN}"
        yield Case(lambda at=at: scheduled(with_queue(at)), wake, writes, "queue message queue status")
        steers = f"{fires} enqueue:steer move dequeue:taken message"
        yield Case(
            lambda at=at: scheduled(with_queue(at), when_busy="steer"), wake, steers, "queue message queue status"
        )
    for build in (unsettled, *(partial(standing, at) for at in BUSY)):
        yield Case(lambda build=build: scheduled(build()), wake, f"{fires} enqueue", "queue")
        yield Case(lambda build=build: scheduled(build(), when_busy="skip"), wake, fires)
        yield Case(lambda build=build: scheduled(build(), when_busy="steer"), wake, f"{fires} enqueue:steer", "queue")


def around_the_queue() -> Iterator[Case]:
    for at in (*BUSY, S.interrupted, S.error):
        yield Case(lazily(with_queue, at), on_head(t.EditQueued, parts=text_parts("changed")), "enqueue", "queue")
        yield Case(lazily(with_queue, at), on_head(t.DeleteQueued), "dequeue:deleted", "queue")
    for at in BUSY:
        yield Case(lazily(with_queue, at), on_last(t.PromoteQueued), "move", "queue status")
    yield Case(lambda: queued(unsettled()), on_head(t.PromoteQueued), "", "")
    for at in (S.interrupted, S.error):
        writes, events = f"move {TAKEN}", "queue message queue status"
        yield Case(lazily(with_queue, at), on_last(t.PromoteQueued), writes, events)


def from_the_holder() -> Iterator[Case]:
    yield Case(lazily(handed_back, S.executing_tools), Life.claim, "lease", "status")
    yield Case(lazily(handed_back, S.compacting), Life.claim, "lease", "status compaction")
    yield Case(client_left_open, Life.claim, "", "action_required status")
    yield Case(lazily(out_of_steps, queue=True), Life.claim, TAKEN, f"{ENDED} message queue")
    yield Case(lazily(out_of_steps), Life.claim, "", f"status {ENDED}")
    yield Case(crowded, Life.claim, "lease", "status compaction")
    yield Case(pending, Life.claim, "lease", "status")
    yield Case(lambda: steering(pending()), Life.claim, f"lease {STEERED}", f"{JOINED} status")
    yield Case(lazily(handed_back, S.interrupted), Life.claim, "lease", "")

    for life in (waiting_for_a_retry, compacting):
        yield Case(life, held(t.AttemptStarted, funds=NO_FUNDS), "lease:dropped", "status")
    yield Case(waiting_for_a_retry, Life.attempt, "", "")
    yield Case(lambda: steering(waiting_for_a_retry()), Life.attempt, STEERED, JOINED)
    yield Case(compacting, Life.attempt, "", "compaction")
    yield Case(streaming, Life.discard, "usage", "attempt_discarded retry")
    yield Case(streaming, Life.overflow, "usage", "attempt_discarded status")
    yield Case(folding, Life.discard, "usage", "retry")

    yield Case(lazily(streaming, fallbacks=1), Life.fall_back, "usage fallback", "attempt_discarded retry")
    yield Case(lazily(folding, fallbacks=1), Life.fall_back, "usage fallback", "retry")

    yield Case(executing, lambda life: life.start("a"), "call:started", "")
    yield Case(executing, lambda life: life.finish("a"), "call:succeeded message", "message tool_result")


def after_a_step() -> Iterator[Case]:
    reply, both = "message usage", (local("a"), client("b", 1, within=60))
    reply_and_start, planned = f"{reply} call:started:at_most_once", f"{PLANNED} {ASKED}"
    three = (local("a"), local("c", 1), client("b", 2, within=60))
    yield Case(
        streaming, lambda life: life.reply(*three, starts=("a",)), f"{reply_and_start} {planned}", "message status"
    )
    yield Case(streaming, lambda life: life.reply(tokens=80), reply, "message status")
    asks, asked = f"{reply} {ASKED} {ASKED} deadline lease:dropped", "message action_required status"
    yield Case(streaming, lambda life: life.reply(client("b", within=60)), asks, asked)
    yield Case(streaming, lambda life: life.reply(refused=True), reply, "message")
    yield Case(
        lambda: steering(streaming()), lambda life: life.reply(refused=True), f"{reply} {STEERED}", f"message {JOINED}"
    )
    next_turn = f"message {ENDED} message queue status"
    yield Case(lambda: steering(streaming()), Life.reply, f"{reply} {TAKEN} lease:dropped", next_turn)
    events = f"message {ENDED} message queue status"
    yield Case(lazily(with_queue, S.streaming), Life.reply, f"{reply} {TAKEN} lease:dropped", events)
    yield Case(streaming, Life.reply, f"{reply} lease:dropped", f"message status {ENDED}")

    conclude = held(t.ToolsFinished)
    yield Case(lazily(finished, tokens=80), conclude, "", "status compaction")
    yield Case(lazily(finished, *both), conclude, f"{ASKED} deadline lease:dropped", "action_required status")
    yield Case(
        lazily(finished, queue=True, max_steps=1), conclude, f"{TAKEN} lease:dropped", f"{ENDED} message queue status"
    )
    yield Case(lazily(finished, max_steps=1), conclude, "lease:dropped", f"status {ENDED}")
    yield Case(lazily(finished, tokens=79), conclude, "", "status compaction")
    yield Case(lambda: steering(finished(tokens=50), "word " * 40), conclude, "", "status compaction")
    yield Case(finished, conclude, "", "status")
    yield Case(lambda: steering(finished()), conclude, STEERED, f"{JOINED} status")


def after_a_compaction() -> Iterator[Case]:
    done = "compaction message compaction compaction"
    boundary = "usage message boundary:compaction message"
    failure = ("usage", "compaction")
    for fire, (writes, events) in ((Life.compact, (boundary, done)), (Life.fail_to_compact, failure)):
        with_client = lazily(compacting, client("a", within=60))
        yield Case(with_client, fire, f"{writes} {ASKED} deadline lease:dropped", f"{events} action_required status")
        yield Case(lazily(compacting, local("a")), fire, writes, f"{events} status")
        yield Case(lambda: steering(compacting(local("a"))), fire, f"{writes} {STEERED}", f"{events} {JOINED} status")
        yield Case(
            lambda: queued(rested()), fire, f"{writes} {TAKEN} lease:dropped", f"{events} {ENDED} message queue status"
        )
        yield Case(rested, fire, f"{writes} lease:dropped", f"{events} status {ENDED}")
    yield Case(refused, Life.fail_to_compact, "usage lease:dropped", f"compaction error status {ENDED}")


def stopping() -> Iterator[Case]:
    def settle(life: Life) -> None:
        life.settle(life.partial(local("a")))

    writes = "usage message call:planned:at_most_once call:interrupted message"
    events = "message message tool_result"
    yield Case(
        lazily(stopped, promote=True),
        settle,
        f"{writes} {TAKEN} lease:dropped",
        f"{events} {ENDED} message queue status",
    )
    yield Case(unsettled, settle, f"{writes} lease:dropped", f"{events} {ENDED}")

    for at in LEASED:
        given_up = ("call:unknown message ", "message tool_result ") if at is S.executing_tools else ("", "")
        for trigger in (t.Released, t.LeaseExpired):
            yield Case(lazily(started, at), held(trigger), f"{given_up[0]}lease:dropped", f"{given_up[1]}status")
    for trigger in (t.Released, t.LeaseExpired):
        yield Case(unsettled, held(trigger), "lease:dropped", "")

    def partial(life: Life) -> None:
        life.fail(life.partial())

    yield Case(pending, Life.fail, "", f"error status {ENDED}")
    yield Case(streaming, partial, "usage message lease:dropped", f"message error status {ENDED}")
    tools = ("call:cancelled message lease:dropped", f"message tool_result error status {ENDED}")
    yield Case(executing, Life.fail, *tools)
    yield Case(compacting, Life.fail, "lease:dropped", f"error status {ENDED}")
    yield Case(unsettled, partial, "usage message lease:dropped", f"message error status {ENDED}")


def from_the_clock() -> Iterator[Case]:
    answered = ("call:timed_out message", "message tool_result")
    late, later = client("a", within=1), client("b", 1)
    yield Case(lazily(overdue, late), fired(t.DeadlinePassed), answered[0], f"{answered[1]} status")
    yield Case(lazily(overdue, late, later), fired(t.DeadlinePassed), *answered)

    repair = fired(t.Repaired, error=ERROR)
    yield Case(stray, repair, "", "queue error status")
    for at in S:
        rest = {S.waiting: "", S.error: "", S.interrupted: ""}.get(at, f" {ENDED}")
        status = "" if at is S.error else " status"
        opened = "usage " if at is S.streaming else ""
        closed = "interrupted" if at is S.interrupted else "cancelled"
        writes = f"{opened}call:{closed} message lease:dropped"
        yield Case(lazily(stray, at), repair, writes, f"message tool_result error{status}{rest}")


def administration() -> Iterator[Case]:
    for at in (S.waiting, S.requires_action, S.error, S.interrupted):
        yield Case(lazily(standing, at), fired(t.Archived))
        yield Case(lazily(archived, at), fired(t.Unarchived))
    for at in S:
        yield Case(lazily(standing, at), fired(t.Renamed, title="Apples"), "profile")
        yield Case(lazily(standing, at), fired(t.MetadataChanged, metadata={"a": 1}), "profile")
        yield Case(lazily(standing, at), fired(t.MarkedRead))
        yield Case(lazily(standing, at), fired(t.Configured, agent="research", system="Be brief."), "profile")
        yield Case(lazily(standing, at), erase, "erase", "message")
    for at in S:
        yield Case(lazily(standing, at), fired(t.Imported))


def first_match(draft: Draft[Any]) -> Row | None:
    """Return the first row whose guards hold, without the machine."""
    rows = rows_of(type(draft.trigger), draft.before.place)
    return next((row for row in rows if all(guard(draft) for guard in row.when)), None)


def row_of(case: Case) -> tuple[Row, Life, Facts]:
    """Fire a case; return its row, the life after it and the facts before."""
    life = case.build()
    before, asked = life.facts, len(life.asked)
    case.fire(life)
    assert len(life.asked) == asked + 1, "a case fires one trigger"
    facts, trigger, arguments = life.asked[-1]
    row = first_match(Draft(facts, *trigger_of(trigger, arguments)))
    assert row is not None
    return row, life, before


def name_of(case: Case) -> str:
    row, _, _ = row_of(case)
    return f"{row.trigger.name}-{row.source}-{row.target}-{'-'.join(guard.__name__ for guard in row.when)}"
