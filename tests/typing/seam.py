"""Checked by mypy and pyright and never run: triggers, decisions and writes.

Each wrong line names mypy's code, and stands under its right twin.
"""

from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.states import ChatState, decide
from turnwise.states import actions as a
from turnwise.states import guards as g
from turnwise.states import triggers as t
from turnwise.states.arguments import StepReply
from turnwise.states.draft import Draft
from turnwise.states.facts import Facts, Limits
from turnwise.states.names import Party, StopReason
from turnwise.states.table import _on

REPLY = StepReply(parts=())


def fire(unit: UnitOfWork) -> None:
    """Fire triggers, as jobs and commands do."""
    unit.fire(t.StepFinished(token=1, reply=REPLY))
    unit.fire(t.StepFinished(token=1))  # wrong: call-arg
    unit.fire(t.StepFinished(reply=REPLY))  # wrong: call-arg
    unit.fire(t.StepFinished(token=b"1", reply=REPLY))  # wrong: arg-type
    unit.fire(t.StepFinished)  # wrong: arg-type
    unit.fire(t.Renamed(title="a"))
    unit.fire(t.Renamed(title="a", queued_id="m1"))  # wrong: call-arg
    unit.fire(t.Renamed("a"))  # wrong: call-arg
    unit.fire(t.SendMessage(parts=(), when_busy="queue"))
    unit.fire(t.SendMessage(parts=(), when_busy="wait"))  # wrong: arg-type
    unit.fire(t.Interrupt(), reason="enough")
    unit.fire(t.Interrupt(reason="enough"))  # wrong: call-arg


def ask(facts: Facts, at: t.TransitionContext) -> None:
    """Decide by class and by name."""
    decide(facts, t.ToolsFinished(token=1), at)
    decide(facts, t.ToolsFinished(token=1))  # wrong: call-overload
    decide(facts, t.ToolsFinished, token=1, now=at.now, limits=Limits())
    decide(facts, t.ToolsFinished, token=1)  # wrong: call-overload
    decide(facts, "tools_finished", now=at.now, limits=Limits())  # wrong: call-overload


def know(reply: t.StepFinished, claim: t.Claimed) -> Party:
    """Read the trigger's fields."""
    _ = reply.reply.parts, claim.worker
    _ = claim.token  # wrong: attr-defined
    reply.token = None  # wrong: misc
    holder: Party = t.StepFinished.party
    clock: Party = "timer"  # wrong: assignment
    return holder if holder == clock else claim.party


def write(draft: Draft[t.Compacted]) -> None:
    """Change a draft."""
    draft.stop_reason = StopReason.error
    draft.stop_reson = StopReason.error  # wrong: attr-defined
    draft.stop_reason = "error"  # wrong: assignment
    _ = draft.trigger.summary
    _ = draft.trigger.reply  # wrong: attr-defined
    a.commit_boundary(draft)
    a.commit_reply(draft)  # wrong: arg-type
    a.drop_lease(draft)


WAITING, PENDING = ChatState.waiting, ChatState.pending
ROWS = (
    _on(t.SendMessage, WAITING, PENDING, when=(g.settled, g.wants_interrupt), do=(a.enqueue,)),
    _on(t.Resume, WAITING, PENDING, when=(g.wants_interrupt,)),  # wrong: arg-type
    _on(t.Resume, WAITING, PENDING, do=(a.enqueue,)),  # wrong: arg-type
)
