"""Gives calls ids that are new in the chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from turnwise.providers.protocol import ModelPart
from turnwise.states.model_errors import ModelError
from turnwise.states.values.plain import shown, well_formed

_LONGEST: Final = 512
"""The most bytes of an id: an index of PostgreSQL takes entries of up to 2,700."""
_PREFIX: Final = 64
"""The bytes that stay of a longer id."""
OF_CALLS: Final = ("tool_call_start", "tool_call_delta", "tool_call", "provider_result")


class CallNames:
    """Renames the calls of one reply, so that no result can ever answer two calls.

    An id that the chat has had gets the number of the step as a suffix; a missing id becomes `call`. NUL and halves of
    surrogate pairs are replaced, and a long id ends with a digest. The same reply in the same step always gets the same
    names. The provider gets these names, too.

    Fragments belong to the call of their id, also once it is complete; those without an id to the call that began last.
    """

    def __init__(self, is_taken: Callable[[str], Awaitable[bool]], step: int) -> None:
        self._is_taken = is_taken
        self._step = step
        self._used: set[str] = set()
        self._names: dict[str | None, str] = {}
        self._incomplete: set[str | None] = set()
        self._latest: str | None = None
        """The name of the call that began last."""

    async def renamed(self, part: ModelPart) -> ModelPart:
        """Return a part of one of the types `OF_CALLS`, with the name of its call."""
        for given in (part.id, part.call_id):
            if given is not None and not isinstance(given, str):
                raise ModelError("server_error", message=f"the id of a call has to be text; it was {shown(given)}")
        match part.type:
            case "tool_call_start":
                return replace(part, id=await self._open(part.id))
            case "tool_call_delta":
                name = self._names.get(part.id) if part.id else self._latest
                return replace(part, id=name or await self._open(part.id))
            case "tool_call":
                key = part.id or None
                name = self._names[key] if key in self._incomplete else await self._open(part.id)
                self._incomplete.discard(key)
                return replace(part, id=name)
            case _:
                return replace(part, call_id=self._names.get(part.call_id or None, part.call_id))

    async def _open(self, provider_id: str | None) -> str:
        wanted = _within_limit(well_formed(provider_id).replace("\0", "\ufffd")) if provider_id else "call"
        name, number = wanted, 1
        while name in self._used or await self._is_taken(name):
            name = f"{wanted}-{self._step}" if number == 1 else f"{wanted}-{self._step}-{number}"
            number += 1
        self._used.add(name)
        self._names[provider_id or None] = name
        self._incomplete.add(provider_id or None)
        self._latest = name
        return name


def _within_limit(name: str) -> str:
    spelled = name.encode()
    if len(spelled) <= _LONGEST:
        return name
    return f"{spelled[:_PREFIX].decode(errors='ignore')}-{sha256(spelled).hexdigest()[:24]}"
