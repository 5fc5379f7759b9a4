"""The built packages install alone, and hold exactly the needed files."""

import email
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
import readme_renderer.markdown

from support.node import CLIENT, NODE, needs_node

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"

pytestmark = pytest.mark.deep  # pip asks its index for the dependencies


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@dataclass
class Installed:
    """A fresh virtual environment with the wheel and its dependencies, and an empty folder to work in."""

    venv: Path
    cwd: Path

    def python(self, *arguments: str | Path) -> str:
        return run(self.cwd, self.venv / "bin" / "python", "-I", *arguments)

    def install(self, *wanted: str | Path) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.venv / "bin" / "python")
        run(self.cwd, *pip, "--quiet", "--disable-pip-version-check", "install", "--no-compile", *wanted)


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("cwd"))
    run(place.cwd, sys.executable, "-m", "venv", "--without-pip", place.venv)
    place.install(*dist.glob("*.whl"))
    return place


def test_library_alone_brings_no_command_line(installed: Installed) -> None:
    """Only the dependencies of an embedded engine are installed; the script names its missing extra."""
    script = (installed.venv / "bin" / "turnwise", "--version")
    refused = subprocess.run(script, cwd=installed.cwd, capture_output=True, text=True, check=False)
    assert (refused.returncode, "pip install 'turnwise[cli]'" in refused.stderr) == (2, True), refused
    code = "import importlib.metadata; print(*sorted(one.name for one in importlib.metadata.distributions()))"
    brought = set(installed.python("-c", code).split())
    assert not brought & {"typer", "rich", "prompt_toolkit", "click", "Pygments", "pytest"}


def run(cwd: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def shipped() -> set[str]:
    """Return the required files of an installed turnwise."""
    files = {path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    client = {f"turnwise/service/client/{path.name}" for path in CLIENT.iterdir() if is_published(path)}
    return {path.relative_to(SOURCES).as_posix() for path in files} | client


def is_published(path: Path) -> bool:
    """Return whether a file of the TypeScript client is part of its package."""
    return path.suffix == ".js" or path.name in {"index.d.ts", "package.json", "README.md"}


def test_wheel_holds_exactly_the_files_of_the_library(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == shipped()
    expected = {*(".py", ".typed", ".sql", ".svg", ".mmd", ".json", ".jsonl"), *(".html", ".css", ".js", ".ts", ".md")}
    assert {Path(name).suffix for name in names} == expected


def test_sdist_holds_tests_docs_and_examples(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "examples/readme.py", "docs/index.md", "tests/test_packaging.py"}
    assert wanted <= names
    sources = {name.replace("turnwise/service/client/", "../clients/typescript/") for name in shipped()}
    assert {f"src/{name}".replace("src/../", "") for name in sources} <= names


@pytest.fixture(scope="module")
def metadata(dist: Path) -> Message:
    (wheel,) = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_string(archive.read(name).decode())


def test_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Name"] == "turnwise"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13))} <= {
        *classifiers
    }
    assert set(metadata.get_all("Provides-Extra") or []) >= {"postgres", "models", "mcp", "png", "client", "service"}


def test_readme_renders_on_a_package_index(metadata: Message) -> None:
    """As the index renders it: with every heading, table and example, and no link into a repository."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = readme_renderer.markdown.render(str(metadata.get_payload()))
    assert re.findall(r'(?:href|src)="(?!https:|#)([^"]*)"', page) == []
    readme = (ROOT / "README.md").read_text()
    outside = re.sub(r"^```.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL)
    assert page.count("<h2") == len(re.findall(r"^## ", outside, re.MULTILINE))
    assert page.count("<table") == len(re.findall(r"^\| ---", outside, re.MULTILINE))
    assert "](" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_installed_package_is_typed(installed: Installed) -> None:
    """A user's pyright finds the types by `py.typed`: right code passes, mistakes do not."""
    lines = ("from turnwise import Engine", "Engine('sqlite://', model='demo')", "Engine('sqlite://', modle='demo')")
    (installed.cwd / "user.py").write_text("\n".join(lines))
    command = (Path(sys.executable).with_name("basedpyright"), "--outputjson", "--level", "error")
    python = ("--pythonpath", installed.venv / "bin" / "python")
    done = subprocess.run(
        [*command, *python, "user.py"], cwd=installed.cwd, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [(one["range"]["start"]["line"], one["rule"]) for one in found] == [(2, "reportCallIssue")]


def test_demo_runs_when_installed(installed: Installed, dist: Path) -> None:
    """It reads and writes real files, and kills a process of its own: the wheel must hold all that it needs."""
    (wheel,) = dist.glob("*.whl")
    installed.install(f"{wheel}[cli]")
    said = run(installed.cwd, installed.venv / "bin" / "turnwise", "demo", "--fast")
    assert "a forged log is found out" in said
    assert {path.name for path in (installed.cwd / "demo-out").iterdir()} >= {"chats.db", "audit.jsonl", "machine.svg"}


SERVE = """
import asyncio, json, sys
from fastapi import FastAPI
from turnwise import Engine
from turnwise.service import Principal, StaticTokens, router
app = FastAPI()
auth = StaticTokens({"ada-token": Principal("ada")})
app.include_router(router(Engine("sqlite://", model="demo"), auth=auth), prefix="/v1")
async def get(path):
    sent = []
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
             "raw_path": path.encode(), "query_string": b"", "headers": [], "server": ("x", 80), "client": ("x", 1)}
    async def send(message):
        sent.append(message)
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()
print(json.dumps({name: asyncio.run(get(f"/v1/client/{name}")) for name in sys.argv[1:]}))
"""


def test_installed_service_serves_the_client(installed: Installed, dist: Path) -> None:
    """All its modules, without a token, below the prefix of an application of one's own."""
    (wheel,) = dist.glob("*.whl")
    installed.install(f"{wheel}[service]")
    modules = {path.name: path.read_text() for path in CLIENT.glob("*.js")}
    served = json.loads(installed.python("-c", SERVE, *modules))
    assert served == {name: [200, text] for name, text in modules.items()}


@needs_node
def test_npm_package_is_complete_and_imported(metadata: Message, tmp_path: Path) -> None:
    """As `npm publish` would send it, and as a page's project installs it."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    run(CLIENT, npm, "pack", "--pack-destination", tmp_path)
    (file,) = tmp_path.glob("*.tgz")
    with tarfile.open(file) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        about = json.load(archive.extractfile("package/package.json") or io.BytesIO())
    assert names == {"LICENSE", *(path.name for path in CLIENT.iterdir() if is_published(path))}
    assert (about["name"], about["version"], about["license"]) == ("turnwise", metadata["Version"], "MIT")
    assert about["repository"]["directory"] == CLIENT.relative_to(ROOT).as_posix()
    assert {about["types"], *about["exports"]["."].values()} == {"./index.d.ts", "./index.js"}
    (tmp_path / "package.json").write_text('{"type": "module"}')
    run(tmp_path, npm, "install", "--offline", "--no-audit", "--no-fund", file)
    script = "import * as turnwise from 'turnwise'; console.log(Object.keys(turnwise).join())"
    assert run(tmp_path, NODE, "--input-type=module", "-e", script).strip() == "Problem,fold,follow,liveText,watch"
