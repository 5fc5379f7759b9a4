"""Refused parts: finds the parts of messages that a provider's error names.

Providers name a position in the request, such as `messages.2.content.0`. The SDK's error holds the request, so the
content at that position can be compared with the parts of turnwise's messages. If the error names only a kind of file,
the newest files of that kind are taken as refused, because the provider accepted the older ones before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from turnwise.states.messages import FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import RefusedPart

_PLACE: Final = re.compile(r"\b(messages|input|contents)(\.?\[?\d+\]?[.\w\[\]]*)")
_INDEX: Final = re.compile(r"\bmessages? (?:at |with )?(?:index|position) (\d+)")
"""The wording of DeepSeek and Moonshot for a message without its `reasoning_content`."""
_ITEM: Final = re.compile(r"\b(?:rs|fc|msg|ws)_\w+")
"""The ids of items of OpenAI's Responses."""
_KINDS: Final = (
    ("image/", re.compile(r"\b(?:image|picture|photo)s?\b")),
    ("application/pdf", re.compile(r"\bpdfs?\b")),
    ("audio/", re.compile(r"\baudio\b")),
    ("video/", re.compile(r"\bvideos?\b")),
)
_ANY_FILE: Final = re.compile(r"\b(?:file|media|attachment|document|base64|mime|url)s?\b")
_OF_RESULTS: Final = frozenset({"tool_use_id", "tool_call_id", "functionResponse"})
_NAMES: Final = frozenset({"type", "role", "name", "media_type", "mime_type", "mimeType", "detail", "filename"})
"""Fields that describe content and hold none."""


class _File(NamedTuple):
    file: FilePart
    at: RefusedPart
    is_new: bool
    """Whether the file comes after the latest reply."""


def refused_parts(failure: BaseException, text: str, messages: Sequence[Message]) -> tuple[RefusedPart, ...]:
    """Return the parts of the messages that an error's `text` names; `failure` or a cause of it holds the request."""
    body, files = _sent(failure), [*_files(messages)]
    named = [part for place in _places(text) for part in _at(body, place, messages)]
    named = named or [part for item in _ITEM.findall(text) for part in _with_id(item, messages)]
    if not {one.at for one in files}.intersection(named):  # if the text names a kind of file, other positions are wrong
        named = _files_named(text, files, of_any_kind=not named) or named
    return tuple(dict.fromkeys(named))


def unreachable_files(failure: BaseException, messages: Sequence[Message]) -> list[RefusedPart]:
    """Return the files that pydantic-ai could not download: it fetches those that the provider does not fetch."""
    if isinstance(failure, httpx2.RequestError):  # it connects to an IP address, and names the host in the header
        request = failure.request
        asked = f"{request.headers.get('host', '')}{request.url.raw_path.decode()}"
        return [one.at for one in _files(messages) if (one.file.url or "").partition("://")[2] == asked]
    if type(failure) is ValueError:  # it has not found the host
        text = str(failure)
        return [one.at for one in _files(messages) if one.file.url and _host(one.file.url) in text]
    return []


def inline_files(messages: Sequence[Message]) -> list[RefusedPart]:
    """Return the files sent with a request that has too many bytes: those after the latest reply, or else all."""
    return _newest([one for one in _files(messages) if one.file.data])


def _newest(files: Sequence[_File]) -> list[RefusedPart]:
    return [one.at for one in files if one.is_new] or [one.at for one in files]


def _sent(failure: BaseException | None) -> Any:
    """Return the body of the refused request; `None` if no exception of the chain holds it."""
    while failure is not None:
        try:
            answer: Any = getattr(failure, "response", None)
            request: Any = getattr(failure, "request", None) or answer.request
            return json.loads(request.content)
        except Exception:  # noqa: BLE001 - an exception without a request, or without its body
            failure = failure.__cause__
    return None


def _places(text: str) -> Iterator[list[str]]:
    for match in _PLACE.finditer(text):
        yield [match[1], *re.findall(r"\w+", match[2])]
    for match in _INDEX.finditer(text):
        yield ["messages", match[1]]


def _at(body: Any, place: Sequence[str], messages: Sequence[Message]) -> list[RefusedPart]:
    """Return the parts with the content at a position of the request, or in an enclosing value of the same message."""
    node, around = body, list[Any]()
    for step in place:
        if isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
        elif isinstance(node, dict) and (key := _key_of(node, step)) is not None:
            node = node[key]
        elif step.isdigit():
            return []
        else:
            continue  # the position has a type name that the request lacks, as in `content.0.image.source`
        around.append(node)
    for node in reversed(around[1:]):
        if found := list(_with_content(node, messages)):
            before = around[0][: int(place[1])]
            return _of_one_message(
                found, sum(not {*_texts(node)}.isdisjoint(_texts(item)) for item in before), messages
            )
    return []


def _of_one_message(found: list[RefusedPart], before: int, messages: Sequence[Message]) -> list[RefusedPart]:
    """Keep the parts of one message, if several messages have the same text. Files are refused in every message."""
    kinds = {message.id: message for message in messages}
    if any(isinstance(kinds[at.message_id].parts[at.part or 0], FilePart) or at.file is not None for at in found):
        return found
    ids = list(dict.fromkeys(at.message_id for at in found))
    return [at for at in found if at.message_id == ids[min(before, len(ids) - 1)]]


def _key_of(node: dict[str, Any], step: str) -> str | None:
    spellings = (step, re.sub(r"_(\w)", lambda match: match[1].upper(), step))
    return next((one for one in spellings if one in node), None)


def _with_content(node: Any, messages: Sequence[Message]) -> Iterator[RefusedPart]:
    content = {*_texts(node)}
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
    """Yield the content in a value of the request: texts, base64 data, URLs and signatures."""
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
    """Yield the ids of the calls, or of the results, in a value of the request."""
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
    """Return the files that the error text names by URL or host, or else the newest files of the kind that it names."""
    words = text.replace("_", " ").lower()
    for address_of in (str, _host):
        if by_address := [one.at for one in files if one.file.url and address_of(one.file.url) in text]:
            return by_address
    for kind, word in _KINDS if not of_any_kind else (*_KINDS, ("", _ANY_FILE)):
        if word.search(words):
            return _newest([one for one in files if one.file.media_type.lower().startswith(kind)])
    return []


def _files(messages: Sequence[Message]) -> Iterator[_File]:
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    last = replies[-1] if replies else -1
    for number, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if isinstance(part, FilePart):
                yield _File(part, RefusedPart(message.id, place), number > last)
            for inner, file in enumerate(part.attachments if isinstance(part, ToolResultPart) else ()):
                yield _File(file, RefusedPart(message.id, place, inner), number > last)


def _host(url: str) -> str:
    """Return the host of a URL, or the URL if it has none."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
