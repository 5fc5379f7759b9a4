"""Delegation: the tool by which an agent gives a task to a helper, a chat of its own, and waits for its answer."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal

from turnwise.engine.agents.agent import Agent
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.schemas import check_name
from turnwise.states.checked import checked
from turnwise.states.limits import Name

TASK: Final = "task"
"""The argument that holds the task."""

_SCHEMA: Final = {
    "type": "object",
    "properties": {
        TASK: {
            "type": "string",
            "pattern": "\\S",
            "description": "What is to be done, with everything that the helper has to know.",
        }
    },
    "required": [TASK],
    "additionalProperties": False,
}


@checked
def delegate(
    agent: Agent[Any, Any] | Name,
    *,
    name: Name | None = None,
    description: str | None = None,
    on_interrupt: Literal["stop", "leave"] = "stop",
) -> Tool:
    """Return a tool that gives a task to a helper and waits for its answer.

    The helper is a chat of its own, with `agent`. It has the owner and the metadata of the chat that asks; of the
    conversation it sees only the task. While it works the chat rests in `requires_action`, and no worker waits. What
    it uses counts in the budgets of the turn.

    Args:
        agent: who helps, or its name; the engine must have it, too.
        name: the tool's name, `ask_` and the agent's by default.
        description: what the model is told of the helper.
        on_interrupt: whether a helper is stopped if the chat that asks is interrupted or edited, or works on alone.

    Raises:
        SettingsError: the name is none that providers take; give another.
    """
    known_as = agent if isinstance(agent, str) else agent.name
    called = name or f"ask_{known_as}"
    check_name(f"the tool that gives tasks to agent {known_as!r}", called)
    said = description or (
        f"Give a task to the helper {known_as!r} and wait for its answer. It sees nothing of this conversation but "
        "the task. Several tasks that are given at once are worked on side by side."
    )
    return Tool(
        name=called, description=said, schema=_SCHEMA, run=_never, helper=known_as, helper_stays=on_interrupt == "leave"
    )


def helper_id(chat_id: str, call_id: str) -> str:
    """Return the id of the chat that answers a delegated call: the same whoever asks, and near its parent's."""
    return f"c{chat_id[1:12]}{sha256(f'{chat_id}:{call_id}'.encode()).hexdigest()[:14]}"


async def _never(**_: Any) -> None:
    raise AssertionError("a delegated call is answered by a chat, and run by nobody")
