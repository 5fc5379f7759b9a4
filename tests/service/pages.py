"""Pages of front ends: their npm clients in one Node process, which executes a page's steps."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

_NPM: Final = Path(__file__).parent / "npm"
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "turnwise-tests" / "npm"
_PATIENCE: Final = 300


@functools.cache
def installed() -> Path:
    """Install the clients once for all processes, from the lock file; return the folder of modules."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    lock = (_NPM / "package-lock.json").read_text()
    folder = _CACHE / hashlib.sha256(lock.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(folder)
    return folder / "node_modules"


def _install(folder: Path) -> None:
    for file in ("package.json", "package-lock.json"):
        shutil.copy(_NPM / file, folder)
    certificates = {"NODE_EXTRA_CA_CERTS": "/etc/ssl/certs/ca-certificates.crt"}
    command = ["npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit"]
    options: dict[str, Any] = {"cwd": folder, "env": certificates | os.environ, "capture_output": True}
    try:
        done = subprocess.run(command, **options, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm's registry does not answer in time")
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr[-300:]}")
    (folder / "done").touch()


@dataclass
class Pages:
    """A Node process that holds any number of pages."""

    node: subprocess.Popen[str]
    answers: dict[str, queue.SimpleQueue[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Pages]:
        with tempfile.TemporaryDirectory() as folder:
            scripts = Path(shutil.copytree(_NPM, Path(folder) / "npm"))
            (scripts / "node_modules").symlink_to(installed())
            yield from cls._in(scripts)

    @classmethod
    def _in(cls, scripts: Path) -> Iterator[Pages]:
        command = ["node", "pages.mjs"]
        with subprocess.Popen(command, cwd=scripts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
            running = cls(node)
            reader = threading.Thread(target=running._read)
            reader.start()
            try:
                yield running
            finally:
                node.kill()
                reader.join()

    def open(self, dialect: str, url: str, *, token: str = "ada-token", thread: str | None = None) -> Page:  # noqa: S107 - of the tests
        """Open a page.

        Args:
            dialect: `agui`, `ai-6` or `ai-7`.
            url: of the service.
            token: of its user.
            thread: its own name of the chat.
        """
        name = f"page-{len(self.answers)}"
        self.answers[name] = queue.SimpleQueue()
        return Page(self, {"page": name, "dialect": dialect, "url": url, "token": token, "thread": thread or name})

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Execute a step of a page; return the page's data then."""
        self.node.stdin.write(f"{json.dumps(asked)}\n")
        self.node.stdin.flush()
        answer = self.answers[asked["page"]].get(timeout=_PATIENCE)
        assert "told" in answer, answer["problem"]
        data: dict[str, Any] = answer["told"]
        return data

    def _read(self) -> None:
        assert self.node.stdout is not None
        for line in self.node.stdout:
            answer = json.loads(line)
            self.answers[answer["page"]].put(answer)


@dataclass
class Page:
    """A page, and its data after the last step."""

    pages: Pages
    name: dict[str, str]
    has: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, step: str, *args: Any, until: str | None = None) -> dict[str, Any]:
        """Take a step.

        It is `say`, `answer`, `approve`, `resume`, `regenerate`, `reload`, `edit`, `leave`, `interrupt` or `settle`.

        Args:
            step: what to do.
            args: the text, the output, whether it is allowed.
            until: end the step when the answer holds this text; what was begun goes on.
        """
        asked = {**self.name, "step": step, "given": args, "until": until}
        self.has = await anyio.to_thread.run_sync(self.pages.ask, asked)
        return self.has

    @property
    def text(self) -> str:
        """The last answer's text, joined over its steps."""
        message = self.has["messages"][-1]
        if "parts" in message:
            return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
        return str(message["content"])
