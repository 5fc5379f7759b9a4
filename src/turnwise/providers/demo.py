"""The demo model: no network, no key, a handful of rules. It is the default model."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from turnwise.providers.demo_calls import Wish, wishes
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.reply_builder import join
from turnwise.states.messages import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus, StopReason
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Count, Duration, Name

_CHARACTERS_PER_TOKEN: Final = 4
_WORD: Final = re.compile(r"\s*\S+\s*$|\s*\S+")
_GREETING: Final = re.compile(r"^\W*(?:hello|hi|hey|good (?:morning|afternoon|evening)|greetings)\b", re.IGNORECASE)
_THANKS: Final = re.compile(r"\b(?:thanks|thank you|cheers)\b", re.IGNORECASE)
_ABOUT: Final = re.compile(r"\b(?:who|what) are you\b|\bwhat can you do\b|^\W*help\W*$", re.IGNORECASE)
_UNFINISHED: Final = {
    CallStatus.interrupted: "was stopped before it answered",
    CallStatus.cancelled: "was cancelled",
    CallStatus.timed_out: "did not answer in time",
    CallStatus.unknown: "may or may not have run: its outcome is unknown",
}


class DemoModel:
    """Answers by rules, the same way every time: calls the tools a message asks for, then quotes their results.

    Args:
        name: the model's name.
        context_limit: in tokens; four characters count as one.
        pace: seconds between two words. Without it, other tasks get their turn between words.

    Raises:
        InvalidArgument: an argument is not what it may be.
    """

    provider = "demo"

    @checked
    def __init__(self, name: Name = "demo", *, context_limit: Count | None = 8192, pace: Duration = 0) -> None:
        self.name = name
        self.context_limit = context_limit
        self.pace = pace

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the answer word by word, and its calls with their arguments as they are written."""
        sent = thought = 0
        for part in _answer(request):
            await (anyio.sleep(self.pace) if self.pace > 0 else checkpoint())
            yield part
            sent += len(part.text) + (len(part.arguments) if isinstance(part.arguments, str) else 0)
            thought += len(part.text) if part.type == "reasoning_delta" else 0
        usage = Usage(
            input_tokens=_prompt_tokens(request), output_tokens=_tokens(sent), reasoning_tokens=_tokens(thought)
        )
        yield ModelPart("finish", stop_reason=StopReason.end_turn, usage=usage, context_limit=self.context_limit)

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the whole answer."""
        return join([part async for part in self.stream(request)])


def _answer(request: ModelRequest) -> Iterator[ModelPart]:
    history = [message for message in request.messages if message.role != "system"]
    match request.purpose:
        case "summary":
            yield from _say(_summary(history[:-1]))
        case "title":
            yield from _say(_title(history))
        case "step":
            yield from _step(request, history)


def _step(request: ModelRequest, history: Sequence[Message]) -> Iterator[ModelPart]:
    question, since = _question(history)
    results = [message.result for message in since if message.result is not None]
    if results:
        yield from _think(f"I have what {_join_names([result.name for result in results])} came back with.")
        yield from _say(_summarise(results))
        return
    offered = () if request.parameters.get("tool_choice") == "none" else request.tools
    wanted = wishes(question, offered)
    if not wanted:
        yield from _think("No tool is asked for; I answer from what I know, which is little.")
        yield from _say(_small_talk(question, [tool.name for tool in offered]))
        return
    names = _join_names([wish.tool for wish in wanted])
    yield from _think(f"The message asks for {names}.")
    yield from _say(f"Let me ask {names}.")
    for number, wish in enumerate(wanted, start=1):
        yield from _call(f"call_{request.step}_{number}", wish)


def _question(history: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return the user's last message, and the messages after it."""
    for place in range(len(history) - 1, -1, -1):
        if history[place].role == "user" and not history[place].synthetic:
            return history[place].text, history[place + 1 :]
    return "", history


def _think(text: str) -> Iterator[ModelPart]:
    return (ModelPart("reasoning_delta", text=word) for word in _WORD.findall(text))


def _say(text: str) -> Iterator[ModelPart]:
    return (ModelPart("text_delta", text=word) for word in _WORD.findall(text))


