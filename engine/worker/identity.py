"""Names of workers, from which others on the same machine can tell that a worker's process is dead."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def worker_name() -> str:
    """Return a name for a worker of this process: machine, process, start time, and a random word."""
    pid = os.getpid()
    return f"{_machine()}:{pid}:{_started(pid) or 0}:{secrets.token_hex(4)}"


def is_dead(worker: str) -> bool:
    """Return whether the process of a worker is certainly gone; `False` if this machine cannot tell."""
    machine, _, rest = worker.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    if machine != _machine() or not pid.isdecimal() or not started.isdecimal() or started == "0":
        return False
    return _started(int(pid)) != int(started)


def _machine() -> str:
    try:
        boot = _BOOT_ID.read_text().strip()[:8]
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; `None` if it is gone, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
