"""A model checker: explores the pure table from a chat's creation on, breadth first, until no new state appears.

Facts are reduced to values that the table distinguishes: counts have small limits; texts, times and amounts are
dropped. So the graph is small, and every edge is a real decision. A problem comes with its shortest trace.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace
from tests.life.model_checker_features import Feature
from tests.life.model_checker_moves import DUE, HELLO, WINDOW, Move, moves_from, repairs_of, unlikely_moves_from

from support.life import BLANK, ERROR, NOW
from turnwise.states import triggers as t
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision, decide, legal_triggers
from turnwise.states.errors import BrokenInvariant, StaleLease, TurnwiseError
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, StepFacts, TurnFacts
from turnwise.states.invariants import broken_invariants
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import CallStatus, ChatState, Stage
from turnwise.states.step_calls import StepCalls
from turnwise.states.table import triggers_in
from turnwise.states.triggers import Trigger
from turnwise.states.writes import DropLease, DropQueued, GrantLease, InsertMessage, PutCall

Key = tuple[Hashable, ...]
_STEP = 2
_QUEUE = tuple(QueuedMessage(id=f"m{place}", parts=HELLO, accepted_at=NOW) for place in range(1, 9))
_RUNNING_OUT = (t.Released, t.LeaseExpired)


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of the graph: a move, and its result."""

    move: Move
    target: Key


@dataclass(slots=True)
class Exploration:
    """The reachable graph of a chat under some limits, and its problems."""

    feature: Feature = field(default_factory=Feature)
    problems: list[str] = field(default_factory=list)
    """Each with its trace, shortest first."""
    transitions: int = 0
    fired: set[tuple[type[Trigger], str, ChatState]] = field(default_factory=set)
    """The matched rows, as trigger, source and target."""
    longest: int = 0
    """The most moves of a worker until a chat rests, for any answers of model and tools."""
    _places: dict[Key, Facts] = field(default_factory=dict)
    _steps: dict[Key, list[Step]] = field(default_factory=dict)
    _found_by: dict[Key, tuple[Key, Move]] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """The number of states of the graph."""
        return len(self._places)

    def trace(self, key: Key) -> list[str]:
        """Return the shortest trace to a state, one line per move."""
        lines: list[str] = []
        while key in self._found_by:
            source, move = self._found_by[key]
            lines.append(self._line(source, move, key))
            key = source
        return lines[::-1]

    def is_under(self, circumstance: str, move: Move) -> bool:
        """Return whether the move is possible under that circumstance."""
        return move.circumstance == circumstance or [*self.feature.under(move)] == [move]

    def progress(self, steps: Iterable[Step], circumstance: str) -> Iterator[Step]:
        """Yield the steps of a continuing worker under that circumstance."""
        return (step for step in steps if step.move.kind == "progress" and self.is_under(circumstance, step.move))

    def _line(self, source: Key, move: Move, target: Key) -> str:
        return f"  {move!s:<60} {_summary(self._places[source])} -> {_summary(self._places[target])}"

    def _report(self, problem: str, key: Key, *then: str) -> None:
        self.problems.append("\n".join([problem, *self.trace(key), *then]))


def explore(feature: Feature | None = None, *, stop_at: int = 3, **limits: object) -> Exploration:
    """Explore the table with one feature; stop after `stop_at` problems."""
    feature = feature or Feature()
    found = Exploration(feature)
    small = {"max_steps": 2, "max_reentries": 1}
    bounds = Limits(**{**small, **feature.limits, **limits})  # type: ignore[arg-type]
    start = (key_of(BLANK), feature.key(BLANK), None)
    found._places[start] = BLANK
    waiting = deque([start])
    look_again = 100
    while waiting and len(found.problems) < stop_at:
        key = waiting.popleft()
        waiting += _explore_one(found, key, bounds)
        if len(found._steps) == look_again and not found.problems:  # a circle is there as soon as its places are
            look_again *= 2
            _find_endless_runs(found)
    if not found.problems:
        _find_endless_runs(found)
    return found


