"""Settings for publishing signed lengths and hashes of the logs outside of the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import SkipValidation

from turnwise.engine.checkpoints.destinations import Address, Destination, PublishedFile
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import SettingsError
from turnwise.states.files import path_text
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Count, Positive
from turnwise.states.values.plain import shown

WEB: Final = ("http", "https")
Place = str | os.PathLike[str]


@checked
class Checkpoints:
    """Publishes signed lengths and hashes of the logs, so that a later rewrite of the database is found.

    The process that has committed does so in the background whenever the chat comes to rest: a turn never waits for it,
    and never fails by it. A failed attempt is logged and repeated.

    Args:
        key: signs.
        to: the path of a file to which lines are appended, an address (`https://...`) to which they are posted, or
            several of these. It must be where those who may write to the database may not. A relative path stays the
            file that it is now.
        every: also whenever a log has grown by so many records.
        headers: of each request to an address, such as `Authorization`.
        timeout: the seconds that a request may take.
        catch_up: how many of the latest chats are checked when the engine is entered, for commits that a killed
            process has not published.

    Raises:
        SettingsError: `to` is neither a path nor an address, or a header cannot be sent.
    """

    def __init__(
        self,
        key: SigningKey,
        to: Annotated[Place | Sequence[Place], SkipValidation],
        *,
        every: Positive | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10,
        catch_up: Count = 1000,
    ) -> None:
        if not 0 < timeout <= _LONGEST:
            raise SettingsError("timeout", f"must be above 0 and {_LONGEST:g} seconds at most; it was {timeout:g}")
        places = [to] if isinstance(to, str | os.PathLike) else to
        if not isinstance(places, list | tuple) or not places:
            raise SettingsError("to", f"must be a path or an address, or a list of them; it was {shown(to)}")
        self.key = key
        self.every = every
        self.catch_up = catch_up
        self._made = [_maker(place, headers or {}, timeout) for place in places]
        self._names = [one.name for one in self.destinations]

    @property
    def destinations(self) -> Sequence[Destination]:
        """The places to publish to: addresses anew for each engine that is entered, files as they were named once."""
        return [made() for made in self._made]

    def __repr__(self) -> str:
        return f"Checkpoints({self.key!r}, to={self._names})"


def _maker(place: object, headers: Mapping[str, str], timeout: float) -> Callable[[], Destination]:
    path = path_text(place)
    if path is None:
        raise SettingsError("to", f"must be a path or an address; one was {shown(place)}")
    if isinstance(place, str) and "://" in path:
        try:
            url = urlsplit(path)
            usable = url.scheme in WEB and bool(url.hostname) and url.port != 0 and path.isprintable()
        except ValueError:
            usable = False
        if not usable or " " in path:
            raise SettingsError("to", "must be an address as https://host/path, or a path; it was neither")
        if "@" in url.netloc:
            raise SettingsError("to", "must name no user and password: `headers` can hold an Authorization")
        return partial(Address, path, headers, timeout)
    if not path or "\0" in path:
        raise SettingsError("to", f"must be a path or an address; one was {shown(path)}")
    file = PublishedFile(path)
    return lambda: file


_LONGEST: Final = 600.0
