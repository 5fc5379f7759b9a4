"""Fixtures and hooks of all tests."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from turnwise.states.values.plain import well_formed

pytest.register_assert_rewrite("support", "turnwise.testing.conformance")

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

TESTS: Final = Path(__file__).parent
_left_out: Counter[str] = Counter()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run a PostgreSQL server for all tests of this process that neither restart it nor cut connections."""
    with Server.running() as server:
        yield server


def pytest_configure() -> None:
    """Handle Ctrl-C: a suite that a shell started in the background ignores it, and so do its processes."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from later garbage collections, and collect as services do."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember the deep tests that are left out, by file."""
    _left_out.update(item.path.relative_to(TESTS).as_posix() for item in items if item.get_closest_marker("deep"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send them to the process that prints the summary: each of xdist's workers collects all tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take them from a worker."""
    _left_out.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - _left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that only `make prove` runs."""
    if not _left_out:
        return
    by_folder: dict[str, list[str]] = defaultdict(list)
    for file, count in sorted(_left_out.items()):
        folder, _, name = file.rpartition("/")
        by_folder[folder or "tests"].append(f"{name.removeprefix('test_').removesuffix('.py')} {count}")
    terminalreporter.section(f"{_left_out.total()} deep tests, and more examples of property tests: make prove")
    for folder, files in by_folder.items():
        terminalreporter.write_line(f"{folder}: {', '.join(files)}")


def pytest_runtest_teardown() -> None:
    """Reset the log's configuration: capturing log lines counts as configuring structlog."""
    logging.raiseExceptions = True
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Replace lone surrogates in reports, which would break the pipe between pytest's processes."""
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
