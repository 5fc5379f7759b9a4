"""Titles of chats, given in the background: their source, and the title in a model's answer."""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio
import msgspec
from msgspec import structs
from msgspec.structs import replace

from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.config.results import Spending
from turnwise.engine.isolation.clock import time_limit
from turnwise.engine.jobs.reply import complete_text, generate_reply
from turnwise.engine.jobs.request import parameters_for_titles, prepared_for
from turnwise.engine.prompt.history import transient
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.foreign import described
from turnwise.logger import concerning, logger
from turnwise.providers.protocol import Model, ModelReply, ModelRequest
from turnwise.providers.repair_history import HistoryRepair
from turnwise.providers.usage_and_prices import add_reply_cost
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatArchived, ChatNotFound
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, TextPart
from turnwise.states.model_errors import ModelError
from turnwise.states.names import SYSTEM, StopReason
from turnwise.states.triggers import Renamed
from turnwise.states.usage import Usage
from turnwise.states.values.plain import well_formed
from turnwise.states.values.values import unshared

AT_ONCE: Final = 10
"""Titles that one worker makes at a time."""
TIMEOUT: Final = 60.0
"""Seconds for a model's answer."""

_NO_ANSWER: Final = (StopReason.interrupted, StopReason.error)


class _Made(NamedTuple):
    title: str | None
    usage: Usage | None = None
    again: bool = False
    """Whether the chat's next turn is to try again, since the model may only have been overloaded."""


TITLE_PROMPT: Final = """\
Give the conversation above a title of at most six words, in its own language. Answer with the title alone: one line \
of plain text, without quotation marks and without a full stop."""

LONGEST_TITLE: Final = 80
"""Characters of a title that turnwise makes."""
_EXCERPT: Final = 4000
"""Characters of the question, and of the answer, that a model gets."""
_UNSEEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters that a line must not hold: control characters, separators of lines."""
_TURNS_TEXT: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reverse the text after them, also outside the title."""
_PAIRS: Final = ('""', "''", "``", "**", "__", "“”", "„“", "‘’", "‚‘", "«»", "»«", "‹›", "「」", "『』")  # noqa: RUF001 - quotes
_AROUND: Final = {pair[0]: pair[1] for pair in _PAIRS}
"""Marks that models put around a title: the one before it, with the one after it."""
_EMPHASIS: Final = re.compile(r"(`[^`]*`)|(?<![\w*])(\*\*|\*|_)(?=\S)((?:(?!\2).)+)(?<=\S)\2(?![\w*])")
"""Code, which stays as it is, or words between marks of emphasis. `__` is none: it is part of many names."""


class TitleSource(NamedTuple):
    """The messages that a title is made of."""

    question: Message
    """The first message of the user that has text."""
    answer: Message | None
    """The first answer of the model; `None` if its turns so far have ended without words."""


def source_of(history: Sequence[Message]) -> TitleSource | None:
    """Return the source of a title; `None` if the user has written no text."""
    messages = [one for one in history if one.text.strip() and not one.synthetic and not one.erased]
    question = next((one for one in messages if one.role == "user"), None)
    answer = next((one for one in messages if one.role == "assistant" and not one.partial and not one.calls), None)
    return None if question is None else TitleSource(question, answer)


def title_messages(source: TitleSource) -> list[Message]:
    """Return the messages of a request for a title: question, answer, and the prompt."""
    question, answer = source
    messages = [question] if answer is None else [question, answer]
    excerpts = [replace(one, parts=(TextPart(text=one.text[:_EXCERPT]),), step=0) for one in messages]
    return [*excerpts, transient("user", TITLE_PROMPT, messages[-1])]


def first_line_of(text: str) -> str | None:
    """Return the first line of a user's text as a title, cut between words; `None` if it is blank."""
    lines = (_in_one_line(line).lstrip("#").strip() for line in _beginning(text))
    return _cut(next(filter(None, lines), "")) or None


