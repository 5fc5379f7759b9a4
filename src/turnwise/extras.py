"""Extras: optional libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.states.errors import SettingsError


@contextmanager
def needing(extra: str, module: str) -> Iterator[None]:
    """Raise a `SettingsError` that names the extra if the `module` (`__name__`) cannot import it."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "turnwise":
            raise
        problem = f"needs the extra `{extra}`: pip install 'turnwise[{extra}]' ({error})"
        raise SettingsError(module, problem) from error
