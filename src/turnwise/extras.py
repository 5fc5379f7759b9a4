"""Extras: libraries that only a part of turnwise needs, and that are installed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.states.errors import SettingsError


@contextmanager
def needing(extra: str, module: str) -> Iterator[None]:
    """Import what an extra brings, and name the extra if it is not there.

    Args:
        extra: its name.
        module: the module that needs it: `__name__`.

    Raises:
        SettingsError: a library is missing, or too old.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "turnwise":
            raise
        problem = f"needs the extra `{extra}`: pip install 'turnwise[{extra}]' ({error})"
        raise SettingsError(module, problem) from error
