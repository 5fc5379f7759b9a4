"""TCP keepalive: a kernel otherwise holds a connection whose packets vanish for hours."""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple

_COUNT: Final = 3
_INTERVALS: Final = 5
"""How many intervals between probes fit into the time."""


class Keepalive(NamedTuple):
    """Seconds before the first probe and between probes, and their number."""

    idle: int
    interval: int
    probes: int


def keepalive(after_s: int) -> Keepalive:
    """Return the probes that end an idle connection after so many seconds."""
    interval = max(1, after_s // _INTERVALS)
    return Keepalive(max(1, after_s - _COUNT * interval), interval, _COUNT)


def end_if_lost(transport: Any, after_s: int) -> None:
    """Let the kernel end a transport's connection if the other side has acknowledged nothing for so many seconds.

    Nothing happens where there is no socket of TCP. Each system knows some of the options.
    """
    connected: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wanted = keepalive(after_s)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {
        "TCP_KEEPIDLE": wanted.idle,
        "TCP_KEEPINTVL": wanted.interval,
        "TCP_KEEPCNT": wanted.probes,
        "TCP_USER_TIMEOUT": after_s * 1000,  # no probes are sent while data waits for an acknowledgement
    }.items():
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
