"""The tutorials for the terminal: their files are written and their commands run as the pages show them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.processes.postgres_server import Server
from support.tutorials import commands, write_files

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
KILLED = (-9, 128 + 9)  # the latter if the shell waited for the program
NOT_TYPED = ("mkdir ", "python3 -m venv ", "pip ")
"""Commands that prepare the reader's machine, which tests need not run."""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def at_the_keyboard(folder: Path, store: str) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": programs, "HOME": str(folder), "COLUMNS": "80", "TURNWISE_STORE": store}


def test_first_chat(tmp_path: Path) -> None:
    """`PICTURES=1` puts its picture into the tutorial."""
    assert write_files("first-chat", tmp_path) == ["hello.py", "crash.py", "again.py"]
    environment = at_the_keyboard(tmp_path, "sqlite:///chats.db")
    for command, shown in commands("first-chat"):
        if command.startswith(NOT_TYPED):
            continue
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in (KILLED if command == "python crash.py" else (0,)), done
        printed = lines(done.stdout)
        assert [line for line in lines(shown) if line not in printed] == [], done.stdout
    if os.environ.get("PICTURES"):
        shutil.copy(tmp_path / "chat.svg", PICTURES / "tutorial-crash.svg")


@contextmanager
def started(command: str, folder: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a command of the page in its own terminal, during the block."""
    running = subprocess.Popen(
        ["/bin/sh", "-c", f"exec env {command}"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def read_until(process: "subprocess.Popen[str]", wanted: str) -> str:
    """Return a process's output until a line holds a text, or until it ends."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if wanted in line:
            break
    assert wanted in printed, printed
    return printed


@pytest.mark.deep
def test_fleet(tmp_path: Path, postgres: Server) -> None:
    """With a third of the page's questions, which leave a reader time."""
    assert write_files("fleet", tmp_path) == ["shop.py", "load.py"]
    program = (tmp_path / "load.py").read_text()
    assert "CUSTOMERS, QUESTIONS = 100, 15\n" in program
    (tmp_path / "load.py").write_text(program.replace("100, 15\n", "100, 5\n"))
    typed = [command for command, _ in commands("fleet")]
    old, load, new, listing, kill, *last = typed[typed.index("turnwise worker shop:agents") :]
    assert (load, new, kill) == ("python load.py", f"VERSION=2 {old}", "kill -9 PID")
    environment = at_the_keyboard(tmp_path, postgres.new_url("fleet"))
    with ExitStack() as terminals:

        def start(command: str, wanted: str) -> "subprocess.Popen[str]":
            process = terminals.enter_context(started(command, tmp_path, environment))
            read_until(process, wanted)
            return process

        workers = [start(old, "runs support") for _ in range(2)]
        customers = start(load, "50 {'version 1': 50}")
        workers[0].send_signal(signal.SIGINT)
        read_until(workers[0], "stopped")
        assert workers[0].wait() == 0
        start(new, "runs support")
        read_until(customers, "'version 2'")
        listed = subprocess.run(listing.split(), env=environment, capture_output=True, text=True, check=True)
        assert f":{workers[1].pid} " in listed.stdout
        workers[1].kill()
        start(new, "runs support")
        read_until(customers, "answered: 500 of 500")
        printed = {
            command: subprocess.run(command.split(), env=environment, capture_output=True, text=True, check=True).stdout
            for command in last
        }
        assert "50 shown" in printed["turnwise list"]
        assert "says version 2" in printed["turnwise show last"]
