"""A chat that a worker holds, for tests of its jobs."""

from collections.abc import Sequence
from typing import Any

from tests.engine.shelf import Shelf, stands

from support.runtimes import only_agent, runtime_of
from turnwise import Message, Settings
from turnwise.engine.isolation.tasks import Tasks
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.prompt.hooks import Hooks
from turnwise.states.facts import Facts, Lease, StepFacts
from turnwise.states.names import ChatState, Stage
from turnwise.testing import ManualClock


def streams(**more: Any) -> Facts:
    """Return the facts of a chat whose third step is in its second attempt, held by worker `w`."""
    known: dict[str, Any] = {
        "lease": Lease("w", 1),
        "step": StepFacts(number=3, attempt=2, stage=Stage.asking, attempt_open=True),
    }
    return stands(ChatState.streaming, **known | more)


def leased_chat(
    messages: Sequence[Message] = (),
    *,
    facts: Facts | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
    model: Any = None,
    tools: Sequence[Any] = (),
) -> tuple[LeasedChat, Shelf]:
    """Return a chat under token 1, and its store."""
    settings = settings or Settings()
    shelf = Shelf(facts=facts or streams())
    shelf.messages = list(messages)
    runtime = runtime_of(
        shelf.store,
        ManualClock(),
        agents=only_agent(model, tools=tools, settings=settings, hooks=hooks),
        settings=settings,
        broadcaster=shelf.broadcaster,
        tasks=Tasks(close_timeout=0.01),
    )
    return LeasedChat(runtime, shelf.stand, 1), shelf
