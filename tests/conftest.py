"""What every test shares."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from turnwise.states.unicode import well_formed

pytest.register_assert_rewrite("support", "turnwise.persistence.conformance")

# Only what is imported from here on is rewritten.
from support.exploring import EXPLORING, examples  # noqa: E402
from support.processes.postgres_server import Server  # noqa: E402

hypothesis.settings.register_profile(
    "on a busy machine",
    max_examples=examples(100),
    derandomize=not EXPLORING,
    print_blob=EXPLORING,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("on a busy machine")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run a PostgreSQL server for all tests of this process that neither restart it nor cut connections."""
    with Server.running() as server:
        yield server


def pytest_configure() -> None:
    """Let Ctrl-C be heard: a suite that a shell has started in the background ignores it, and so do its processes."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of every garbage collection to come, and collect as services do."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_runtest_teardown() -> None:
    """Let no test configure the log of those after it: capturing what is logged counts as configuring structlog."""
    logging.raiseExceptions = True
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let no half characters that a test logged or compared break the pipe between pytest's processes."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {key: _encodable(kept) for key, kept in value.items()}
        case list() | tuple():  # a report of a skipped test is a tuple, and has to stay one
            return type(value)(_encodable(kept) for kept in value)
    return value
