"""The README's service: its three commands, unchanged but for the port."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.examples import EXAMPLES

from support.processes.service_process import running

README = EXAMPLES.parent / "README.md"


def commands() -> list[str]:
    section = README.read_text().partition("## As a service")[2].partition("## ")[0]
    return re.findall(r"^\$ (.+)$", section, re.MULTILINE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's commands are curl's")
def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    port = str(free_port())
    serve, create, send = (command.replace("localhost:8080", f"127.0.0.1:{port}") for command in commands())
    setting, program, *words = serve.split()
    name, _, token = setting.partition("=")
    assert (name, program) == ("TURNWISE_TOKEN", "turnwise")
    with running(tmp_path, *words, "--port", port, TURNWISE_TOKEN=token) as service:
        service.url()
        done = subprocess.run(
            ["/bin/sh", "-euc", f"{create}\n{send}"],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert '"replayed":false' in done.stdout
    assert "event: turn_finished" in done.stdout
    assert "Hello!" in done.stdout


def test_agents_are_declared_without_a_store() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from examples.service import agents; print([a.name for a in agents])"],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['support']\n"
