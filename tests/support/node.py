"""Node.js runs the TypeScript client from the repository, with nothing installed."""

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pytest

from turnwise.states.events import Event
from turnwise.states.transcript import Transcript, fold

CLIENT: Final = Path(__file__).parents[2] / "clients" / "typescript"
SCRIPTS: Final = Path(__file__).parent / "typescript"
NODE: Final = shutil.which("node") or ""
needs_node = pytest.mark.skipif(not NODE, reason="there is no `node` on the PATH, and the module runs in Node.js")


class AskNode(Protocol):
    """Returns JavaScript's fold of a log; events are turnwise's or JSON, a transcript is JSON."""

    def __call__(self, events: Sequence[Any], transcript: Any = None) -> Any: ...


@contextmanager
def folding() -> Iterator[AskNode]:
    """Run one Node process that folds any number of logs."""
    process = subprocess.Popen([NODE, SCRIPTS / "fold.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    asked, replies = process.stdin, process.stdout

    def ask(events: Sequence[Any], transcript: Any = None) -> Any:
        question = {"events": events} if transcript is None else {"events": events, "transcript": transcript}
        asked.write(msgspec.json.encode(question) + b"\n")
        asked.flush()
        return json.loads(replies.readline())

    with process:
        yield ask


def folded(events: Sequence[Event]) -> dict[str, Any]:
    """Return Python's fold of a log, in the form of `fold.mjs`."""
    cuts = range(len(events) + 1)
    beginnings = [fold(events[:cut]) for cut in cuts]
    one_by_one = Transcript()
    for event in events:
        one_by_one = fold([event], one_by_one)
    return {
        "beginnings": [spelled(beginning) for beginning in beginnings],
        "texts": [beginning.live_text for beginning in beginnings],
        "wholes": [spelled(fold(events[cut:], copy.deepcopy(beginnings[cut]))) for cut in cuts],
        "one_by_one": spelled(one_by_one),
        "again": spelled(fold(events, copy.deepcopy(beginnings[-1]))),
    }


def spelled(transcript: Transcript) -> Any:
    """Return a transcript as JSON: its messages, calls and errors as in events."""
    return json.loads(msgspec.json.encode(transcript))
