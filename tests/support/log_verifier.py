"""The verifier of logs that knows nothing of turnwise: `examples/verify-log.mjs`, in one Node process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.node import NODE, SCRIPTS

AskVerifier = Callable[..., tuple[bool, int | None]]
"""Returns whether a log is sound, and if not the version of the first record that is bad or missing."""


@contextmanager
def verifying() -> Iterator[AskVerifier]:
    """Give a function that verifies a log in Node: `key`, `public_key`, and `table=False` without the machine."""
    process = subprocess.Popen([NODE, SCRIPTS / "verify.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    asked, told = process.stdin, process.stdout

    def ask(
        text: str, *, key: str | None = None, public_key: str | None = None, table: bool = True
    ) -> tuple[bool, int | None]:
        given = {"text": text, "key": key, "publicKey": public_key, "withMachine": table}
        asked.write(json.dumps(given).encode() + b"\n")
        asked.flush()
        verdict: dict[str, Any] = json.loads(told.readline())
        assert verdict["ok"] or verdict["problem"]
        return verdict["ok"], verdict["position"]

    with process:
        yield ask
