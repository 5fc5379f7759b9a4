"""The clients of a simulation: they act on chats as the seed says, and remember what turnwise answered."""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from random import Random
from typing import Any

import msgspec

from turnwise.engine.engine import Engine
from turnwise.persistence.audit.record import AuditRecord
from turnwise.states import errors
from turnwise.states import triggers as t
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.messages import FilePart, TextPart
from turnwise.states.names import DEFAULT_AGENT
from turnwise.states.values.values import Json
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation.actors import CLERK, SYSTEM_OF_CHAT, Outside
from turnwise.testing.simulation.budgets import Budgets
from turnwise.testing.simulation.readers import AskReading, Reading, StreamReading, TranscriptReading
from turnwise.testing.simulation.schedules import Schedules

REFUSALS = (
    errors.BudgetSpent,
    errors.ChatArchived,
    errors.ChatBusy,
    errors.ConflictingReplay,
    errors.DeadlineExpired,
    errors.IllegalTransition,
    errors.InvalidContent,
    errors.MessageNotFound,
    errors.NothingToCompact,
    errors.QueueFull,
    errors.ToolResultMismatch,
)
"""How a client may be refused; the chat is then as it was."""
MAX_FORKS = 2
NAME = "name"
"""How every title begins that a client gives."""

UNIQUE = re.compile(r"message \d+\.|w\d+\.")
"""Texts that clients and models use once only."""

Deed = Callable[[Engine, str], Awaitable[Any]]


