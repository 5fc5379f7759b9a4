"""Run the steps and commands of the image and of the composition in clean folders, without Docker."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.processes.postgres_server import Server
from support.processes.service_process import AUTHORIZED, TOKEN, Process, running

ROOT = Path(__file__).parents[2]
SHIPPED = ("src", "clients", "examples")
BESIDE = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def last(name: str) -> str:
    return [value for found, value in instructions() if found == name][-1]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the image's pip steps in a fresh virtual environment; return its path."""
    folder = tmp_path_factory.mktemp("image")
    source = folder / "src"
    source.mkdir()
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = shlex.join([sys.executable, "-m", "pip", "--python", f"{folder}/venv/bin/python", "--quiet"])
    quick = os.environ | {"PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    steps = [value for name, value in instructions() if name == "RUN" and value.startswith("pip ")]
    assert len(steps) == 2
    for step in steps:
        there = step.replace("/wheels", f"{folder}/wheels").replace("/src[", f"{source}[")
        # the models' libraries are large, and tested elsewhere
        command = re.sub(r"^pip", pip, there.replace("models,", ""))
        done = subprocess.run(["/bin/sh", "-euc", command], env=quick, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "venv"


def program(image: Path) -> list[str]:
    (entry,) = json.loads(last("ENTRYPOINT"))
    return [str(image / "bin" / entry)]


@pytest.mark.deep
def test_image_serves_and_is_healthy(image: Path, tmp_path: Path) -> None:
    copied = next(value for name, value in instructions() if name == "COPY" and value.startswith("examples/"))
    source, target = copied.split()
    (tmp_path / target).parent.mkdir()
    shutil.copy(ROOT / source, tmp_path / target)
    check = json.loads(re.sub(r"^.*?CMD ", "", last("HEALTHCHECK")))
    with running(tmp_path, *json.loads(last("CMD")), "--port", "0", program=program(image)) as service:
        url = service.url().replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - an image listens on all of its addresses
        port = url.rpartition(":")[2]
        healthy = [word.replace(":8080", f":{port}") for word in check]
        ill = [word.replace(":8080", ":1") for word in check]
        codes = [subprocess.run([image / "bin" / command[0], *command[1:]], capture_output=True, check=False).returncode
                 for command in (healthy, ill)]  # fmt: skip
        created = httpx.post(f"{url}/chats", json={}, headers=AUTHORIZED, timeout=60)
    assert codes[0] == 0
    assert codes[1] != 0
    assert (created.status_code, last("EXPOSE")) == (201, "8080")


def test_image_runs_without_root() -> None:
    names = [name for name, _ in instructions()]
    bases = [value for name, value in instructions() if name == "FROM"]
    assert all("-slim" in base for base in bases)
    assert last("USER") == "turnwise"
    assert names.index("USER") < names.index("CMD")
    assert (last("STOPSIGNAL"), "HEALTHCHECK" in names) == ("SIGTERM", True)
    assert ".venv*" in (ROOT / ".dockerignore").read_text().split()


def composition() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text())["services"])


@pytest.mark.deep
def test_composition_works_on_one_postgresql(postgres: Server, tmp_path: Path) -> None:
    """One replica accepts the message, a worker answers it, and the other replica streams the answer."""
    services, store = composition(), postgres.new_url("composed")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert set(services) == {"database", "worker-1", "worker-2", "api-1", "api-2"}
    with ExitStack() as stack:
        started: dict[str, Process] = {}
        for name in ("api-1", "worker-1", "worker-2", "api-2"):
            variables = services[name]["environment"]
            assert set(variables) == {"TURNWISE_STORE", "TURNWISE_TOKEN"}
            assert variables["TURNWISE_STORE"].startswith("postgresql://")
            environment = {"TURNWISE_STORE": store, "TURNWISE_TOKEN": TOKEN}
            words = [*services[name]["command"], *(["--port", "0"] if name.startswith("api") else [])]
            started[name] = stack.enter_context(running(tmp_path, *words, **environment))
        one, two = (started[name].url().replace("0.0.0.0", "127.0.0.1") for name in ("api-1", "api-2"))  # noqa: S104
        client = stack.enter_context(httpx.Client(headers=AUTHORIZED, timeout=60))
        chats = [client.post(f"{one}/chats", json={"owner": "ada"}).json()["id"] for _ in range(8)]
        for chat in chats:
            sent = client.post(f"{one}/chats/{chat}/messages", json={"content": "Hello!"})
            assert sent.status_code == 202
        reported = [client.get(f"{two}/chats/{chat}/events?until_rest=true").text for chat in chats]
        records = [client.get(f"{two}/chats/{chat}/audit").json() for chat in chats]
        codes = [process.stop() for process in started.values()]
    assert all(text.count("event: turn_finished") == 1 for text in reported)
    workers = {record["actor"] for log in records for record in log if record["actor"].startswith("worker:")}
    assert len({worker.split(":")[2] for worker in workers}) in (1, 2)
    assert codes == [0, 0, 0, 0]