def _call(call_id: str, wish: Wish) -> Iterator[ModelPart]:
    yield ModelPart("tool_call_start", id=call_id, name=wish.tool)
    for fragment in _WORD.findall(json.dumps(wish.arguments, ensure_ascii=False)):
        yield ModelPart("tool_call_delta", id=call_id, arguments=fragment)
    yield ModelPart("tool_call", id=call_id, name=wish.tool, arguments=wish.arguments)


def _summarise(results: Sequence[ToolResultPart]) -> str:
    if len(results) == 1:
        return f"{_result_line(results[0], 280)}\n\nThat is what I can tell you."
    lines = "\n".join(f"- {_result_line(result, 160)}" for result in results)
    return f"Here is what came back:\n\n{lines}"


def _result_line(result: ToolResultPart, length: int) -> str:
    if result.outcome in _UNFINISHED:
        return f"{result.name} {_UNFINISHED[result.outcome]}."
    text = _excerpt(_as_text(result.output), length)
    if result.is_error:
        return f"{result.name} failed: {text}"
    return f"{result.name} says: “{text}”" if text else f"{result.name} returned nothing."


def _small_talk(question: str, tools: Sequence[str]) -> str:
    can = (
        f"I can call {_join_names(tools)} when your message asks for it." if tools else "No tool is offered to me here."
    )
    if not question:
        return "I have read the summary of the conversation. Tell me how to go on."
    if _ABOUT.search(question):
        return f"I am the demo model: no network, no key, a handful of rules. {can}"
    if _GREETING.search(question):
        return f"Hello! I am the demo model, and I answer by rules. {can}"
    if _THANKS.search(question):
        return "You are welcome."
    if question.rstrip().endswith("?"):
        return f"I am the demo model and cannot know that: “{_excerpt(question, 160)}” {can}"
    return f"I am the demo model. You wrote: “{_excerpt(question, 160)}” {can}"


def _summary(history: Sequence[Message]) -> str:
    """Return a summary of the messages: the goal, the texts, the results of tools, and the next step."""
    spoken = [message for message in history if message.text]
    earlier = [message for message in spoken if message.synthetic]
    questions = [message for message in spoken if message.role == "user" and not message.synthetic]
    messages = [message for message in spoken if not message.synthetic]
    results = [message.result for message in history if message.result is not None]
    _, since = _question(history)
    answered = any(message.role == "assistant" and message.text and not message.calls for message in since)
    to_do = "nothing; the last message was answered"
    if questions and not answered:
        to_do = f"answer: {_excerpt(questions[-1].text, 120)}"
    lines = [
        f"Goal: {_excerpt(questions[0].text, 160) if questions else 'as before'}",
        *(f"Earlier: {_excerpt(message.text, 320)}" for message in earlier[-1:]),
        "Said:",
        *(f"- {message.role}: {_excerpt(message.text, 100)}" for message in messages[-6:]),
        *(["Tools returned:"] if results else []),
        *(f"- {_result_line(result, 100)}" for result in results[-6:]),
        f"Left: {to_do}",
    ]
    return "\n".join(lines)


def _title(history: Sequence[Message]) -> str:
    first = next((message.text for message in history if message.role == "user" and message.text), "")
    words = " ".join(first.split()[:6]).strip(" .,;:!?\"'")
    return words[:1].upper() + words[1:] if words else "A new chat"


def _prompt_tokens(request: ModelRequest) -> int:
    """Estimate the tokens of the prompt."""
    spoken = sum(len(_part_text(part)) for message in request.messages for part in message.parts)
    offered = sum(len(tool.name) + len(tool.description) + len(_as_text(dict(tool.schema))) for tool in request.tools)
    return _tokens(len(request.system or "") + spoken + offered) + len(request.messages)


def _part_text(part: object) -> str:
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolCallPart():
            return part.name + _as_text(part.arguments)
        case ToolResultPart():
            return _as_text(part.output)
    return ""


def _tokens(characters: int) -> int:
    return -(-characters // _CHARACTERS_PER_TOKEN)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _excerpt(text: str, length: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= length else f"{words[: length - 1].rstrip()}…"


def _join_names(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} and {unique[-1]}"
