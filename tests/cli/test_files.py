"""Files that commands and their tools read and write, and folders of a store's files."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from typer.testing import CliRunner

from support.files import digest_of
from support.terminal import Terminal
from turnwise import Engine, FolderFiles, Settings, TextPart
from turnwise.cli.app import app
from turnwise.cli.files import WholeFile, input_lines, read_file, write_file
from turnwise.cli.target import file_tools
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import ImportRefused, SettingsError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / ".env").write_text("hidden")
    (folder / "below" / "page.md").write_text("a page")
    (folder / "a.md").write_text("0123456789")
    (tmp_path / "outside.md").write_text("outside")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    return folder


def tools(folder: Path) -> tuple[Any, Any]:
    list_files, read_file = file_tools(folder)
    return list_files.run, read_file.run


def test_demo_tool_lists_visible_files(folder: Path) -> None:
    list_files, _ = tools(folder)
    assert list_files() == ["a.md", "below/", "link.md"]
    assert list_files("below") == ["page.md"]


def test_long_file_is_truncated(folder: Path) -> None:
    (folder / "long.md").write_text("x" * 20_001)
    assert tools(folder)[1]("long.md") == "x" * 20_000 + "\n[cut: the file goes on]"
    assert tools(folder)[1]("below/../a.md") == "0123456789"


def test_hidden_and_outside_files_are_refused(folder: Path) -> None:
    for path, words in {
        "../outside.md": "lies outside the folder 'folder'",
        "link.md": "lies outside",
        "/etc/passwd": "lies outside",
        ".env": "is hidden",
        ".git/config": "is hidden",
    }.items():
        for tool in tools(folder):
            with pytest.raises(PermissionError, match=words):
                tool(path)


def open_lines(option: str, path: Path) -> None:
    with input_lines(option, str(path)) as lines:
        next(lines)


def test_unusable_input_is_explained(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"\xff\r\n")
    assert read_file("--key", tmp_path / "file") == b"\xff\r\n"
    for name, problem in {
        "missing": "'{}/missing' cannot be read: No such file or directory",
        "folder": "'{}/folder' cannot be read: Is a directory",
    }.items():
        for command in (read_file, open_lines):
            with pytest.raises(SettingsError, match="--this") as refused:
                command("--this", tmp_path / name)
            assert problem.format(tmp_path) in str(refused.value)


def test_endless_first_line_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**33)  # eight GiB that take no room
    with pytest.raises(ImportRefused, match=r"line 1.*does not end after \S+ bytes"):
        open_lines("FILE", tmp_path / "file")


def test_full_device_is_named() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        write_file("--this", Path("/dev/full"), "text")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/file", "No such file or directory"),
        ("folder", "Is a directory"),
        ("file/below", "Not a directory"),
        ("circle", "Too many levels of symbolic links"),
        ("n" * 256, "File name too long"),
    ],
)
def test_unusable_output_is_explained(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SettingsError, match="--this") as refused:
        write_file("--this", tmp_path / name, "text")
    assert f"'{tmp_path / name}' cannot be written: {problem}" in str(refused.value)
    assert (sorted(tmp_path.iterdir()), (tmp_path / "file").read_text()) == (before, "kept")


def test_output_file_is_replaced_atomically(tmp_path: Path) -> None:
    """A link stays, and its target is written."""
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("before")
    secret.chmod(0o600)
    link.symlink_to(secret)
    with WholeFile("--out", link) as file:
        file.write("af")
        assert secret.read_text() == "before"
        file.write(b"ter")
    assert (secret.read_text(), secret.stat().st_mode & 0o777, link.is_symlink()) == ("after", 0o600, True)
    write_file("--out", tmp_path / "n", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "n", "secret"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), WholeFile("--out", path) as file:  # noqa: PT012 - the block writes
        file.write("half")
        raise KeyboardInterrupt
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "before")]


SCAN: Final = b"a page" * 1000
NAMED: Final = ("--file-folder", "files")


@pytest.fixture
def chat_id(terminal: Terminal) -> str:
    """Create a chat with a file in a folder, beside another store's folder and an unrelated one."""
    (terminal.folder / "foreign").mkdir()
    (terminal.folder / "file").write_text("no folder")
    return anyio.run(_chat_with_file, terminal.folder)


