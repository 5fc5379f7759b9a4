"""Dicts and lists for user code to read: they call back when they are changed, so that no one compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

OnChange = Callable[[], None]


def tracked(value: Any, on_change: OnChange) -> Any:
    """Return a copy of a JSON value in which every dict and list calls `on_change` before it is changed."""
    if isinstance(value, dict):
        return _TrackedDict({name: tracked(each, on_change) for name, each in value.items()}, on_change)
    if isinstance(value, list):
        return _TrackedList([tracked(each, on_change) for each in value], on_change)
    return value


class _TrackedDict(dict[str, Any]):
    __slots__ = ("_on_change",)

    def __init__(self, value: dict[str, Any], on_change: OnChange) -> None:
        super().__init__(value)
        self._on_change = on_change

    def __reduce_ex__(self, _protocol: object) -> Any:
        """Let a copy be a dict of its own."""
        return dict, (dict(self),)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)


class _TrackedList(list[Any]):
    __slots__ = ("_on_change",)

    def __init__(self, value: list[Any], on_change: OnChange) -> None:
        super().__init__(value)
        self._on_change = on_change

    def __reduce_ex__(self, _protocol: object) -> Any:
        """Let a copy be a list of its own."""
        return list, (list(self),)

    def __copy__(self) -> list[Any]:
        return list(self)


def _tracking(kind: type, name: str) -> Callable[..., Any]:
    def change(self: Any, *arguments: Any, **named: Any) -> Any:
        self._on_change()
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

for _kind, _tracked in ((dict, _TrackedDict), (list, _TrackedList)):
    for _name in CHANGES[_kind]:
        setattr(_tracked, _name, _tracking(_kind, _name))
