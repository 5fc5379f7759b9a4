"""A real service: `python -m turnwise serve` in its own process, killed and restarted on the same port."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import talkative
from support.processes.service_process import TOKEN

TESTS = Path(__file__).parents[2]


@dataclass
class ServiceProcess:
    store: str
    words: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    @contextlib.contextmanager
    def running(cls, store: str, *words: str) -> Iterator[ServiceProcess]:
        """Run a service in the block. The arguments are options of `turnwise serve`."""
        service = cls(store, words)
        try:
            service.start()
            yield service
        finally:
            service.kill()

    def start(self) -> None:
        """Start it, on the same port as before; it listens when this returns."""
        command = [sys.executable, "-m", "turnwise", "serve", "support.processes.talkative:served"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--quiet", *self.words],
            cwd=TESTS,
            env=os.environ | {talkative.STORE: self.store, "TURNWISE_TOKEN": TOKEN, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        self.port = int(found[1])

    def stop(self) -> int:
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
