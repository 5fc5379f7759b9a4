"""Hides the password in a store's URL, for errors, logs and people."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from turnwise.states.errors import SettingsError

MASK: Final = "***"

_SECRET_OPTIONS: Final = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|key)[^=&]*=)[^&\s]*")

_OTHER_URL: Final = re.compile(r"([?&]direct_url=)([^&]*)")
"""The option of PostgreSQL's store that is a URL itself, percent-encoded or not."""


def without_password(url: str) -> str:
    """Return a store's URL with its password masked; in doubt it masks too much.

    Everything up to the last `@` counts as the password, so one that was not percent-encoded is masked, too.
    """
    if url.startswith("sqlite:"):
        return url
    url = _OTHER_URL.sub(lambda option: f"{option[1]}{quote(without_password(unquote(option[2])), safe='*')}", url)
    url = _SECRET_OPTIONS.sub(rf"\1{MASK}", url)
    head, at, tail = url.rpartition("@")
    if at:
        scheme, separator, user = head.partition("://") if "://" in head else ("", "", head)
        name, colon, _ = user.partition(":")
        url = f"{scheme}{separator}{name}{colon}{MASK if colon else ''}@{tail}"
    return url


def without_hosts(url: str) -> tuple[str, str]:
    """Return the URL with its servers taken out, and the servers, which are separated by commas.

    `urlsplit` refuses an IPv6 address behind another host, as in `h,[::1]:2`, in Pythons that are up to date.
    """
    scheme, separator, rest = url.partition("://")
    end = min((place for place in map(rest.find, "/?#") if place >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return f"{scheme}{separator}{user}{at}{rest[end:]}", hosts


def check_password(url: str) -> None:
    """Refuse a URL in which part of an unencoded password would be read as host, port or database.

    Raises:
        SettingsError: the password must be percent-encoded; the text does not show it.
    """
    try:
        bare, servers = without_hosts(url)
        parts = urlsplit(bare)
        for server in servers.split(","):
            _ = urlsplit(f"//{server}").port
    except ValueError:
        malformed = True
    else:
        malformed = any(
            "@" in rest and "=" not in rest.partition("@")[0] for rest in (parts.path, parts.query, parts.fragment)
        )
    if malformed:
        problem = (
            f"{without_password(url)!r} cannot be read; write user:password@host:port/database, and in the password"
            " %40 for @, %2F for /, %3A for :, %3F for ?, %23 for #, %25 for %"
        )
        raise SettingsError("store", problem) from None
