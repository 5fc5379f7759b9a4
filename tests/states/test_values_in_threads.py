"""Values read in several threads at once, each kind for the first time: nothing may crash the process."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec

from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.states.decide import Decision
from turnwise.states.values import Value

NEVER_READ = (Decision, ModelPart, ModelReply)
THREADS = 4


def kinds_of(kind: type[Value]) -> list[type[Value]]:
    return [found for below in kind.__subclasses__() for found in (below, *kinds_of(below))]


def read_at_once(kind: type[Value]) -> None:
    """Read a value in several threads. Whether its fields may be `None` or not, their types are asked."""
    fields: dict[str, Any] = dict.fromkeys(kind.__struct_fields__)
    start = threading.Barrier(THREADS)

    def read() -> None:
        start.wait()
        for _ in range(20):
            with suppress(msgspec.ValidationError):
                msgspec.convert(fields, kind)

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_all_kinds() -> None:
    """Import every value of turnwise's, then read each kind; print how many there were."""
    for package in ("states", "persistence", "providers"):
        for module in pkgutil.iter_modules([*import_module(f"turnwise.{package}").__path__]):
            import_module(f"turnwise.{package}.{module.name}")
    sys.setswitchinterval(1e-7)
    kinds = [kind for kind in kinds_of(Value) if kind.__struct_fields__ and kind not in NEVER_READ]
    for kind in kinds:
        read_at_once(kind)
    sys.stdout.write(str(len(kinds)))


def test_first_decode_is_thread_safe() -> None:
    """Msgspec learns how to read a kind of value when it meets it, and is not prepared for two threads that both do."""
    done = subprocess.run(
        [sys.executable, __file__], check=False, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout) > 50


if __name__ == "__main__":
    read_all_kinds()