class Clients:
    """All clients of a world, and what they know of its chats."""

    def __init__(
        self,
        random: Random,
        outside: Outside,
        *,
        agents: Sequence[str] = (DEFAULT_AGENT, CLERK),
        clock: ManualClock | None = None,
    ) -> None:
        self._agents = agents
        self.chats: list[str] = []
        self.readings: list[Reading] = []
        self.named: set[str] = set()
        """The chats to which a client gave a title: turnwise gives them none from then on."""
        self.problems: list[str] = []
        """Answers that no client may get, in words."""
        self._random = random
        self._outside = outside
        self._accepted: dict[tuple[str, str], int] = {}
        """The version that accepted each message, by chat and id."""
        self._erased: set[tuple[str, str]] = set()
        """The calls whose results a client erased, by chat and id: other results for them may be accepted."""
        self.unsaid: set[tuple[str, str]] = set()
        """The words that a client erased, by chat: nothing that is stored of it holds them any more."""
        self._files: set[tuple[str, int]] = set()
        """The files that were sent, by chat. Two chats may be sent the same one."""
        self._serial = 0
        self._forks: set[str] = set()
        self._forks_left = MAX_FORKS
        self.schedules = Schedules(random, clock or ManualClock())
        self.budgets = Budgets(random)

    def deed(self) -> Deed:
        """Return the next action of a client."""
        return self._random.choice(self.deeds)

    @property
    def deeds(self) -> Sequence[Deed]:
        """What clients do; the more often it is named, the more often it is done."""
        return [
            *[self.send] * 6,
            *[self.submit] * 4,
            *[self.interrupt] * 2,
            *[self.resume] * 2,
            *[self.change_queue] * 2,
            *[self.renew_context] * 2,
            *[self.configure] * 2,
            *[self.erase] * 2,
            self.edit,
            self.submit_wrongly,
            self.label,
            self.archive,
            self.fork,
            *[self.stream] * 3,
            *[self.ask] * 2,
            *[self.look] * 2,
            *self.schedules.deeds,
            *self.budgets.deeds,
        ]

    async def send(self, engine: Engine, chat_id: str) -> None:
        """Send a message, and sometimes the same again."""
        text = self._next_words()
        client_id = f"k{self._serial}"
        when_busy = self._random.choice(["queue", "steer", "interrupt", "reject"])
        content: list[TextPart | FilePart] = [TextPart(text=text), *self._attached(chat_id)]
        receipt = await engine.send_message(chat_id, content, when_busy=when_busy, client_id=client_id)  # type: ignore[arg-type]
        self._accepted[chat_id, receipt.message_id] = receipt.chat.version
        scribble(receipt.chat)
        if self._random.random() < 0.3:
            again = await engine.send_message(chat_id, content, client_id=client_id)
            if not again.replayed or again.message_id != receipt.message_id:
                self.problems.append(f"{chat_id}: {client_id} was accepted twice")

    async def stream(self, engine: Engine, chat_id: str) -> None:
        """Send a message and stream its turn, sometimes not to the end."""
        when_busy = self._random.choice(["queue", "steer", "interrupt", "reject"])
        stream = StreamReading(chat_id, self._next_words())
        with self._reading(stream):
            events = engine.stream(chat_id, stream.text, when_busy=when_busy)  # type: ignore[arg-type]
            async with aclosing(events):
                async for event in events:
                    stream.seen.append(copy.deepcopy(event))
                    scribble(event)
                    if self._random.random() < 0.03:
                        return
                stream.ended = True

    async def ask(self, engine: Engine, chat_id: str) -> None:
        question = AskReading(chat_id, self._next_words())
        with self._reading(question):
            result = await engine.ask(chat_id, question.text)
            question.result = copy.deepcopy(result)
            scribble(result)

    async def look(self, engine: Engine, chat_id: str) -> None:
        transcript = await engine.transcript(chat_id)
        self.readings.append(TranscriptReading(chat_id, copy.deepcopy(transcript)))
        scribble(transcript)

    @contextmanager
    def _reading(self, reading: StreamReading | AskReading) -> Iterator[None]:
        """Keep what is read inside, unless it is refused."""
        self.readings.append(reading)
        try:
            yield
        except REFUSALS:
            self.readings.remove(reading)
            raise
        finally:
            reading.over = True

    def _attached(self, chat_id: str) -> list[FilePart]:
        """Return a file to send along, sometimes. A chat gets each once: sent again while it is erased, it is lost."""
        number = self._serial // 2
        if self._random.random() >= 0.15 or (chat_id, number) in self._files or chat_id in self._forks:
            return []
        self._files.add((chat_id, number))
        return [FilePart.from_bytes(b"file %d" % number, "text/plain")]

    def _next_words(self) -> str:
        self._serial += 1
        return f"message {self._serial}."

    async def submit(self, engine: Engine, chat_id: str) -> None:
        """Answer the open client calls, the same again, and then something else, which must be refused."""
        calls = [call for call in (await engine.get_chat(chat_id)).open_calls if call.is_client]
        if not calls:
            return
        results = [ToolResult(call.call_id, self._answer(chat_id, call)) for call in calls]
        first = await engine.submit_tool_results(chat_id, results)
        again = await engine.submit_tool_results(chat_id, results)
        if again.receipt_id != first.receipt_id or not again.replayed:
            self.problems.append(f"{chat_id}: the same results were taken twice, as {first} and {again}")
        scribble([calls, results, first, again])
        await self._submit_others(engine, chat_id, calls)

    async def _submit_others(self, engine: Engine, chat_id: str, calls: Sequence[ToolCall]) -> None:
        others = [ToolResult(call.call_id, {"approved": False, "reason": "second thoughts"}) for call in calls]
        try:
            taken = await engine.submit_tool_results(chat_id, others)
        except REFUSALS:
            return
        if all((chat_id, call.call_id) in self._erased for call in calls):
            return
        self.problems.append(f"{chat_id}: other results for answered calls were taken, as {taken}")

    def _answer(self, chat_id: str, call: ToolCall) -> Json:
        if call.approval == "asked":
            chance = self._random.random()
            if chance >= 0.7:
                return False
            self._outside.approved.add((chat_id, call.call_id))
            edited = {name: f"{value}!" if isinstance(value, str) else value for name, value in call.arguments.items()}
            return {"approved": True, "arguments": edited} if chance < 0.2 else True
        return {"said": call.call_id}

    async def submit_wrongly(self, engine: Engine, chat_id: str) -> None:
        await engine.submit_tool_results(chat_id, [ToolResult(self._random.choice(["same", "nobody"]), "other")])

    async def interrupt(self, engine: Engine, chat_id: str) -> None:
        await engine.interrupt(chat_id, reason="the seed said so")

    async def resume(self, engine: Engine, chat_id: str) -> None:
        await engine.resume(chat_id)

    async def edit(self, engine: Engine, chat_id: str) -> None:
        sent = [message for message in await engine.messages(chat_id) if message.role == "user"]
        if sent:
            await engine.edit_message(chat_id, self._random.choice(sent).id, "edited")

    async def erase(self, engine: Engine, chat_id: str) -> None:
        messages = await engine.messages(chat_id)
        if messages:
            chosen = self._random.choice(messages)
            if chosen.result is not None:
                self._erased.add((chat_id, chosen.result.call_id))
            await engine.erase_message(chat_id, chosen.id)
            self.unsaid |= {(chat_id, word) for word in UNIQUE.findall(chosen.text)}

    async def change_queue(self, engine: Engine, chat_id: str) -> None:
        waiting = await engine.queued(chat_id)
        if not waiting:
            return
        queued = self._random.choice(waiting)
        match self._random.randrange(3):
            case 0:
                await engine.edit_queued(chat_id, queued.id, "changed")
            case 1:
                await engine.delete_queued(chat_id, queued.id)
            case _:
                await engine.promote_queued(chat_id, queued.id)

    async def renew_context(self, engine: Engine, chat_id: str) -> None:
        """Have the context compacted or cleared."""
        deed = self._random.choice([engine.request_compaction, engine.clear_context])
        await deed(chat_id)

    async def configure(self, engine: Engine, chat_id: str) -> None:
        """Let another agent answer, or the same, and sometimes give it a system prompt."""
        agent = self._random.choice(self._agents)
        system = self._random.choice([None, f"{SYSTEM_OF_CHAT} is day {self._serial}."])
        await engine.configure(chat_id, agent=agent, system=system)

    async def label(self, engine: Engine, chat_id: str) -> None:
        await engine.rename(chat_id, f"{NAME} {self._serial}")
        self.named.add(chat_id)

    async def archive(self, engine: Engine, chat_id: str) -> None:
        archived = (await engine.get_chat(chat_id)).archived
        await (engine.unarchive(chat_id) if archived else engine.archive(chat_id))

    async def fork(self, engine: Engine, chat_id: str) -> None:
        if self._forks_left:
            self._forks_left -= 1
            version = self._random.randint(1, (await engine.get_chat(chat_id)).version)
            fork = (await engine.fork(chat_id, at_version=version)).id
            self._forks.add(fork)
            self.chats.append(fork)

    def still_wanted(self, chat_id: str, log: Sequence[AuditRecord]) -> list[str]:
        """Return the messages that were accepted and that no client has edited or deleted since."""
        edited = max((record.version for record in log if record.trigger == t.EditMessage.name), default=0)
        deleted = {write.id for record in log for write in record.writes if write.kind == "dequeue:deleted"}
        return [
            message_id
            for (of_chat, message_id), version in self._accepted.items()
            if of_chat == chat_id and version > edited and message_id not in deleted
        ]


def scribble(value: object) -> None:
    """Change all that can be changed of what was handed out, or handed in: it is shared with nothing."""
    match value:
        case dict():
            scribble([*value.values()])
            value["scribbled"] = True
        case list() | tuple():
            for one in value:
                scribble(one)
        case msgspec.Struct():
            scribble([getattr(value, name) for name in value.__struct_fields__])
