"""What is sent to a provider: names and ids that any of them takes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic_ai import messages as theirs

from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.providers.pydantic_ai.request_writer import RequestWriter
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart


@pytest.mark.parametrize(
    ("name", "sent"), [("look", "look"), ("look at", "look_at"), ("", "unnamed"), ("é", "_"), ("a" * 99, "a" * 64)]
)
def test_a_name_that_a_model_made_up_does_not_make_every_later_request_invalid(name: str, sent: str) -> None:
    """Providers check the names in the history, too: one odd call would end the chat for good."""
    call = ToolCallPart(call_id="c", name=name, arguments={})
    result = ToolResultPart(call_id="c", name=name, output="there is no such tool", is_error=True)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    history = [
        Message(id="a", role="assistant", parts=(call,), turn=1, step=1, created_at=at),
        Message(id="t", role="tool", parts=(result,), turn=1, step=1, created_at=at),
    ]
    asking = RequestWriter(
        Origin("openai", ""),
        takes_system=True,
        needs_signature=False,
        marks_cache=False,
        keeps_items=False,
        takes=lambda _: True,
    )
    asked, answered = (message.parts[0] for message in asking.history(history))
    assert isinstance(asked, theirs.ToolCallPart)
    assert isinstance(answered, theirs.ToolReturnPart)
    assert (asked.tool_name, answered.tool_name) == (sent, sent)
