"""Scripts that say the same after a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Reply
from turnwise.states.errors import ModelError


def by_step(replies: Sequence[Reply | str]) -> Callable[[ModelRequest], Reply | str]:
    """Return a line for `ScriptedModel` that answers each step of a chat with the reply of its number.

    A script in a list goes on after a crash where it stood. A provider does not: asked for the same step, it answers
    the same. Give each `Call` an id of its own, so that a step that is asked again names the same calls.
    """

    def reply(request: ModelRequest) -> Reply | str:
        if request.step > len(replies):
            message = f"the script has {len(replies)} steps, and the model was asked for step {request.step}"
            raise ModelError("bad_request", message=message)
        return replies[request.step - 1]

    return reply
