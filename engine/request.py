"""Requests: one model call, made of the history in hand and what the embedding service adds."""

from __future__ import annotations

import inspect
from copy import deepcopy

from turnwise.engine.hold import Hold
from turnwise.engine.hooks import loop_state
from turnwise.engine.prompt import continued, transient
from turnwise.providers.protocol import ModelRequest, Purpose
from turnwise.states.messages import Message


async def build_request(hold: Hold) -> ModelRequest:
    """Return the request for the chat's current step."""
    settings, hooks = hold.desk.settings, hold.desk.hooks
    view = await hold.current_view()
    history = view.messages
    messages = continued(view.to_send(), settings.continue_prompt)
    if hooks.prepare_messages is not None:
        prepared = hooks.prepare_messages([message.model_copy(deep=True) for message in messages])
        messages = await prepared if inspect.isawaitable(prepared) else prepared
    if hooks.reminders and history:
        state = loop_state(hold.facts, history)
        messages += [
            transient("system", f"<reminder>{text}</reminder>", history[-1])
            for produce in hooks.reminders
            for text in produce(state)
        ]
    return request_of(hold, "step", messages)


def request_of(hold: Hold, purpose: Purpose, messages: list[Message]) -> ModelRequest:
    """Return a request with the chat's own system prompt, tools and parameters."""
    profile, step = hold.facts.profile, hold.facts.step
    return ModelRequest(
        purpose=purpose,
        chat_id=hold.chat_id,
        messages=messages,
        step=step.number,
        attempt=step.attempt,
        system=profile.system,
        tools=hold.desk.toolbox.offered(profile.client_tools),
        parameters=deepcopy(dict(hold.desk.settings.parameters)),
    )
