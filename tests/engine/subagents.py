"""Agents with subagents: models that delegate step by step, and a subagent that answers when the test allows it."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from support.gated_model import GatedModel
from turnwise import Agent, Chat, Engine, ModelRequest, Settings, Usage, delegate, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

Step = Callable[[list[Any]], Sequence[Call] | str]
"""Returns the model's next step from the results of the turn so far."""


def lead(*steps: Step) -> ScriptedModel:
    """Return a model that takes these steps in each turn; it does nothing if asked to stay."""

    def replies(request: ModelRequest) -> Reply:
        start = max(place for place, message in enumerate(request.messages) if message.role == "user")
        if request.messages[start].text == "stay":
            return Reply("I stay")
        turn = request.messages[start + 1 :]
        seen = [message.result.output for message in turn if message.result is not None]
        taken = sum(message.role == "assistant" for message in turn)
        action = steps[taken](seen) if taken < len(steps) else f"done: {seen[-1]}"
        return Reply(action) if isinstance(action, str) else Reply(calls=list(action))

    return ScriptedModel(replies)


def asks(*tasks: str, also: Sequence[Call] = ()) -> Step:
    return lambda _seen: [*(Call("ask_research", {"task": task}) for task in tasks), *also]


def starts(*tasks: str) -> Step:
    return lambda _seen: [Call("start_research", {"task": task}) for task in tasks]


def waits(_seen: list[Any]) -> Sequence[Call]:
    return [Call("wait_for_subagents", {})]


def calls(name: str, **arguments: Any) -> Step:
    """Call a tool; `subagent=0` is the first subagent that the turn started."""

    def step(seen: list[Any]) -> Sequence[Call]:
        started = [one["subagent"] for one in seen if isinstance(one, dict) and "subagent" in one]
        own = {key: started[value] if isinstance(value, int) else value for key, value in arguments.items()}
        return [Call(name, own)]

    return step


class Research(GatedModel):
    """A model that repeats the last message; each answer costs one input token more than the one before."""

    def __init__(self, *, held: bool = False) -> None:
        super().__init__(self._found)
        if not held:
            self.gate.set()
        self.answers = 0

    async def working(self, count: int = 1) -> None:
        """Wait until `count` requests are in flight."""
        with anyio.fail_after(60):
            while self.busy < count:  # noqa: ASYNC110 - a model has no event
                await anyio.sleep(0.01)

    def _found(self, request: ModelRequest) -> Reply:
        self.answers += 1
        return Reply(f"found {request.messages[-1].text}", usage=Usage(input_tokens=self.answers, output_tokens=1))


def family(
    model: ScriptedModel,
    research: ScriptedModel | Agent,
    *,
    tools: Sequence[Any] = (),
    settings: Settings | None = None,
    **options: Any,
) -> list[Agent]:
    subagent = research if isinstance(research, Agent) else Agent("research", research)
    return [Agent("lead", model, tools=[delegate(subagent, **options), *tools], settings=settings), subagent]


@tool(policy="ask")
async def buy(book: str) -> str:
    """Buy a book."""
    return f"bought {book}"


def buyer(tools: Sequence[Any] = (buy,)) -> Agent:
    """Return a subagent that asks its client before it buys."""
    return Agent("research", lead(lambda _seen: [Call("buy", {"book": "one"})]), tools=tools)


async def outputs(engine: Engine, chat_id: str) -> list[Any]:
    """Return the results that a chat's model received, in order."""
    return [message.result.output for message in await engine.messages(chat_id) if message.result is not None]


async def inbox_of(engine: Engine, count: int = 1) -> Sequence[Chat]:
    """Return the chats that wait for a client, once there are `count`."""
    with anyio.fail_after(60):
        while len(inbox := (await engine.list_chats(awaiting="client")).items) < count:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)
    return inbox


async def until_awaits(engine: Engine, chat_id: str, awaits: str) -> None:
    with anyio.fail_after(60):
        while (await engine.get_chat(chat_id)).awaits != awaits:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)


async def sent(engine: Engine, **options: Any) -> Chat:
    """Return a new chat of the lead with a first message."""
    chat = await engine.create_chat(agent="lead", **options)
    await engine.send_message(chat.id, "go")
    return chat


async def asked(engine: Engine, **options: Any) -> Chat:
    """Return a new chat of the lead after its first turn."""
    chat = await engine.create_chat(agent="lead", **options)
    await engine.ask(chat.id, "go", timeout=60)
    return await engine.get_chat(chat.id)
