"""System prompts that functions of agents make, each once per turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Final

from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.config.results import Chat, chat_of
from turnwise.engine.isolation.user_code import UserCalls
from turnwise.states.facts import Facts
from turnwise.states.values.plain import type_name, well_formed

_MadeFor = tuple[int, datetime | None, str]
"""A turn's number, its start or resumption, and its agent."""

MOST_KEPT: Final = 1000
"""Chats whose prompt is cached until their turn ends, the latest ones."""


class SystemPrompts:
    """The prompts of running turns, by chat: a turn may go on under another lease."""

    def __init__(self) -> None:
        self._call_prompt: dict[str, tuple[_MadeFor, str]] = {}
        """Each prompt with the turn and agent that it was made for."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._call_prompt)

    async def prompt_of(
        self,
        facts: Facts,
        configuration: Configuration,
        user_calls: UserCalls,
        in_time: Callable[[], AbstractContextManager[None]],
    ) -> str | None:
        """Return a chat's system prompt: its own, or its agent's; a function has to return it `in_time`."""
        own, prompt = facts.profile.system, configuration.system
        if own is not None:
            return own
        if prompt is None or isinstance(prompt, str):
            return prompt
        made_for = (facts.turn.number, facts.turn.started_at, configuration.agent)
        cached = self._call_prompt.get(facts.chat_id)
        if cached is not None and cached[0] == made_for:
            return cached[1]
        with in_time():
            made = await user_calls.run(partial(_call_prompt, prompt, chat_of(facts)), "system", chat_id=facts.chat_id)
        self._call_prompt[facts.chat_id] = made_for, made
        if len(self._call_prompt) > MOST_KEPT:
            del self._call_prompt[next(iter(self._call_prompt))]
        return made

    def forget(self, chat_id: str) -> None:
        """Forget the prompt of a chat whose turn has ended, or that is deleted."""
        self._call_prompt.pop(chat_id, None)


async def _call_prompt(make: Callable[[Chat], str | Awaitable[str]], chat: Chat) -> str:
    result = make(chat)
    text = await result if inspect.isawaitable(result) else result
    if not isinstance(text, str):
        raise TypeError(f"the agent's system prompt has to be text; the function returned {type_name(text)}")
    return well_formed(text)
