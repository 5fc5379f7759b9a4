"""Names of workers, from which others on the same machine see that a worker's process is dead."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

_PROC = Path("/proc")


def worker_name() -> str:
    """Return a name for a worker of this process: machine, process, start time, and a random word."""
    pid = os.getpid()
    started = _started(pid) if _sees_itself() else None
    return f"{_machine()}:{pid}:{started or 0}:{secrets.token_hex(4)}"


def is_dead(worker: str) -> bool:
    """Return whether the process of a worker is certainly gone; `False` if that is not known here."""
    machine, _, rest = worker.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if machine != _machine() or not pid.isdecimal() or not started.isdecimal() or started == "0":
        return False
    try:
        return _sees_itself() and _started(int(pid)) != int(started)
    except OSError:  # it is gone, or hidden from this user
        return _is_free(int(pid))


def _machine() -> str:
    """Return what is the same for processes whose numbers mean the same: host, boot and namespace of the numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = f"{(_PROC / 'self/ns/pid').stat().st_ino:x}"
    except OSError:
        boot = namespace = ""
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _sees_itself() -> bool:
    """Return whether the processes in `/proc` have the numbers that they have for this process."""
    try:
        return (_PROC / "self").readlink() == Path(f"{os.getpid()}")
    except OSError:
        return False


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; `None` if it is a zombie.

    Raises:
        OSError: it is gone, or hidden.
    """
    fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _is_free(pid: int) -> bool:
    """Return whether no process has a number, not even one that is hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
