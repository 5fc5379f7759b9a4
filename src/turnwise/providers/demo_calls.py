"""The rules by which the demo model finds tool calls and their arguments in a message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from turnwise.providers.protocol import ToolSpec

_WORD: Final = re.compile(r"[A-Za-z][A-Za-z']*")
_PATH: Final = re.compile(r"(?<![\w./-])(?:(?:[\w.-]*/)*[\w-]+\.[A-Za-z]\w+(?!\w)|(?:[\w.-]+/)+(?:[\w.-]*\w)?)")
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_QUOTED: Final = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_GENERIC: Final = frozenset({"get", "fetch", "do", "run", "tool", "call", "the", "of", "to", "for", "and", "a", "an"})
_LEADING: Final = re.compile(
    r"^(?:(?:in|of|for|at|to|on|about|with|from|the|a|an|tool|that|me|is|are|please|says?)\b|[\s:,;.!?-])+",
    re.IGNORECASE,
)
_TRAILING_BACKWARDS: Final = re.compile(r"^(?:\b(?:dna|neht|esaelp)\b|[\s:,;.!?])+", re.IGNORECASE)
"""For a text that is read backwards: an end is tried once, not from each place where one may begin."""
_READS: Final = re.compile(r"\b(?:read|open|show|load|look)", re.IGNORECASE)
_DESCRIBED_BY: Final = 2
"""So many significant words of a tool's description in a message ask for the tool."""
_SHORTEST_SIGNIFICANT: Final = 4


class Wish(msgspec.Struct, frozen=True):
    """A call that a message asks for."""

    tool: str
    arguments: dict[str, Any]


class _Mention(msgspec.Struct, frozen=True):
    tool: ToolSpec
    start: int
    end: int


def wishes(text: str, tools: Iterable[ToolSpec]) -> list[Wish]:
    """Return the calls that `text` asks for, in the order in which it mentions the tools."""
    tools = list(tools)
    mentions = [mention for tool in tools if (mention := _named(text, tool))]
    mentions = mentions or [mention for tool in tools if (mention := _described(text, tool))][:1]
    mentions = mentions or [mention for tool in tools if (mention := _implied(text, tool))][:1]
    mentions.sort(key=lambda mention: (mention.start, -mention.end))
    calls: list[Wish] = []
    several = len(mentions) > 1
    while mentions:
        mention = mentions.pop(0)
        following = mentions[0].start if mentions else len(text)
        begin = mention.start if several else 0
        end = following if following > mention.end else len(text)
        rest = text[mention.end : end] if text[mention.end : end].strip(" .?!") else text[begin : mention.start]
        calls += _fill_arguments(mention.tool, text[begin:end], rest)
    return calls


def _named(text: str, tool: ToolSpec) -> _Mention | None:
    """Find the tool's name, or all of its significant words; a path stands for "file"."""
    phrase = re.escape(tool.name).replace("_", r"[_\s-]")
    named = re.search(rf"(?<!\w){phrase}(?!\w)", text, re.IGNORECASE)
    if named:
        return _Mention(tool, *named.span())
    wanted = {stem for word in tool.name.replace("-", "_").split("_") if (stem := _stem(word)) not in _GENERIC}
    path = _PATH.search(text)
    places = {_stem(word.group()): word for word in reversed(list(_WORD.finditer(text)))}
    spans = [places[stem].span() for stem in wanted if stem in places]
    covered = wanted - places.keys() <= ({"file", "path"} if path else set())
    return _Mention(tool, min(spans)[0], max(spans)[1]) if spans and covered else None


def _described(text: str, tool: ToolSpec) -> _Mention | None:
    significant = {_stem(word) for word in _WORD.findall(tool.description) if len(word) >= _SHORTEST_SIGNIFICANT}
    words = [word for word in _WORD.finditer(text) if _stem(word.group()) in significant]
    if not words or len({_stem(word.group()) for word in words}) < min(_DESCRIBED_BY, len(significant)):
        return None
    return _Mention(tool, words[0].start(), words[-1].end())


