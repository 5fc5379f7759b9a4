"""An engine for a serving process: its model follows the last message."""

import os
from typing import Any

from pydantic import BaseModel

from turnwise import Agent, Engine, Settings
from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

STORE = "TURNWISE_TALKATIVE_STORE"
"""The environment variable of the store."""


class Judgement(BaseModel):
    """What the agent `judge` answers."""

    guilty: bool
    reason: str


JUDGE: Agent[Any, Judgement] = Agent("judge", output=Judgement)


def reply(request: ModelRequest) -> Reply:  # noqa: PLR0911 - one for each wish
    """Reply as the message asks: `call`, `hang`, `slow`, `endless` (until it is cut), `judge`, or an echo.

    `crawl` halts in the middle of an answer until it is tried again.
    """
    last = next((message for message in reversed(request.messages) if message.role in ("user", "tool")), None)
    if last is None or last.role == "tool":
        return Reply("Booked.", usage=(3, 2))
    text = last.text
    if text.startswith("call"):
        return Reply(calls=[Call("pick_date", {"month": 5}, id=f"call_{last.id}")], usage=(3, 2))
    if text.startswith("hang"):
        return Reply("Never said.", first_delay=600)
    if text.startswith("slow"):
        return Reply(" ".join(f"word{number}" for number in range(60)), chunks=60, delay=0.05, usage=(3, 2))
    if text.startswith("crawl"):
        stall_after = 3 if request.attempt == 1 else None
        return Reply("One two three four five six seven eight.", chunks=5, stall_after=stall_after, usage=(3, 2))
    if text.startswith("endless") and request.messages[-1].role == "user":
        return Reply(" ".join(f"word{number}" for number in range(60)), chunks=60, delay=1, usage=(3, 2))
    if text.startswith("judge"):
        return Reply(calls=[Call(ANSWER_TOOL, {"guilty": False, "reason": "no proof"})], usage=(3, 2))
    return Reply(f"You said: {text}", usage=(3, 2))


def engine_on(store: str) -> Engine:
    """Return an engine with that model, not entered yet."""
    model = ScriptedModel(reply)
    return Engine(store, model=model, agents=[JUDGE], settings=Settings(queue_limit=3, lease=3, renew_every=1))


def served() -> Engine:
    """Return the engine of a process of its own."""
    return engine_on(os.environ[STORE])