def title_in(reply: str) -> str | None:
    """Return the title in a model's reply: its first line, without quotation marks; `None` if it is blank."""
    lines = [line for line in map(_bare, _beginning(reply)) if line]
    if len(lines) > 1 and lines[0].endswith(":"):  # "Here is a title:"
        lines = lines[1:]
    return _cut(lines[0]) if lines else None


def _beginning(text: str) -> list[str]:
    return text.lstrip()[:_EXCERPT].splitlines()


def _bare(line: str) -> str:
    """Return a line without the marks that models put around a title, or the word before it."""
    bare = _without_marks(_in_one_line(line).lstrip("# "))
    name, colon, rest = bare.partition(":")
    return _without_marks(rest.lstrip("*_ ")) if colon and name.strip("*_ ").lower() == "title" else bare


def _without_marks(line: str) -> str:
    """Return a line without quotation marks or emphasis around all of it, and without the full stop of a sentence."""
    line = line.strip()
    if line.find(".") == len(line) - 1:
        line = line[:-1].rstrip()
    while len(line) > 1 and line[-1] == _AROUND.get(line[0]):
        first, last = line[0], line[-1]
        core = line.lstrip(first).rstrip(last)
        if first in core or last in core:
            break
        line = core.strip()
    return line


def _in_one_line(text: str) -> str:
    """Return the text on one line, without characters that no line holds, and without emphasis of its words."""
    unseen = (" " if unicodedata.category(one) in _UNSEEN or one in _TURNS_TEXT else one for one in well_formed(text))
    return _EMPHASIS.sub(lambda match: match[1] or match[3], " ".join("".join(unseen).split()))


