"""Folds a history: computes the model's view after a compaction from the messages of a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from turnwise.engine.prompt.history import is_said
from turnwise.states.arguments import Summary
from turnwise.states.errors import InvalidContent
from turnwise.states.messages import Message
from turnwise.states.model_errors import NOTHING_FOLDED, ModelError
from turnwise.states.values.plain import MODEL_LIMITS, Misfit, plain
from turnwise.states.values.values import place_and_problem

_STORABLE: Final = MODEL_LIMITS._replace(levels=MODEL_LIMITS.levels + 3)
"""The limits of a whole message, in which its content is nested three levels deep."""


class _Entry(msgspec.Struct, frozen=True):
    message: Message
    original: Message | None
    """The message of the history that it equals or replaces; `None` for a new one."""

    @property
    def is_changed(self) -> bool:
        return self.original is not None and not _says_the_same(self.message, self.original)


def summary_of(history: Sequence[Message], messages: Iterable[Message], retained: set[int]) -> Summary:
    """Return what the model sees instead of `history`: the `messages`, in their order, and those to be `retained`.

    A message that equals one of the history stays; a changed one replaces it; one without a position is new. No call is
    separated from its result: the missing half of a pair is carried, and if a change would separate them, the original
    message is used.
    """
    originals = {message.position: message for message in history}
    entries = _complete(history, _entries(originals, messages, retained), retained)
    if not entries:
        raise ModelError("bad_request", message="the compaction left nothing to go on from")
    order = tuple(
        entry.original.position if entry.original is not None and not entry.is_changed else _new(entry)
        for entry in entries
    )
    carried = {entry for entry in order if isinstance(entry, int)}
    if order == tuple(originals):
        raise ModelError(NOTHING_FOLDED, message="nothing was folded")
    return Summary(messages=order, folded=len(history) - len(carried))


def _entries(originals: dict[int, Message], messages: Iterable[Message], retained: set[int]) -> list[_Entry]:
    """Return the given messages, each of the history once; a new one equal to a retained one counts as that one."""
    entries: list[_Entry] = []
    unused = dict(originals)
    for message in messages:
        position = message.position
        if position not in originals:
            position = next(
                (place for place in retained if place in unused and _says_the_same(message, originals[place])), 0
            )
        if (position and position not in unused) or not any(is_said(part) for part in message.parts):
            continue
        entries.append(_Entry(message, unused.pop(position, None)))
    return entries


def _says_the_same(one: Message, other: Message) -> bool:
    return (one.role, one.parts) == (other.role, other.parts)


def _complete(history: Sequence[Message], entries: list[_Entry], retained: set[int]) -> list[_Entry]:
    """Return the entries with the messages that must not be missing, each at its place in the history."""
    places = {message.position: place for place, message in enumerate(history)}
    partners = _partners(history)
    while True:
        present = {entry.original.position for entry in entries if entry.original is not None}
        parted = _find_split_calls(entries, partners)
        missing = sorted((retained | parted) - present, key=places.__getitem__)
        mended = [
            _Entry(entry.original, entry.original)
            if entry.original is not None and entry.original.position in parted
            else entry
            for entry in entries
        ]
        for position in missing:
            original = history[places[position]]
            later = (
                place
                for place, entry in enumerate(mended)
                if entry.original is not None and places[entry.original.position] > places[position]
            )
            mended.insert(next(later, len(mended)), _Entry(original, original))
        if mended == entries:
            return entries
        entries = mended


def _partners(history: Sequence[Message]) -> dict[str, set[int]]:
    """Return, by call, the positions of the messages that hold it and its result."""
    partners: dict[str, set[int]] = {}
    for message in history:
        for call_id in _call_ids(message):
            partners.setdefault(call_id, set()).add(message.position)
    return partners


def _find_split_calls(entries: Sequence[_Entry], partners: dict[str, set[int]]) -> set[int]:
    """Return the positions of the history that hold the other half of a call, or held it before they were changed."""
    halves: dict[str, set[int]] = {}
    for entry in entries:
        if entry.original is not None:
            for call_id in _call_ids(entry.message):
                halves.setdefault(call_id, set()).add(entry.original.position)
    whole = ((partners.get(call_id, set()), positions) for call_id, positions in halves.items())
    return set().union(*(wanted - positions for wanted, positions in whole))


def _call_ids(message: Message) -> list[str]:
    return [call.call_id for call in message.calls] + ([message.result.call_id] if message.result else [])


def _new(entry: _Entry) -> Message:
    """Return the message to store: with a position only if it replaces a message of the history."""
    message = _revalidate(entry.message)
    if entry.original is None:
        return replace(message, position=0, partial=False)
    place = {"turn": entry.original.turn, "step": entry.original.step, "call_index": entry.original.call_index}
    return replace(message, **place)


def _revalidate(message: Message) -> Message:
    """Return a message as it would be read from a store: a strategy's `replace` does not validate."""
    try:
        return msgspec.convert(plain(msgspec.to_builtins(message, str_keys=True), _STORABLE), Message)
    except Misfit as misfit:
        raise InvalidContent(f"Message: it {misfit.problem}") from None
    except msgspec.ValidationError as error:
        place, problem = place_and_problem(error)
        raise InvalidContent(f"Message{place and '.' + place}: {problem}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"only JSON values can be stored: {error}") from error