def _implied(text: str, tool: ToolSpec) -> _Mention | None:
    path = _PATH.search(text)
    takes_path = any(_is_path(name) for name in tool.schema.get("properties", {}))
    reads = _READS.search(f"{tool.name.replace('_', ' ')} {tool.description}")
    return _Mention(tool, path.start(), path.start()) if path and takes_path and reads else None


def _stem(word: str) -> str:
    """Return the word without its ending, so that "searches" is "search" and "files" is "file"."""
    word = word.lower()
    for ending, shortest in (("ing", 4), ("es", 4), ("s", 3), ("e", 4)):
        if word.endswith(ending) and len(word) - len(ending) >= shortest:
            return word.removesuffix(ending)
    return word


def _is_path(name: str) -> bool:
    return any(word in name.lower() for word in ("path", "file"))


def _fill_arguments(tool: ToolSpec, segment: str, rest: str) -> list[Wish]:
    """Return one call, or one per path where a tool that takes one path is given several."""
    properties = tool.schema.get("properties", {})
    paths = _PATH.findall(segment)
    takes = [name for name in properties if _is_path(name)]
    if len(takes) == 1 == len(properties) and len(paths) > 1:
        return [Wish(tool.name, {takes[0]: path}) for path in paths]
    return [Wish(tool.name, _Filler.of(segment, rest).fill_object(tool.schema, tool.schema))]


class _Filler(msgspec.Struct):
    """Fills arguments from a message, using each quotation, path and number once."""

    segment: str
    rest: str
    quoted: list[str] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    numbers: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, segment: str, rest: str) -> _Filler:
        quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(segment)]
        rest = _TRAILING_BACKWARDS.sub("", _LEADING.sub("", rest)[::-1])[::-1]
        return cls(segment, rest, quoted, _PATH.findall(segment), _NUMBER.findall(segment))

    def fill_object(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
        required = schema.get("required", ())
        properties = {name: _resolve(inner, root) for name, inner in schema.get("properties", {}).items()}
        return {
            name: self.fill(name, wanted, root)
            for name, wanted in properties.items()
            if name in required or self.has_for(name, wanted)
        }

    def has_for(self, name: str, schema: Mapping[str, Any]) -> bool:
        """Whether the message holds a value for an optional argument."""
        match schema.get("type"):
            case _ if "enum" in schema:
                return self._mentioned(schema["enum"]) is not None
            case "integer" | "number":
                return bool(self.numbers)
            case "string":
                return bool(self.paths if _is_path(name) else self.quoted)
        return False

    def fill(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
        match schema.get("type"):
            case _ if "enum" in schema:
                mentioned = self._mentioned(schema["enum"])
                return schema["enum"][0] if mentioned is None else mentioned
            case "integer" | "number" as kind:
                number = float(self.numbers.pop(0)) if self.numbers else schema.get("minimum", 1)
                return int(number) if kind == "integer" else number
            case "boolean":
                return True
            case "array":
                return [self.fill(name, _resolve(schema.get("items", {}), root), root)]
            case "object":
                return self.fill_object(schema, root)
        return schema["const"] if "const" in schema else self._words_for(name)

    def _mentioned(self, choices: Sequence[Any]) -> Any:
        text = self.segment.lower()
        return next((choice for choice in choices if str(choice).lower() in text), None)

    def _words_for(self, name: str) -> str:
        if self.paths and _is_path(name):
            return self.paths.pop(0)
        if self.quoted:
            return self.quoted.pop(0)
        return self.paths.pop(0) if self.paths else self.rest or self.segment.strip()


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references and take the first alternative that is not null."""
    if "$ref" in schema:
        return _resolve(root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), root)
    for choices in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        for choice in choices or ():
            if choice.get("type") != "null":
                return _resolve(choice, root)
    if isinstance(schema.get("type"), list):
        return {**schema, "type": next((kind for kind in schema["type"] if kind != "null"), "string")}
    return schema
