"""The shipped examples, run by their path in a folder of their own."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.terminal import Finished, Keyboard, Terminal
from turnwise import Engine, Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
BARE = Path(__file__).parent / "bare"


@dataclass(frozen=True)
class Example:
    """An example, and its folder."""

    name: str
    folder: Path

    def run(self, *arguments: str, bare: bool = True, **environment: str) -> Finished:
        """Run it to its end, without a keyboard; if `bare`, with the packages of `make demo`, and no network."""
        done = subprocess.run(
            [*self.program, *arguments],
            cwd=self.folder,
            env=self.environment(bare=bare) | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, bare: bool = True) -> subprocess.Popen[bytes]:
        """Start it without waiting for its end."""
        nothing = subprocess.DEVNULL
        environment = self.environment(bare=bare)
        return subprocess.Popen(
            [*self.program, *arguments], cwd=self.folder, env=environment, stdin=nothing, stdout=nothing, stderr=nothing
        )

    def at_a_keyboard(self, *arguments: str) -> Keyboard:
        """Return the example at a terminal."""
        return Keyboard(Terminal(self.folder), arguments, program=self.program)

    def opened(self, store: str) -> Engine:
        """Return an engine on the example's chats; file paths are relative to its folder."""
        url = store.replace("sqlite:///", f"sqlite:///{self.folder}/")
        return Engine(url, model="demo", settings=Settings(run_worker=False))

    @property
    def program(self) -> Sequence[str]:
        """The command before the arguments."""
        return [sys.executable, "-W", "error", str(EXAMPLES / f"{self.name}.py")]

    def environment(self, *, bare: bool) -> dict[str, str]:
        """Return an environment without providers' keys."""
        known = {"COLUMNS": "200", "PATH": os.environ["PATH"], "HOME": str(self.folder)}
        return known | ({"PYTHONPATH": str(BARE)} if bare else {})


def module_of(name: str) -> Any:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module
