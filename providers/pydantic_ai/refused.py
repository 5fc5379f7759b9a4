"""Refusals: which part of a request a provider does not take, as its error names it.

Providers name a place of the request as it was sent, as `messages.2.content.0`; the SDK's error still has that request.
What stands there is looked for among the parts of turnwise's messages. Where only a kind of file is named, it is the
newest ones of that kind: older ones were taken before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from turnwise.states.errors import RefusedPart
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

_PLACE: Final = re.compile(r"\b(messages|input|contents)(\.?\[?\d+\]?[.\w\[\]]*)")
_INDEX: Final = re.compile(r"\bmessages? (?:at |with )?(?:index|position) (\d+)")
"""As DeepSeek and Moonshot tell which message lacks its `reasoning_content`."""
_ITEM: Final = re.compile(r"\b(?:rs|fc|msg|ws)_\w+")
"""The ids of OpenAI's items."""
_KINDS: Final = (
    ("image/", re.compile(r"\b(?:image|picture|photo)s?\b")),
    ("application/pdf", re.compile(r"\bpdfs?\b")),
    ("audio/", re.compile(r"\baudio\b")),
    ("video/", re.compile(r"\bvideos?\b")),
)
_ANY_FILE: Final = re.compile(r"\b(?:file|media|attachment|document|base64|mime|url)s?\b")
_OF_RESULTS: Final = frozenset({"tool_use_id", "tool_call_id", "functionResponse"})
_NAMES: Final = frozenset({"type", "role", "name", "media_type", "mime_type", "mimeType", "detail", "filename"})
"""Fields that say what kind of content stands beside them."""


class _File(NamedTuple):
    file: FilePart
    at: RefusedPart
    is_new: bool
    """Whether no reply has come since."""


def refused_parts(failure: BaseException, text: str, messages: Sequence[Message]) -> tuple[RefusedPart, ...]:
    """Return the parts of the messages that a refusal names, if it names any.

    Args:
        failure: what was raised; what caused it may have the request.
        text: all that the provider said.
        messages: of the request.
    """
    body, files = _sent(failure), [*_files(messages)]
    named = [part for place in _places(text) for part in _at(body, place, messages)]
    named = named or [part for item in _ITEM.findall(text) for part in _with_id(item, messages)]
    if not {one.at for one in files}.intersection(named):  # a place where no file stands is wrong if one is meant
        named = _files_named(text, files, of_any_kind=not named) or named
    return tuple(dict.fromkeys(named))


def _sent(failure: BaseException | None) -> Any:
    """Return the JSON of the request that was refused, as it was sent."""
    while failure is not None:
        try:
            answer: Any = getattr(failure, "response", None)
            request: Any = getattr(failure, "request", None) or answer.request
            return json.loads(request.content)
        except Exception:  # noqa: BLE001 - an error of another kind, or a request that is there no more
            failure = failure.__cause__
    return None


def _places(text: str) -> Iterator[list[str]]:
    for match in _PLACE.finditer(text):
        yield [match[1], *re.findall(r"\w+", match[2])]
    for match in _INDEX.finditer(text):
        yield ["messages", match[1]]


def _at(body: Any, place: Sequence[str], messages: Sequence[Message]) -> list[RefusedPart]:
    """Return the parts whose content stands at a place of the request, or around it in the same message."""
    node, around = body, list[Any]()
    for step in place:
        if isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
        elif isinstance(node, dict) and (key := _key_of(node, step)) is not None:
            node = node[key]
        elif step.isdigit():
            return []
        else:
            continue  # a kind that stands in the place alone, as in `content.0.image.source`
        around.append(node)
    for node in reversed(around[1:]):
        if found := list(_with_content(node, messages)):
            before = around[0][: int(place[1])]
            return _of_one_message(found, sum(not _content(node).isdisjoint(_texts(item)) for item in before), messages)
    return []


def _of_one_message(found: list[RefusedPart], before: int, messages: Sequence[Message]) -> list[RefusedPart]:
    """Return what was found of one message, if several say the same; a file is refused wherever it stands."""
    kinds = {message.id: message for message in messages}
    if any(isinstance(kinds[at.message_id].parts[at.part or 0], FilePart) or at.file is not None for at in found):
        return found
    ids = list(dict.fromkeys(at.message_id for at in found))
    return [at for at in found if at.message_id == ids[min(before, len(ids) - 1)]]


