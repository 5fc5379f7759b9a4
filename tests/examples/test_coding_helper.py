"""The coding helper: its tools stay in their folder, every command needs approval, and commands have limits."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.examples.examples import Example, module_of

from turnwise import Engine, ToolResult
from turnwise.providers.scripted import Call, Reply, ScriptedModel

STORE = "sqlite:///workshop-chats.db"
PATIENCE = 300
REPAIRED = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n\n\nprint(mean([2, 3, 7]))\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Example:
    return Example("coding_helper", tmp_path)


async def outcomes(workshop: Example) -> list[tuple[str, bool]]:
    """Return the results of the coder's one chat by name, each with its error mark; verify its family."""
    async with workshop.opened(STORE) as engine:
        (chat,) = [chat for chat in (await engine.list_chats()).items if chat.agent == "coder"]
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict
        results = [message.result for message in await engine.messages(chat.id)]
        return [(result.name, result.is_error) for result in results if result]


WHOLE = [
    ("read", True),
    ("write", False),
    ("execute", False),
    ("edit", False),
    ("execute", False),
    ("ask_reviewer", False),
]


@pytest.mark.deep
async def test_program_is_written_run_repaired_and_reviewed(workshop: Example) -> None:
    done = workshop.run()
    assert (done.code, done.err) == (0, "")
    reported = [line.strip() for line in done.out.splitlines()]
    wanted = [
        "../workshop-chats.db is outside of the folder; name a file in it.",
        "NameError: name 'number' is not defined. Did you mean: 'numbers'?",
        "[exit code 1]",
        "4.0",
        "[exit code 0]",
        "Done. The reviewer said: 5 lines, no typo.",
    ]
    assert [line for line in reported if line in wanted] == wanted
    assert (workshop.folder / "workshop" / "mean.py").read_text() == REPAIRED
    assert await outcomes(workshop) == WHOLE
    async with workshop.opened(STORE) as engine:
        assert sorted(chat.agent for chat in (await engine.list_chats()).items) == ["coder", "reviewer"]


@pytest.mark.deep
async def test_killed_run_asks_again_and_obeys_a_no(workshop: Example) -> None:
    question = "Run 'python mean.py'? [y/N]"
    with workshop.at_a_keyboard() as keyboard:
        keyboard.see(question)
    with workshop.at_a_keyboard() as keyboard:
        keyboard.see(question)
        keyboard.type("y\r")
        keyboard.see("[exit code 1]")
        keyboard.see(question)
        keyboard.type("\r")
        keyboard.see("Then I leave it as it is.")
        assert keyboard.process.wait(PATIENCE) == 0
    assert await outcomes(workshop) == [*WHOLE[:4], ("execute", True)]


# The tools one by one


@pytest.fixture
def example() -> Any:
    return module_of("coding_helper")


async def results_of(example: Any, folder: Path, *calls: Call) -> list[tuple[bool, str]]:
    """Return each call's output and error mark; approve every question."""
    model = ScriptedModel([*[Reply(calls=[call]) for call in calls], "done"])
    tools = [example.read, example.write, example.edit, example.execute]
    async with Engine("sqlite://", model=model, tools=tools, deps=folder) as engine:
        chat = (await engine.ask((await engine.create_chat()).id, "go")).chat
        while chat.open_calls:
            await engine.submit_tool_results(
                chat.id, [ToolResult(call.call_id, {"approved": True}) for call in chat.open_calls]
            )
            chat = await engine.wait(chat.id)
        found = [message.result for message in await engine.messages(chat.id)]
    return [(result.is_error, str(result.output)) for result in found if result]


async def test_no_path_leaves_the_folder(example: Any, tmp_path: Path) -> None:
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    (tmp_path / "folder2").mkdir()
    (tmp_path / "folder2" / "a").write_text("mine")
    secret.write_text("mine")
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    (folder / "chain").symlink_to("link")
    ways = [
        "../secret",
        str(secret),
        "link",
        "chain",
        "up/secret",
        "a/../../secret",
        "../folder2/a",
        "up/new",
        "link/../../secret",
    ]
    calls = [
        Call(name, {"path": way, **more})
        for way in ways
        for name, more in {"read": {}, "write": {"text": "yours"}, "edit": {"old": "mine", "new": "yours"}}.items()
    ]
    assert {reported.partition(" is ")[2] for _, reported in await results_of(example, folder, *calls)} == {
        "outside of the folder; name a file in it."
    }
    assert (secret.read_text(), (tmp_path / "folder2" / "a").read_text()) == ("mine", "mine")
    assert not (tmp_path / "new").exists()


@pytest.mark.deep
async def test_command_and_its_children_are_stopped_in_time(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "SECONDS", 3)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a secret")
    reported = await results_of(
        example,
        tmp_path,
        Call("execute", {"command": "echo $$ > slow; echo begun; sleep 600"}),
        Call("execute", {"command": "sleep 600 & echo $! > left; echo done"}),
        Call("execute", {"command": "exec >&- 2>&-; sleep 600"}),
        Call("execute", {"command": "yes"}),
        Call("execute", {"command": "env; exit 3"}),
    )
    assert [error for error, _ in reported] == [False] * 5
    assert reported[0][1] == "begun\n[stopped after 3 seconds]"
    assert reported[1][1].startswith("done\n[")
    assert reported[2][1] == "[stopped after 3 seconds]"
    assert reported[3][1] == "y\n" * (example.BYTES // 2) + f"[stopped after {example.BYTES} bytes]"
    assert reported[4][1].endswith("[exit code 3]")
    assert "secret" not in reported[4][1]
    for name in ("slow", "left"):
        with anyio.fail_after(60):
            while is_alive(int((tmp_path / name).read_text())):  # noqa: ASYNC110 - no event comes from there
                await anyio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return whether a process runs, zombies excluded."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