def _cut(line: str) -> str:
    """Return the line, cut after a word if it is too long; a single long word is cut within."""
    if len(line) <= LONGEST_TITLE:
        return line
    end = LONGEST_TITLE - 1
    space = line.rfind(" ", end // 2, end + 1)
    return f"{line[: end if space < 0 else space].rstrip(' ,;:.-')}…"


class Titles:
    """Gives chats their titles in the background. No turn waits for a title, or fails with it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._room = anyio.CapacityLimiter(AT_ONCE)
        self._under_way: dict[str, asyncio.Event] = {}

    def turn_ended(self, decision: Decision) -> None:
        """Begin to title a chat without a title, if its turn ended with an answer."""
        facts, turn = decision.facts, decision.ended
        if turn is None or turn.ended_by in _NO_ANSWER:
            return
        if self._may_name(facts) and _wants_title(facts) and facts.chat_id not in self._under_way:
            self._under_way[facts.chat_id] = asyncio.Event()
            self._runtime.tasks.start_soon(self._give, facts)

    def _may_name(self, facts: Facts) -> bool:
        """Whether this process has the chat's agent, whose hooks may hide messages, and the agent wants titles."""
        is_own = facts.profile.agent in self._runtime.agents
        return is_own and self._configuration(facts).settings.title is not None

    def _configuration(self, facts: Facts) -> Configuration:
        return self._runtime.agents.asking(facts)

    async def done(self) -> None:
        """Wait until no title is under way."""
        while self._under_way:
            await next(iter(self._under_way.values())).wait()

    async def _give(self, at_end: Facts) -> None:
        """Give a chat its title, from the messages up to the end of its turn."""
        try:
            with concerning(lambda: at_end):
                await self._try_to_name(at_end.chat_id)
        finally:
            self._under_way.pop(at_end.chat_id).set()

    async def _try_to_name(self, chat_id: str) -> None:
        try:
            async with self._room:
                await self._name(chat_id)
        except (ChatArchived, ChatNotFound):
            logger.debug("title_too_late")
        except Exception as error:  # noqa: BLE001 - the chat goes on without a title
            logger.warning("title_failed", problem=described(error))

    async def _name(self, chat_id: str) -> None:
        """Make a title and store it, unless the chat has got one meanwhile.

        If its source was edited or erased meanwhile, the title is discarded, and made again from others.
        """
        spending, made_of, made = Spending(), None, _Made(None)
        while True:
            facts = await self._runtime.store.facts(chat_id)
            source = source_of(await self._runtime.store.history(chat_id)) if _wants_title(facts) else None
            if source != made_of and not self._may_name(facts):
                source = None  # a worker that has its new agent names it, after its next turn
            if source is not None and source != made_of:
                made_of, made = source, await self._make(facts, source, spending)
                continue
            if source is None:
                made = _Made(None, spending.usage)
            if await self._is_stored(facts, made, final=source is not None and not made.again):
                return

    async def _is_stored(self, seen: Facts, made: _Made, *, final: bool) -> bool:
        if made == _Made(None) and not final:
            return True
        naming = Naming(seen.history_version, made, final=final)
        committed = await self._runtime.writer.commit(seen.chat_id, naming, actor=SYSTEM)
        return bool(committed.decisions) or committed.before.history_version == seen.history_version

    async def _make(self, facts: Facts, source: TitleSource, spending: Spending) -> _Made:
        if self._configuration(facts).settings.title == "first_line":
            return _Made(first_line_of(source.question.text))
        try:
            text = complete_text(await self._ask(facts, source, spending))
        except Exception as error:  # noqa: BLE001 - the model's error, or that of a hook
            logger.warning("title_failed", problem=described(error))
            return _Made(None, spending.usage, again=isinstance(error, ModelError) and error.retryable)
        title = title_in(text)
        if title is None:
            logger.warning("title_failed", problem="the model returned no text")
        return _Made(title, spending.usage)

    async def _ask(self, facts: Facts, source: TitleSource, spending: Spending) -> ModelReply:
        """Return the model's reply, with fallbacks as in a turn."""
        configuration = self._configuration(facts)
        settings = configuration.settings
        messages = await prepared_for(self._runtime, configuration, facts, "title", title_messages(source))
        request = ModelRequest(
            purpose="title",
            chat_id=facts.chat_id,
            messages=messages,
            step=facts.step.number,
            parameters=parameters_for_titles(settings),
        )
        while True:
            prepared = structs.replace(request, messages=HistoryRepair().pair_results(request))
            try:
                return await self._generate(facts, configuration.model, prepared, spending)
            except ModelError as error:
                if not configuration.fallbacks or error.kind not in settings.retry.fallback_on:
                    raise
                logger.info("title_falls_back", kind=error.kind, model=configuration.model.name)
                configuration = configuration.behind(1)

    async def _generate(self, facts: Facts, model: Model, request: ModelRequest, spending: Spending) -> ModelReply:
        runtime, usage = self._runtime, None
        try:
            with (
                runtime.observers.model_call(model, request, trace=facts.turn.trace) as call,
                time_limit(runtime.clock, TIMEOUT, "network", "no title", retryable=False),
            ):
                reply = await runtime.tasks.user_calls.run(
                    partial(generate_reply, model, request), "model title", chat_id=facts.chat_id
                )
                reply = add_reply_cost(model, reply, runtime.clock.now())
                usage = reply.usage
                if call is not None:
                    call.reply = unshared(reply)
                return reply
        finally:
            spending.add(usage)


class Naming(msgspec.Struct, frozen=True):
    """Names a chat, unless its messages have changed since the title was made."""

    history_version: int
    made: _Made
    final: bool

    def __call__(self, unit: UnitOfWork) -> None:
        """Fire the new title, if the chat still wants one, and what the model has used."""
        if unit.facts.history_version != self.history_version:
            return
        if _wants_title(unit.facts):
            unit.fire(Renamed(title=self.made.title, usage=self.made.usage, final=self.final), actor=SYSTEM)
        elif self.made.usage is not None:  # the chat has another title now, but the model was paid
            unit.fire(Renamed(title=unit.facts.profile.title, usage=self.made.usage), actor=SYSTEM)


def _wants_title(facts: Facts) -> bool:
    """Whether turnwise is to title the chat: it never had a title, and is neither a fork nor archived."""
    profile = facts.profile
    return profile.title is None and profile.forked_from is None and not facts.titled and not facts.archived