def _content(node: Any) -> set[str]:
    return set(_texts(node))


def _key_of(node: dict[str, Any], step: str) -> str | None:
    spellings = (step, re.sub(r"_(\w)", lambda match: match[1].upper(), step))
    return next((one for one in spellings if one in node), None)


def _with_content(node: Any, messages: Sequence[Message]) -> Iterator[RefusedPart]:
    content = _content(node)
    calls, results = set(_ids(node, of_results=False)), set(_ids(node, of_results=True))
    for message in messages:
        whole = message.text in content
        for place, part in enumerate(message.parts):
            at = RefusedPart(message.id, place)
            match part:
                case FilePart() if _is_in(part, content):
                    yield at
                case TextPart() if part.text and (part.text in content or whole):
                    yield at
                case ReasoningPart() if (part.signature or part.text) in content:
                    yield at
                case ToolCallPart() if part.call_id in calls:
                    yield at
                case ToolResultPart():
                    files = [number for number, file in enumerate(part.attachments) if _is_in(file, content)]
                    if part.call_id in results:
                        yield at
                    else:
                        yield from (RefusedPart(message.id, place, number) for number in files)


def _texts(node: Any) -> Iterator[str]:
    """Yield the content in a part of a request: texts, base64, addresses, signatures."""
    if isinstance(node, str):
        yield node
        yield node.partition(";base64,")[2] or node
    elif isinstance(node, list):
        for inner in node:
            yield from _texts(inner)
    elif isinstance(node, dict):
        for key, inner in node.items():
            if key not in _NAMES:
                yield from _texts(inner)


def _ids(node: Any, *, of_results: bool) -> Iterator[str]:
    """Yield the ids of calls, or of those whose results stand here."""
    if isinstance(node, list):
        for inner in node:
            yield from _ids(inner, of_results=of_results)
    elif isinstance(node, dict):
        is_output = node.get("type") == "function_call_output"
        for key, inner in node.items():
            if key == "functionResponse" and isinstance(inner, dict):
                yield from [str(inner.get("id"))] if of_results else []
            elif key in ("id", "call_id", *_OF_RESULTS) and isinstance(inner, str):
                yield from [inner] if of_results is (is_output or key in _OF_RESULTS) else []
            else:
                yield from _ids(inner, of_results=of_results)


def _is_in(file: FilePart, content: set[str]) -> bool:
    return (file.data or file.url) in content


def _with_id(item: str, messages: Sequence[Message]) -> Iterator[RefusedPart]:
    for message in messages:
        for place, part in enumerate(message.parts):
            if (part.metadata or {}).get("id") == item:
                yield RefusedPart(message.id, place)


def _files_named(text: str, files: Sequence[_File], *, of_any_kind: bool) -> list[RefusedPart]:
    """Return the files of the request that a refusal means: by their address, else the newest of the kind it names."""
    words = text.replace("_", " ").lower()
    for address_of in (str, _host):
        if by_address := [one.at for one in files if one.file.url and address_of(one.file.url) in text]:
            return by_address
    for kind, word in _KINDS if not of_any_kind else (*_KINDS, ("", _ANY_FILE)):
        if word.search(words):
            of_kind = [one for one in files if one.file.media_type.lower().startswith(kind)]
            return [one.at for one in of_kind if one.is_new] or [one.at for one in of_kind]
    return []


def _files(messages: Sequence[Message]) -> Iterator[_File]:
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    last = replies[-1] if replies else -1
    for number, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if isinstance(part, FilePart):
                yield _File(part, RefusedPart(message.id, place), number > last)
            for inner, file in enumerate(_attachments(part)):
                yield _File(file, RefusedPart(message.id, place, inner), number > last)


def _attachments(part: Part) -> Sequence[FilePart]:
    return part.attachments if isinstance(part, ToolResultPart) else ()


def _host(url: str) -> str:
    """Return the host of an address; the address itself, if it has none."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
