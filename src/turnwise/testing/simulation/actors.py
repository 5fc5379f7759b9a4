"""The actors of a simulation: a model, tools and a client, driven by the seed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, partial
from random import Random
from typing import Any, Final

import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.engine.agents.delegate import SUBAGENT, SUBAGENTS, delegate
from turnwise.engine.config.settings import CompactionInput, CompactionResult, CompactionStrategy
from turnwise.engine.isolation.clock import Clock, sleep
from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import Tool, tool
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest, ToolSpec
from turnwise.providers.reply_builder import join
from turnwise.states.calls import ClientTool
from turnwise.states.errors import FatalToolError
from turnwise.states.messages import Message, ReasoningPart, TextPart
from turnwise.states.model_errors import ModelError, ModelErrorKind
from turnwise.states.names import DEFAULT_AGENT
from turnwise.states.usage import Usage
from turnwise.testing.simulation.faults import Faults
from turnwise.testing.strict import faults_in

CLIENT_TOOLS = (
    ClientTool("ask_user", "Asks the user.", {"type": "object"}),
    ClientTool("sign", "Asks the user to sign in time.", {"type": "object"}, deadline=40),
)
CLERK = "clerk"
"""The agent beside the default one."""
SYSTEM_OF_CLERK = "You are the clerk."
SYSTEM_OF_CHAT = "Today"
"""How every system prompt begins that a client gives."""
CONTEXT_LIMIT = 1000
_FAILURES: Final[tuple[ModelErrorKind, ...]] = (
    "overloaded",
    "network",
    "rate_limit",
    "server_error",
    "bad_request",
    "context_overflow",
)
_VALUES: Final = {"integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}
"""What a call brings for an argument of each type of JSON schema; text for all others."""


class Outside(msgspec.Struct):
    """What really happened outside of turnwise, beside what the chats have stored about it."""

    payments: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Starts of the at-most-once tools, by chat and call."""
    keys: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """The idempotency key of each call."""
    approved: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """The calls that a client has allowed, by chat and call."""
    attempts: Counter[tuple[str, int, int]] = msgspec.field(default_factory=Counter)
    """Model calls, by chat, step and attempt."""
    asked: dict[tuple[str, int], tuple[int, str]] = msgspec.field(default_factory=dict)
    """The last attempt of each step and the agent whose model it asked, by chat and step."""
    replies: int = 0
    """How many replies were started: no two say the same words."""
    calm: bool = False
    """Whether models have stopped failing and stalling."""
    faults: list[str] = msgspec.field(default_factory=list)
    """What a strict provider would have refused, and tools that ran as they must not."""

    def ask(self, request: ModelRequest, agent: str) -> None:
        """Note that the model of an agent is asked."""
        self.attempts[request.chat_id, request.step, request.attempt] += 1
        asked = self.asked.get((request.chat_id, request.step), (0, agent))
        self.asked[request.chat_id, request.step] = max(asked, (request.attempt, agent))
        self.replies += 1

    def start(self, context: ToolContext, *, once: bool, asks: bool = False, agent: str | None = None) -> None:
        """Note that a tool, of that agent if one is named, starts, and whether it may."""
        call = (context.chat_id, context.call_id)
        _, asker = self.asked.get((context.chat_id, context.step), (0, agent))
        if agent not in (None, asker):
            self.faults.append(f"{call} of the agent {asker} runs with a tool of {agent}")
        self.payments[call] += once
        if self.keys.setdefault(call, context.idempotency_key) != context.idempotency_key:
            self.faults.append(f"{call} runs again under another key")
        if context.cancelled:
            self.faults.append(f"{call} starts after its interrupt")
        if asks and call not in self.approved:
            self.faults.append(f"{call} starts without approval")