def _explore_one(found: Exploration, key: Key, limits: Limits) -> Iterator[Key]:
    facts, feature = found._places[key], found.feature
    found._steps[key] = []
    triggers, accepted, (*_, known) = {*triggers_in(facts.place)} - {*feature.without}, set[str](), key
    token = facts.lease.token if facts.lease else None
    moves = [*moves_from(facts, room=limits.queue_limit, tools=feature.tools), *feature.moves(facts, token)]
    tried = [(facts, each) for move in moves if move.trigger in triggers for each in feature.under(move)]
    if facts.version and not facts.archived:
        tried += repairs_of(facts)
    for before, move in tried:
        decision, problems = _tried(before, move, limits)
        if decision is not None:
            problems += feature.wrong_with(known, before, move, decision)
            found.transitions += 1
            source = "new" if decision.source is None else "unknown" if before.stored_state else decision.source
            found.fired.add((decision.trigger, source, decision.target))
            after = feature.keep(decision.facts, canonical(decision.facts))
            target = (key_of(after), feature.key(after), feature.expected(known, move))
            found._steps[key].append(Step(move, target))
            if target not in found._places:
                found._places[target] = after
                found._found_by[target] = (key, move)
                yield target
            if before is facts:
                accepted.add(move.trigger.name)
        for problem in problems:
            found._report(problem, key, f"  {move!s:<60} {_summary(before)} -> {decision.target if decision else '?'}")
    for problem in [*_wrongly_named(facts, feature, accepted, limits), *_dead_end(found, key)]:
        found._report(problem, key)


def _wrongly_named(facts: Facts, feature: Feature, accepted: set[str], limits: Limits) -> Iterator[str]:
    """Yield differences between the listed possible triggers and the accepted ones."""
    named = set(legal_triggers(facts)) - {trigger.name for trigger in feature.without}
    missing, token = named - accepted, facts.lease.token if facts.lease else None
    limits = replace(limits, fallbacks=len(facts.turn.fallback_from) + 1, queue_limit=len(facts.queue) + 1)
    accepted |= {
        move.trigger.name
        for move in ((*unlikely_moves_from(facts), *feature.moves(facts, token)) if missing else ())
        if move.trigger.name in missing and _tried(facts, move, limits)[0] is not None
    }
    if named - accepted:
        yield f"{', '.join(sorted(named - accepted))}: named as possible, and refused whatever they bring along"
    if accepted - named:
        yield f"{', '.join(sorted(accepted - named))}: accepted, and not named as possible"


def _tried(facts: Facts, move: Move, limits: Limits) -> tuple[Decision | None, list[str]]:
    """Make a move; return its result unless refused, and its problems."""
    try:
        decision = decide(facts, move.trigger, **{"now": NOW, "limits": limits, **move.arguments})
    except BrokenInvariant as broken:
        return None, [f"{move} breaks {', '.join(broken.invariants)}"]
    except StaleLease:
        return None, [] if move.stale or facts.lease is None else [f"{move} is refused to the holder"]
    except TurnwiseError:
        return None, []
    except Exception as error:  # noqa: BLE001 - the trace leads to any error
        return None, [f"{move} raises {type(error).__name__}: {error}"]
    return decision, [*_wrong_with(facts, move, decision)]


def _wrong_with(before: Facts, move: Move, decision: Decision) -> Iterator[str]:
    """Yield broken invariants of a decision, and writes that differ from its facts."""
    after, writes = decision.facts, decision.writes
    if move.stale:
        yield f"{move} is taken"
    if after.version != before.version + 1:
        yield f"{move} makes version {after.version} of version {before.version}"
    for promise in broken_invariants(after):
        yield f"{move} breaks {promise}"
    if after.resting and after.step.stage is not Stage.done:
        yield f"after {move} the chat rests, but its step is {after.step.stage}"
    if move.trigger in _RUNNING_OUT and after.lease is not None:
        yield f"after {move} the chat is still held"
    granted = [write.lease for write in writes if isinstance(write, GrantLease)]
    dropped = any(isinstance(write, DropLease) for write in writes)
    held = granted[-1] if granted and not dropped else None if dropped else before.lease
    if held != after.lease and move.trigger is not t.Repaired:
        yield f"after {move} the store holds the lease {held}, but the facts say {after.lease}"
    yield from _wrong_with_queue(before, move, decision)
    yield from _wrong_with_calls(before, move, decision)