async def _chat_with_file(folder: Path) -> str:
    settings = Settings(run_worker=False)
    for store, files in (("other.db", "others"), ("turnwise.db", "files")):
        async with Engine(
            f"sqlite:///{folder / store}", model="demo", files=FolderFiles(folder / files), settings=settings
        ) as engine:
            chat = await engine.create_chat()
            scan = await engine.put_file(chat.id, SCAN, media_type="image/png", name="scan.png")
            await engine.send_message(chat.id, [TextPart(text="look"), scan])
    return chat.id


def blob(terminal: Terminal, folder: str = "files") -> Path:
    (path,) = (terminal.folder / folder / "blobs").rglob(digest_of(SCAN))
    return path


def test_verify_reads_the_file_folder(terminal: Terminal, chat_id: str) -> None:
    sound = terminal.run("verify", chat_id, "--files", *NAMED)
    assert (sound.code, "every file of the chat is there" in sound.words) == (0, True), sound
    blob(terminal).write_bytes(SCAN[:-1] + b"?")
    assert terminal.run("verify", chat_id, *NAMED).code == 0
    damaged = terminal.run("verify", chat_id, "--files", *NAMED)
    assert (damaged.code, f"The file {digest_of(SCAN)} is damaged" in damaged.words) == (1, True), damaged
    assert json.loads(terminal.run("verify", chat_id, "--files", "--json", *NAMED).out)["place"] == "messages[m1].body"
    assert "every file of the chat is there" not in damaged.words
    log = terminal.run("verify", "file", "--files")
    assert (log.code, "an exported log holds no files" in log.words) == (2, True), log


WRONG: Final = {
    (): "and 'database' was to be used; name the folder that holds them",
    ("--file-folder", "others"): "name the folder that holds them",
    ("--file-folder", "foreign"): "/foreign' of files holds no files of a store",
    ("--file-folder", "nowhere"): "/nowhere' of files is not there",
    ("--file-folder", "file"): "/file' of files is not there",
}


def test_foreign_file_folder_is_refused(terminal: Terminal, chat_id: str) -> None:
    before = sorted(terminal.folder.rglob("*"))
    for words, problem in WRONG.items():
        for command, *options in (("verify", "--files"), ("export", "-o", "chat.jsonl")):
            refused = terminal.run(command, chat_id, *options, *words)
            assert (refused.code, problem in refused.words) == (2, True), refused
            assert "--file-folder" in refused.words
    assert sorted(terminal.folder.rglob("*")) == before


def test_doctor_names_missing_files(terminal: Terminal, chat_id: str) -> None:
    """If the doctor cannot read the files, it reports that as a problem."""
    sound = terminal.run("doctor", *NAMED)
    assert (sound.code, "keeps its promises; no file is missing" in sound.words) == (0, True), sound
    assert "every file is there, byte for byte" in terminal.run("doctor", "--files", *NAMED).words
    blind = terminal.run("doctor")
    assert (blind.code, "were not looked at" in blind.words) == (1, True), blind
    assert terminal.run("doctor", "--file-folder", "others").code == 2
    blob(terminal).unlink()
    report = terminal.run("doctor", *NAMED)
    assert report.code == 1
    line = f"messages[m1].body, part 1: the file scan.png (image/png), {digest_of(SCAN)} is not there"
    assert chat_id in report.words
    assert line in report.words
    assert max(map(len, report.out.splitlines())) <= 80, report.out
    assert digest_of(SCAN) in report.out.split()
    assert "turnwise erase CHAT MESSAGE" in report.words
    (found,) = json.loads(terminal.run("doctor", "--json", *NAMED).out)
    assert (found["chat_id"], found["issues"]) == (chat_id, [])
    assert [lost["digest"] for lost in found["files"]] == [digest_of(SCAN)]
    misuse = terminal.run("doctor", "--files", "--repair", chat_id)
    assert (misuse.code, "leave --repair and --export out" in misuse.words) == (2, True), misuse
    assert terminal.run("erase", chat_id, "m1", "--yes", *NAMED).code == 0
    assert terminal.run("doctor", "--files", *NAMED).code == 0