class SimulatedModel:
    """A model that streams, reasons, calls tools, stalls and fails as the seed says."""

    name = "simulated"
    context_limit = CONTEXT_LIMIT

    def __init__(  # noqa: PLR0913 - all but four are options
        self,
        random: Random,
        clock: Clock,
        outside: Outside,
        faults: Faults,
        *,
        agent: str = DEFAULT_AGENT,
        of_service: bool = False,
        provider: str = "simulated",
    ) -> None:
        self.provider = provider
        self._of_service = of_service
        """Whether it calls the tools of a service: it then calls more of them, and knows no prompts."""
        self._random = random
        self._clock = clock
        self._outside = outside
        self._faults = faults
        self._agent = agent
        self._serial = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield a reply, sometimes only a part of one."""
        self._outside.ask(request, self._agent)
        self._look_at(request, self._faults_of_agent(request))
        parts = self._faults.spoil(self._parts(request))
        fails_after = self._random.randrange(len(parts) + 1) if self._is_bad(0.15) else None
        stalls_after = self._random.randrange(len(parts) + 1) if self._is_bad(0.05) else None
        for number, part in enumerate(parts):
            await self._pause()
            await self._faults.act("model")
            if number == stalls_after:
                await anyio.sleep_forever()
            if number == fails_after:
                raise self._error()
            yield part

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return a summary or a title; sometimes it is empty or fails."""
        self._look_at(request)
        await self._pause()
        await self._faults.act("summary")
        if self._is_bad(0.2):
            raise self._error()
        text = "" if self._is_bad(0.1) else f"summary of {len(request.messages)}"
        return join(
            [
                ModelPart("text_delta", text=text),
                ModelPart("finish", stop_reason="end_turn", usage=Usage(input_tokens=5)),
            ]
        )

    def _look_at(self, request: ModelRequest, faults: Iterable[str] = ()) -> None:
        where = f"{request.chat_id} step {request.step} attempt {request.attempt}"
        faults = (*faults_in(request), *faults, *self._foreign_secrets(request))
        self._outside.faults += [f"{where}: {fault}" for fault in faults]

    def _foreign_secrets(self, request: ModelRequest) -> Iterator[str]:
        """Yield what in a request is for another provider alone."""
        for message in request.messages:
            signed = any(isinstance(part, ReasoningPart) and part.signature is not None for part in message.parts)
            if signed and message.provider not in (None, self.provider):
                yield f"{self.provider} gets {message.id}, which {message.provider} has signed"

    def _faults_of_agent(self, request: ModelRequest) -> Iterator[str]:
        """Yield what in a request is another agent's."""
        if self._of_service:
            return
        own = SYSTEM_OF_CLERK if self._agent == CLERK else None
        if request.system != own and not str(request.system).startswith(SYSTEM_OF_CHAT):
            yield f"the agent {self._agent} has the system prompt {request.system!r}"
        if request.tools and (ANSWER_TOOL in [tool.name for tool in request.tools]) is not (self._agent == CLERK):
            yield f"the agent {self._agent} is offered {[tool.name for tool in request.tools]}"

    def _parts(self, request: ModelRequest) -> list[ModelPart]:
        random, parts = self._random, []
        if random.random() < 0.3:
            parts.append(ModelPart("reasoning_delta", text="hm", signature=f"s{self._serial}"))
        word = f"w{self._outside.replies}"
        parts += [ModelPart("text_delta", text=f"{word}.{number} ") for number in range(random.randrange(4))]
        if random.random() < self._chance_of_calls:
            parts += [self._call(request) for _ in range(random.randrange(1, 4))]
        usage = None if random.random() < 0.1 else _used(random.choice([50, 400, 900]))
        return [*parts, ModelPart("finish", stop_reason="end_turn", usage=usage)]

    @property
    def _chance_of_calls(self) -> float:
        often = 0.3 if self._of_service else 0.0
        return often + (0.2 if self._outside.calm else 0.5)

    def _call(self, request: ModelRequest) -> ModelPart:
        self._serial += 1
        random, call_id = self._random, f"call{self._serial}"
        tool, proper = self._wanted(request)
        cut = json.dumps(proper)[:-1]
        chances: list[str | dict[str, Any]] = [*[proper] * (9 if self._of_service else 3), cut, "hopeless", {}]
        arguments = random.choice(chances)
        return ModelPart("tool_call", id=random.choice([call_id, "same"]), name=tool.name, arguments=arguments)

    def _wanted(self, request: ModelRequest) -> tuple[ToolSpec, dict[str, Any]]:
        """Return a tool, and arguments that it takes; one that sees to a subagent is rather called if there is one."""
        random, subagents = self._random, _subagents_in(request)
        seeing = [tool for tool in request.tools if {SUBAGENT, SUBAGENTS} & _properties_of(tool).keys()]
        others = [tool for tool in request.tools if SUBAGENT not in _properties_of(tool)]
        nonsense = ToolSpec("nonsense", "There is no such tool.", {"type": "object"})
        tool = random.choice(seeing if subagents and seeing and random.random() < 0.5 else [*others, nonsense])
        proper = {name: _VALUES.get(kind.get("type"), "it") for name, kind in _properties_of(tool).items()}
        if SUBAGENT in proper:
            proper[SUBAGENT] = random.choice(subagents)
        if SUBAGENTS in proper:
            proper = {SUBAGENTS: random.choices(subagents, k=2)} if subagents and random.random() < 0.5 else {}
        return tool, proper

    def _error(self) -> ModelError:
        return ModelError(self._random.choice(_FAILURES))

    def _is_bad(self, chance: float) -> bool:
        return not self._outside.calm and self._random.random() < chance

    async def _pause(self) -> None:
        if self._is_bad(0.1):
            await sleep(self._clock, self._random.choice([0.5, 20]))
        for _ in range(self._random.randrange(3)):
            await anyio.lowlevel.checkpoint()


