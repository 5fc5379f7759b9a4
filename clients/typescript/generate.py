"""Writes the types of chats, events, messages and parts in index.d.ts from turnwise's classes: `make docs` runs it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from turnwise.engine.config import results
from turnwise.states import calls, events, messages, names, transcript, usage

FILE: Final = Path(__file__).with_name("index.d.ts")
BY_HAND: Final = "// What follows is written by hand.\n"
HEAD: Final = """\
// The types of turnwise's chats, events, messages and parts as they are in JSON, and of the functions that read them.
//
// A field that is optional is left out where it has its default; `GET /chats/{id}/transcript` spells it out.
// The types are generated from turnwise's classes by generate.py.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
"""
HIDDEN: Final = frozenset({"metadata"})
"""Fields of messages and parts that clients do not get."""
CHOICES: Final[Mapping[str, Any]] = {
    **{name: getattr(names, name) for name in (
        "ChatState", "StopReason", "Audience", "Executor", "CallStatus", "Approval", "Approver", "Crash",
        "SubagentAction", "Awaited", "BoundaryReason", "CompactionPhase", "QueueChange",
    )},
    "Role": messages.Role,
}  # fmt: skip
PARTS: Final = get_args(get_args(messages.Part)[0])
VALUES: Final = (
    usage.Usage, *PARTS, messages.Wakeup, messages.ModelFailure, messages.Message, messages.QueuedMessage, calls.Answer,
    calls.ToolCall, events.ErrorInfo, events.PartDelta,
)  # fmt: skip
NUMBERED: Final = ("seq", "chat_id", "at")
"""Fields that every stored event has."""
SCALARS: Final[Mapping[Any, str]] = {
    str: "string", int: "number", float: "number", bool: "boolean", NoneType: "null", datetime: "string",
    Decimal: "string", Any: "Json",
}  # fmt: skip
SPECIAL: Final = {("LivePart", "type"): 'PartDelta["type"]'}
WIDTH: Final = 120


def types() -> str:
    """Return the generated part of index.d.ts."""
    choices = [_union(name, [f'"{value}"' for value in _values(choice)]) for name, choice in CHOICES.items()]
    kinds = events.EVENTS.values()
    blocks = [
        "\n".join(choices),
        *(_interface(kind) for kind in VALUES[: len(PARTS) + 1]),
        _union("Part", [kind.__name__ for kind in PARTS]),
        *(_interface(kind) for kind in VALUES[len(PARTS) + 1 :]),
        _numbered(),
        *(_interface(kind, numbered=True) for kind in kinds),
        _union("ChatEvent", [kind.__name__ for kind in kinds]),
        *(_interface(kind, complete=True) for kind in (transcript.LivePart, transcript.Transcript)),
        *(_interface(kind) for kind in (calls.ClientTool, results.Chat, results.ChatChange)),
    ]
    return "\n".join((HEAD, "\n\n".join(blocks), ""))


def written() -> str:
    """Return index.d.ts as it should be: the types, and what is written by hand."""
    return f"{types()}\n{BY_HAND}{FILE.read_text(encoding='utf-8').partition(BY_HAND)[2]}"


def _values(choice: Any) -> Sequence[str]:
    return [str(one) for one in choice] if isinstance(choice, type) else get_args(choice)


def _union(name: str, members: Sequence[str]) -> str:
    line = f"export type {name} = {' | '.join(members)};"
    return (
        line if len(line) <= WIDTH else "\n".join((f"export type {name} =", *(f"  | {one}" for one in members))) + ";"
    )


def _numbered() -> str:
    fields = ("/** The place in the chat's sequence, from 1. */", "seq: number;", "chat_id: string;", "at: string;")
    return "\n".join(("interface Numbered {", *(f"  {line}" for line in fields), "}"))


def _interface(kind: Any, *, numbered: bool = False, complete: bool = False) -> str:
    comment = _comment(inspect.getdoc(kind) or "", "") if numbered or complete else []
    body = "\n".join(f"  {line}" for line in _fields(kind, numbered=numbered, complete=complete))
    name = f"{kind.__name__} extends Numbered" if numbered else kind.__name__
    return "\n".join((*comment, f"export interface {name} {{", body, "}"))


def _fields(kind: Any, *, numbered: bool, complete: bool) -> Iterator[str]:
    tag = getattr(kind, "__struct_config__", None)
    if tag is not None and tag.tag_field is not None:
        yield f'{tag.tag_field}: "{tag.tag}";'
    hints, docs = get_type_hints(kind, include_extras=True), _docs_of(kind)
    fields = [one for one in dataclasses.fields(kind) if one.init]
    required = {one.name for one in fields if one.default is one.default_factory}
    for name in [one.name for one in fields]:
        if (name not in HIDDEN or kind is results.Chat) and not (numbered and name in NUMBERED):
            yield from _comment(docs.get(name, "").partition("\n\n")[0], "  ")
            hint = SPECIAL.get((kind.__name__, name)) or _type(hints[name])
            yield f"{name}{'' if complete or name in required else '?'}: {hint};"


def _docs_of(kind: Any) -> dict[str, str]:
    """Return what stands below the fields of a class."""
    docs: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        if one.__module__.startswith("turnwise."):
            body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
            for field, doc in pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                    docs[field.target.id] = inspect.cleandoc(doc.value.value)  # type: ignore[union-attr, attr-defined]
    return docs


def _comment(doc: str, indent: str) -> list[str]:
    text = " ".join(doc.split()).replace("`None`", "`null`")
    if not text:
        return []
    if len(f"{indent}/** {text} */") <= WIDTH:
        return [f"/** {text} */"]
    return ["/**", *(f" * {line}" for line in textwrap.wrap(text, WIDTH - len(indent) - 3)), " */"]


def _type(hint: Any) -> str:  # noqa: PLR0911 - one return per kind of hint
    origin, inner = get_origin(hint), get_args(hint)
    for name, choice in CHOICES.items():
        if hint == choice:
            return name
    if hint == messages.Part:
        return "Part"
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, UnionType):
        return " | ".join(_type(one) for one in inner)
    if origin is Literal:
        return " | ".join(f'"{one}"' for one in inner)
    if origin is tuple and Ellipsis not in inner:
        return f"[{', '.join(map(_type, inner))}]"
    if origin is not None and issubclass(origin, Mapping):
        value = inner[1] if inner[0] is int else Any
        return f"{{ [key: string]: {_type(value)} }}"
    if origin is not None:
        item = _type(inner[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    return SCALARS[hint] if hint in SCALARS else str(hint.__name__)


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