def _wrong_with_queue(before: Facts, move: Move, decision: Decision) -> Iterator[str]:
    waits = [queued.id for queued in before.queue]
    gone = {write.id: write.why for write in decision.writes if isinstance(write, DropQueued)}
    said_ = [
        write.message.id
        for write in decision.writes
        if isinstance(write, InsertMessage) and write.message.role == "user" and not write.message.synthetic
    ]
    still = [queued.id for queued in decision.facts.queue]
    sent = move.trigger is t.SendMessage or (move.trigger is t.ScheduleFired and decision.facts.serial > before.serial)
    new = [f"m{decision.facts.serial}"] if sent else []
    for message_id in [*waits, *new]:
        places = still.count(message_id) + said_.count(message_id) + (gone.get(message_id) == "deleted")
        if places != 1:
            yield f"after {move} message {message_id} is in {places} places"
    if move.trigger is t.SendMessage and still and decision.facts.state is ChatState.waiting:
        yield f"after {move} nobody will take the queue"


def _wrong_with_calls(before: Facts, move: Move, decision: Decision) -> Iterator[str]:
    after = {call.call_id: call for call in decision.facts.calls}
    put = {write.call.call_id: write.call for write in decision.writes if isinstance(write, PutCall)}
    results = [
        write.message.result.call_id
        for write in decision.writes
        if isinstance(write, InsertMessage) and write.message.result is not None
    ]
    planned = [*getattr(move.arguments.get("reply"), "calls", ())]
    cut = move.trigger is t.EditMessage
    for call in [*before.open_calls, *planned]:
        now = after.get(call.call_id) or put.get(call.call_id)
        ended = now is not None and not now.open
        if now is None or (call.call_id not in after and now.open):
            yield f"after {move} nobody knows of the open call {call.call_id}"
        elif results.count(call.call_id) != (ended and not cut):
            yield f"after {move} call {call.call_id} is {now.status} with {results.count(call.call_id)} results"
    if move.trigger is t.StepFinished and before.open_calls:
        yield f"the model was asked while {[call.call_id for call in before.open_calls]} lacked results"
    once = {call.call_id for call in before.calls if call.crash == "at_most_once" and call.is_local}
    for call in before.calls:
        has_started = put.get(call.call_id, call).status is CallStatus.started and call.call_id in put
        if has_started and call.call_id in once and call.status is CallStatus.started:
            yield f"{move} starts {call.call_id} a second time"
    if decision.facts.state is ChatState.pending:
        left = [name for name in once & after.keys() if after[name].status is CallStatus.started]
        if left:
            yield f"after {move} a call of {left} may start a second time"


def _dead_end(found: Exploration, key: Key) -> Iterator[str]:
    """Yield whether a worker has nothing to do in an active chat, or a resting chat can never move again."""
    wanted = "outside" if found._places[key].resting else "progress"
    onwards = [step for step in found._steps[key] if step.target != key and step.move.trigger is not t.Archived]
    for circumstance in found.feature.circumstances if wanted == "progress" else ("",):
        if not any(step.move.kind == wanted for step in onwards if found.is_under(circumstance, step.move)):
            yield f"a dead end: no {wanted} move leads on{circumstance and f', {circumstance}'}"


def _find_endless_runs(found: Exploration) -> None:
    """Find endless runs of a worker: every run has to rest, for any answers of model and tools."""
    for circumstance in found.feature.circumstances:
        _find_endless_runs_under(found, circumstance)