def _properties_of(tool: ToolSpec) -> dict[str, Any]:
    properties: dict[str, Any] = tool.schema.get("properties", {})
    return properties


def _subagents_in(request: ModelRequest) -> list[str]:
    """Return the subagents of which the model knows."""
    results = [message.result.output for message in request.messages if message.result is not None]
    return [*dict.fromkeys(str(one["subagent"]) for one in results if isinstance(one, dict) and "subagent" in one)]


def _used(tokens: int) -> Usage:
    """Return the usage of a call; that of a short one has no cost."""
    cost = Decimal(tokens) / 1_000_000 if tokens > 50 else None
    return Usage(input_tokens=tokens, output_tokens=7, cost=cost)


class _Hands(msgspec.Struct, frozen=True):
    """What the tools of one world do."""

    random: Random
    clock: Clock
    outside: Outside
    faults: Faults
    agent: str

    async def pay(self, what: str, context: ToolContext) -> str:
        """Pay for something, once."""
        self.outside.start(context, once=True, agent=self.agent)
        await self._work()
        return f"paid {what}"

    async def transfer(self, what: str, context: ToolContext) -> str:
        """Send something away, once, if the user allows it."""
        self.outside.start(context, once=True, asks=True, agent=self.agent)
        await self._work()
        return f"sent {what}"

    async def note(self, what: str, context: ToolContext) -> str:
        """Note something down; the same key notes it once."""
        self.outside.start(context, once=False, agent=self.agent)
        await self._work()
        return f"noted {what}"

    async def recall(self, context: ToolContext) -> str | None:
        """Sometimes find what became of a call that a crash cut off."""
        await self.faults.act("reconcile")
        return f"{context.call_id} is done" if self.random.random() < 0.5 else None

    async def look(self, what: str, context: ToolContext) -> dict[str, Any]:
        """Look at something."""
        self.outside.start(context, once=False, agent=self.agent)
        context.report("looking")
        await self._work()
        return {"seen": what}

    async def _work(self) -> None:
        """Take some time, then succeed or fail."""
        for _ in range(self.random.randrange(4)):
            await anyio.lowlevel.checkpoint()
        if self.random.random() < 0.3:
            await sleep(self.clock, self.random.choice([1, 20, 50]))
        await self.faults.act("tool")
        if self.random.random() < 0.1:
            raise ValueError("the tool failed")
        if self.random.random() < 0.02:
            raise FatalToolError("the tool gave up")


@cache
def _declared() -> list[Tool]:
    """Return the tools without their functions: to read their type hints takes longer than some worlds live."""
    unbound: Any = None
    return [
        tool()(partial(_Hands.pay, unbound)),
        tool(policy="ask")(partial(_Hands.transfer, unbound)),
        tool(crash="at_least_once")(partial(_Hands.note, unbound)),
        tool(parallel_safe=True)(partial(_Hands.look, unbound)),
    ]


def simulated_tools(
    random: Random, clock: Clock, outside: Outside, faults: Faults, *, agent: str = DEFAULT_AGENT
) -> list[Tool]:
    """Return an agent's tools, of each kind: at most once, at least once, one that only looks, and subagents."""
    hands = _Hands(random, clock, outside, faults, agent)
    recalls = dict.fromkeys(("pay", "note"), hands.recall)
    own = [
        dataclasses.replace(one, run=getattr(hands, one.name), reconcile=recalls.get(one.name)) for one in _declared()
    ]
    return [*own, delegate(DEFAULT_AGENT), delegate(DEFAULT_AGENT, background=True)]


def simulated_clerk(random: Random, clock: Clock, outside: Outside, faults: Faults) -> Agent:
    """Return a second agent, to which chats are given in mid-turn, too: it answers in a form."""
    return Agent(
        CLERK,
        SimulatedModel(random, clock, outside, faults, agent=CLERK),
        system=SYSTEM_OF_CLERK,
        tools=simulated_tools(random, clock, outside, faults, agent=CLERK),
        output={"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
        reminders=[faults.remind],
        prepare_messages=faults.prepare_messages,
    )


def simulated_strategy(random: Random, faults: Faults) -> CompactionStrategy:
    """Return a strategy that keeps the latest messages, folds nothing, or fails."""

    async def fold(messages: Sequence[Message], _budget: CompactionInput) -> CompactionResult | None:
        await anyio.lowlevel.checkpoint()
        await faults.act("strategy")
        chance = random.random()
        if chance < 0.1:
            raise ValueError("the strategy failed")
        if chance < 0.2:
            return None
        latest = messages[-random.randrange(1, 4) :]
        summary = replace(
            messages[-1], role="user", position=0, parts=(TextPart(text=f"strategy folded {len(messages)}"),)
        )
        return CompactionResult(messages=[summary, *latest], usage=Usage(input_tokens=3))

    return fold
