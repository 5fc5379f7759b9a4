"""Dicts and lists for others to read: they tell when they are changed, so that nobody has to compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Tell = Callable[[], None]


def lent(value: Any, tell: Tell) -> Any:
    """Return a copy of a JSON value in which every dict and list calls `tell` before it is changed."""
    if isinstance(value, dict):
        return _LentDict({name: lent(each, tell) for name, each in value.items()}, tell)
    if isinstance(value, list):
        return _LentList([lent(each, tell) for each in value], tell)
    return value


class _LentDict(dict[str, Any]):
    __slots__ = ("_tell",)

    def __init__(self, value: dict[str, Any], tell: Tell) -> None:
        super().__init__(value)
        self._tell = tell

    def __reduce_ex__(self, _protocol: object) -> Any:
        """Let a copy be a dict of its own."""
        return dict, (dict(self),)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)


class _LentList(list[Any]):
    __slots__ = ("_tell",)

    def __init__(self, value: list[Any], tell: Tell) -> None:
        super().__init__(value)
        self._tell = tell

    def __reduce_ex__(self, _protocol: object) -> Any:
        """Let a copy be a list of its own."""
        return list, (list(self),)

    def __copy__(self) -> list[Any]:
        return list(self)


def _telling(kind: type, name: str) -> Callable[..., Any]:
    def change(self: Any, *arguments: Any, **named: Any) -> Any:
        self._tell()
        return getattr(kind, name)(self, *arguments, **named)

    return change


CHANGES: Final[dict[type, tuple[str, ...]]] = {
    dict: ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"),
    list: (
        "__setitem__", "__delitem__", "__iadd__", "__imul__",
        "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
    ),
}  # fmt: skip
"""The methods that change a dict, and those that change a list."""

for _kind, _lent in ((dict, _LentDict), (list, _LentList)):
    for _name in CHANGES[_kind]:
        setattr(_lent, _name, _telling(_kind, _name))
