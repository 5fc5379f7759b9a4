"""Names of workers. Other processes on the same host see from a name whether the worker's process is dead."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

_PROC = Path("/proc")


def worker_name() -> str:
    """Return a name for a worker of this process: host, PID, start time, and a random suffix."""
    pid = os.getpid()
    started = _start_ticks(pid) if _proc_shows_own_pid() else None
    return f"{_host_id()}:{pid}:{started or 0}:{secrets.token_hex(4)}"


def place_of(worker: str) -> tuple[str, int | None]:
    """Return the host of a worker, and its PID there."""
    host, _, rest = worker.partition(":")
    pid = rest.partition(":")[0]
    return host.partition("/")[0], int(pid) if pid.isdecimal() else None


def is_dead(worker: str) -> bool:
    """Whether the process of a worker is certainly gone; `False` if this process cannot tell."""
    host, _, rest = worker.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if host != _host_id() or not pid.isdecimal() or not started.isdecimal() or started == "0":
        return False
    try:
        return _proc_shows_own_pid() and _start_ticks(int(pid)) != int(started)
    except OSError:  # the process is gone, or hidden from this user
        return _pid_unused(int(pid))


def _host_id() -> str:
    """Return an id for the PID namespace: host, boot id, namespace inode."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = f"{(_PROC / 'self/ns/pid').stat().st_ino:x}"
    except OSError:
        boot = namespace = ""
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _proc_shows_own_pid() -> bool:
    """Whether `/proc` belongs to this process's PID namespace."""
    try:
        return (_PROC / "self").readlink() == Path(f"{os.getpid()}")
    except OSError:
        return False


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; `None` for a zombie.

    Raises:
        OSError: the process is gone, or hidden.
    """
    fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _pid_unused(pid: int) -> bool:
    """Whether no process has this PID, not even a hidden one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
