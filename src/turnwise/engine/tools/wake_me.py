"""A tool that lets a model schedule a message to itself."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import tool
from turnwise.states.errors import QueueFull, ToolFailed
from turnwise.states.values.digests import digest

# Described here and not in the docstring: reading docstrings would import griffe with turnwise.
At = Annotated[datetime, Field(description="When, in the future, as ISO 8601 with the offset from UTC.")]
Note = Annotated[str, Field(description="What you want to know then: you see it as a message.")]


@tool(crash="at_least_once", parallel_safe=True)
async def wake_me(at: At, note: Note, context: ToolContext) -> str:
    """Have yourself woken up later in this chat: at that time you get your note as a message, and go on."""
    # After a crash it runs again: under the same id, which replaces the first, or past its time, once that has fired.
    now = context.chat.updated_at
    if at.utcoffset() is None or at <= now:
        raise ToolFailed(f"at must be in the future, with an offset from UTC; it is {now.isoformat()} now")
    try:
        message = await context.schedule(
            f"You asked to be woken up: {note}", at=at, id=f"wake-{digest(context.key)[:16]}"
        )
    except QueueFull as full:
        raise ToolFailed(str(full)) from full
    return f"You will be woken up at {message.due.isoformat()}."
