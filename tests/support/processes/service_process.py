"""`turnwise serve` and `turnwise worker` as processes of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from support.served import TRUSTED

TOKEN: Final = "operator-token"  # noqa: S105 - of the tests
AUTHORIZED: Final = {"Authorization": f"Bearer {TOKEN}"}
_SERVING: Final = re.compile(r"serving on (http://\S+);")
_PATIENCE: Final = 300.0


@dataclass
class Process:
    """A process of the command line."""

    popen: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(_PATIENCE)

    def url(self) -> str:
        """Return its URL, once it is ready."""
        ends = time.monotonic() + _PATIENCE
        while time.monotonic() < ends and self.popen.poll() is None:
            found = _SERVING.search(self.output())
            if found is not None:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{found[1]}/readyz", timeout=_PATIENCE, verify=TRUSTED).is_success:
                        return found[1]
            time.sleep(0.05)
        raise AssertionError(f"it does not serve: {self.output()}")


@contextlib.contextmanager
def running(
    folder: Path, *words: str, program: Sequence[str] = (sys.executable, "-m", "turnwise"), **environment: str
) -> Iterator[Process]:
    """Run a command of turnwise in a folder during the block."""
    output = folder / f"output-{time.monotonic_ns()}"
    known: Mapping[str, str] = {"PATH": os.environ["PATH"], "COLUMNS": "200", "TURNWISE_TOKEN": TOKEN, **environment}
    with output.open("wb") as file:
        popen = subprocess.Popen(
            [*program, *words], cwd=folder, env=known, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield Process(popen, output)
    finally:
        popen.kill()
        popen.wait()