def test_erased_file_leaves_its_folder(terminal: Terminal, chat_id: str) -> None:
    path = blob(terminal)
    unnamed = terminal.run("erase", chat_id, "m1", "--yes")
    assert (unnamed.code, path.exists(), "a folder that --file-folder has to name" in unnamed.words) == (0, True, True)
    erased = terminal.run("erase", chat_id, "m1", "--yes", *NAMED)
    assert (erased.code, path.exists(), "--file-folder" in erased.words) == (0, False, False), erased


# The doctor


async def _two_chats(store: str) -> tuple[str, str]:
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        sound, broken = await engine.create_chat(), await engine.create_chat(title="kept")
        await engine.send_message(broken.id, "hello")
        return sound.id, broken.id


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words])
    return result.exit_code, result.output


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'chats.db'}"


def test_doctor_names_exports_and_repairs_a_chat(store: str, tmp_path: Path) -> None:
    """Nothing is lost: the unreadable row is in the export and in the quarantine."""
    sound, broken = anyio.run(_two_chats, store)
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on, on:
        on.execute(
            "UPDATE messages SET body = 'no JSON' WHERE chat = (SELECT number FROM chats WHERE id = ?)", (broken,)
        )
    code, printed = _run("--store", store)
    assert code == 1
    assert "messages.body" in printed
    assert broken in printed
    assert sound not in printed
    for chat_id, exit_code in ((sound, 0), (broken, 1)):
        for form in ([], ["--json"]):
            explained = CliRunner().invoke(app, ["explain", chat_id, "--store", store, *form])
            assert (explained.exit_code, "messages.body" in explained.output) == (exit_code, chat_id == broken)
    found = json.loads(_run("--store", store, "--json")[1])
    assert [diagnosis["chat_id"] for diagnosis in found] == [broken]
    assert json.loads(explained.output)["unreadable"] == found[0]["issues"]
    assert [(set(issue), issue["column"]) for issue in found[0]["issues"]] == [({"column", "problem"}, "messages.body")]
    file = tmp_path / "rows.jsonl"
    assert _run("--store", store, "--export", broken, str(file))[0] == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert "no JSON" in [row["row"].get("body") for row in rows if row["table"] == "messages"]
    code, printed = _run("--store", store, "--repair", broken, "--json", "--actor", "jane")
    chat = json.loads(printed)
    assert (code, chat["state"], chat["title"]) == (0, "error", "kept")
    assert _run("--store", store, "--json") == (0, "[]\n")
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on:
        aside = on.execute("SELECT origin, row FROM quarantine").fetchall()
        reasons = on.execute(
            "SELECT body FROM audit_log WHERE chat_id = ? ORDER BY version DESC",
            (broken,),
        ).fetchone()
    assert ("messages", "no JSON") in [(origin, json.loads(row)["body"]) for origin, row in aside]
    assert "repaired" in reasons[0]
    assert "messages.body" in reasons[0]
    assert json.loads(reasons[0])["actor"] == "jane"


def test_doctor_takes_one_action(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, broken = anyio.run(_two_chats, store)
    monkeypatch.chdir(tmp_path)
    for words in (("--export", broken), ("rows.jsonl",), ("rows.jsonl", "--export", broken, "--repair", broken)):
        result = CliRunner().invoke(app, ["doctor", "--store", store, *words])
        assert isinstance(result.exception, SettingsError)
        assert "takes either --repair CHAT, or --export CHAT FILE, or neither" in str(result.exception)
    assert not (tmp_path / "rows.jsonl").exists()
