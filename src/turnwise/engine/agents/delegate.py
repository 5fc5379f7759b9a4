"""Tools that delegate tasks to subagents and control the subagents."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal

from turnwise.engine.agents.agent import Agent
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.schemas import check_name
from turnwise.states.names import SubagentAction
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Name

TASK: Final = "task"
"""The argument that holds the task."""

SUBAGENT: Final = "subagent"
"""The argument that names a subagent."""
SUBAGENTS: Final = "subagents"
"""The argument that names some."""
MESSAGE: Final = "message"
"""The argument that holds the message to a subagent."""
STEER: Final = "steer"
"""The argument that says whether the message steers the turn under way."""


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "pattern": "\\S", "description": description}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_TASK: Final = _object((TASK,), task=_text("What is to be done, with everything that the subagent has to know."))


@checked
def delegate(
    agent: Agent[Any, Any] | Name,
    *,
    name: Name | None = None,
    description: str | None = None,
    on_interrupt: Literal["stop", "leave"] = "stop",
    background: bool = False,
) -> Tool:
    """Return a tool that gives a task to a subagent and waits for its answer, or goes on meanwhile.

    The subagent is a chat of its own, with `agent`, the owner and the metadata of its parent. It sees only the task.
    While the parent waits it is in `requires_action`, and no worker is occupied.
    Its usage counts in the budgets of the turn that receives its answer.

    Args:
        agent: the agent of the subagent, or its name; the engine must have it, too.
        name: the tool's name, `ask_` (in the background `start_`) and the agent's by default.
        description: describes the subagent to the model.
        on_interrupt: whether a subagent stops or continues if its parent is interrupted or edited.
        background: whether the tool returns the subagent's id at once. The agent then also has `wait_for_subagents`,
            `message_subagent`, `stop_subagent` and `list_subagents`.

    Raises:
        SettingsError: the name is none that providers take; give another.
    """
    known_as = agent if isinstance(agent, str) else agent.name
    called = name or f"{'start' if background else 'ask'}_{known_as}"
    check_name(f"the tool that gives tasks to agent {known_as!r}", called)
    return Tool(
        name=called,
        description=description or (_STARTS if background else _ASKS).format(known_as),
        schema=_TASK,
        run=_never,
        subagent=known_as,
        subagent_detached=on_interrupt == "leave",
        subagent_action="start" if background else "ask",
    )


_ASKS: Final = (
    "Give a task to the subagent {!r} and wait for its answer. It sees nothing of this conversation but "
    "the task. Several tasks that are given at once are worked on side by side."
)
_STARTS: Final = (
    "Give a task to the subagent {!r}, who works on it in the background, and get the subagent's id at once. "
    "It sees nothing of this conversation but the task. Hear its answer with wait_for_subagents."
)


def subagent_id(chat_id: str, call_id: str) -> str:
    """Return the id of the chat that answers a delegated call: made of both ids, it sorts near the parent's."""
    return f"c{chat_id[1:12]}{sha256(f'{chat_id}:{call_id}'.encode()).hexdigest()[:14]}"


async def _never(**_: Any) -> None:
    raise AssertionError("a delegated call is answered by a chat, not by this function")


def _background_tool(action: SubagentAction, name: str, description: str, schema: dict[str, Any]) -> Tool:
    return Tool(name=name, description=description, schema=schema, run=_never, subagent_action=action)


_ID: Final = _text("The subagent's id.")
BACKGROUND_TOOLS: Final = (
    _background_tool(
        "wait",
        "wait_for_subagents",
        "Wait until subagents have done their work, and hear what they say.",
        _object(
            (),
            subagents={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": "Their ids; without it, all whose answers you have not heard yet.",
            },
        ),
    ),
    _background_tool(
        "message",
        "message_subagent",
        "Tell a subagent something more; it answers in its next turn. Hear its answer with wait_for_subagents.",
        _object(
            (SUBAGENT, MESSAGE),
            subagent=_ID,
            message=_text("What it is to know or to do."),
            steer={"type": "boolean", "description": "Whether it reads this at once, in the middle of its work."},
        ),
    ),
    _background_tool("stop", "stop_subagent", "Stop a subagent's work.", _object((SUBAGENT,), subagent=_ID)),
    _background_tool("list", "list_subagents", "List your subagents, their tasks and how far they are.", _object(())),
)
"""The further tools of an agent that starts subagents in the background."""