def _find_endless_runs_under(found: Exploration, circumstance: str) -> None:
    ahead: dict[Key, list[Step]] = {
        key: [] if found._places[key].resting else [*found.progress(steps, circumstance)]
        for key, steps in found._steps.items()
    }
    depth: dict[Key, int] = {}
    for start, first in ahead.items():
        path: dict[Key, Iterator[Step]] = {} if start in depth else {start: iter(first)}
        while path:
            key = next(reversed(path))
            step = next(path[key], None)
            if step is None:
                del path[key]
                depth[key] = max((1 + depth[step.target] for step in ahead.get(key, ())), default=0)
            elif step.target in path:
                circle = found._line(key, step.move, step.target)
                found._report("an endless run: the last moves come again and again", key, circle)
                return
            elif step.target not in depth:
                path[step.target] = iter(ahead.get(step.target, ()))
    found.longest = max(found.longest, *depth.values())


def canonical(facts: Facts) -> Facts:
    """Return equivalent facts without anything that the table ignores."""
    settled_step = StepFacts(number=_STEP, stage=facts.step.stage, attempt_open=facts.step.attempt_open)
    compacted = facts.compaction.step == facts.step.number
    return Facts(
        chat_id=facts.chat_id,
        profile=facts.profile,
        state=facts.state,
        version=1,
        settled=facts.settled,
        promote=facts.promote,
        archived=facts.archived,
        lease=Lease("w", 1) if facts.lease else None,
        fence=1,
        serial=len(_QUEUE),
        turn=TurnFacts(
            number=1,
            steps=facts.turn.steps,
            reentries=facts.turn.reentries,
            compacts_no_more=facts.turn.compacts_no_more,
            open=True,
        ),
        step=settled_step,
        calls=StepCalls(_plain(call, f"c{place}") for place, call in enumerate(facts.calls)),
        queue=_QUEUE[: len(facts.queue)],
        history=HistoryFacts(tail=facts.history.tail, foldable=min(facts.history.foldable, 2)),
        compaction=CompactionFacts(
            need=facts.compaction.need,
            step=_STEP if compacted else _STEP - 1,
            unproven=facts.compaction.unproven,
            context_limit=WINDOW,
            next_tokens=WINDOW + 1 if (facts.compaction.next_tokens or 0) > WINDOW else 0,
        ),
        last_error=ERROR if facts.last_error else None,
    )


def _plain(call: ToolCall, call_id: str) -> ToolCall:
    """Return a call as the table sees it; of an ended one only whether it ends the turn."""
    plain = ToolCall(
        call_id=call_id, name=call.name, arguments={}, executor=call.executor, index=call.index, step=_STEP
    )
    if not call.open:
        ends = call.stop_after and call.status is CallStatus.succeeded
        return replace(plain, status=CallStatus.succeeded if ends else CallStatus.failed, stop_after=ends)
    return replace(
        plain,
        status=call.status,
        crash=call.crash,
        stop_after=call.stop_after,
        approval=call.approval,
        within=call.within,
        deadline=DUE if call.deadline else None,
    )


def key_of(facts: Facts) -> Key:
    """Return the identity of canonical facts."""
    turn, step, calls = facts.turn, facts.step, facts.calls
    return (
        facts.version,
        facts.state,
        facts.settled,
        facts.promote,
        facts.archived,
        facts.lease is None,
        facts.last_error is None,
        len(facts.queue),
        (turn.steps, turn.reentries, turn.compacts_no_more),
        (step.stage, step.attempt_open),
        (facts.history.tail, facts.history.foldable),
        (facts.compaction.need, facts.compaction.step, facts.compaction.unproven, facts.compaction.next_tokens),
        tuple((c.executor, c.status, c.crash, c.stop_after, c.approval, c.deadline, c.within) for c in calls),
    )


def _summary(facts: Facts) -> str:
    """Return a readable summary of a chat's facts."""
    if facts.version == 0:
        return "new"
    words = [facts.stored_state or str(facts.state)]
    words += ["unsettled"] * (not facts.settled) + ["archived"] * facts.archived
    words += [f"{len(facts.queue)} queued"] * bool(facts.queue)
    words += [f"{call.call_id} {call.status}" for call in facts.open_calls]
    return f"{words[0]} ({', '.join(words[1:])})" if words[1:] else words[0]
