"""Screen contents: narrow screens, hostile texts, and the right chat."""

import dataclasses
import io
import json
import sqlite3
import sys
import unicodedata
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace

from cli.look import look
from cli.terminal_chats import CHAT, chat_with, url_of
from support.audit_records import AT
from support.terminal import Terminal
from turnwise import ChatNotFound, ClientTool, Engine, Event, ModelError, Settings, SettingsError, tool
from turnwise.cli import style
from turnwise.cli.app import app
from turnwise.cli.connect import AmbiguousChat, Chats, ChatSource
from turnwise.cli.diagram import diagram
from turnwise.cli.show import _table, explanation_table
from turnwise.cli.style import clean, excerpt, plain_table, print_json, tokens
from turnwise.diagrams import mermaid, slide, table
from turnwise.engine.admin.explain import Explanation
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import ToolCall
from turnwise.states.events import ErrorInfo
from turnwise.states.names import ChatState, Executor
from turnwise.states.usage import Usage

SLY_TEXT = "safe\u202egnp.exe\x1b]0;owned\x07\x9b2J\u2066\u200fend"
LOOK_TOOL = ClientTool("look", "Look.", {"type": "object"})
STEERING = [character for character in SLY_TEXT if not character.isalnum() and character not in ".;]"]


def three_chats(terminal: Terminal) -> list[str]:
    """Fill the terminal's store with a chat in each of the resting states, and hostile texts; return their ids."""

    async def live() -> list[str]:
        calls = Reply(SLY_TEXT, calls=[Call("look", {"name" + SLY_TEXT: SLY_TEXT}, id="c1")])
        replies = [Reply(SLY_TEXT), calls, Reply(error=ModelError("quota", message=SLY_TEXT))]
        async with Engine(url_of(terminal), model=ScriptedModel(replies)) as engine:
            ids = []
            for _ in replies:
                chat = await engine.create_chat(title=SLY_TEXT, system=SLY_TEXT, client_tools=[LOOK_TOOL])
                await engine.ask(chat.id, SLY_TEXT)
                ids.append(chat.id)
            await engine.acting(f"jane {SLY_TEXT}").rename(ids[0], SLY_TEXT)
            await engine.acting("ops:team:jane").archive(ids[0])
            return ids

    return anyio.run(live)


SEEN = ("list", "show {}", "audit {}", "replay {}", "explain {}", "verify {}", "resume {}", f"show {SLY_TEXT}")
MACHINE = ("list --json", "show {} --json", "audit {} --json", "replay {} --json", "explain {} --json")


def test_chat_text_cannot_control_the_terminal(terminal: Terminal) -> None:
    """Nor can it reverse a line, so that a file's name looks like another."""
    renamed, asked, failed = three_chats(terminal)
    typed = [line.format(asked) for line in (*SEEN, *MACHINE)] + [f"audit {renamed}", f"explain {failed}"]
    for line in typed:
        printed = terminal.run(*line.split(" "))
        assert [character for character in STEERING if character in printed.out + printed.err] == [], line
    assert r"\u202e" in terminal.run("show", asked).out
    assert json.loads(terminal.run("show", asked, "--json").out)["chat"]["title"] == SLY_TEXT


@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.deep)])
def test_states_are_whole_on_narrow_screens(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """An operator needs the state most."""
    monkeypatch.setattr(style.console, "width", columns)
    *_, chat_id, failed = three_chats(terminal)
    for command in ("list", "audit", "replay", "explain", "show"):
        for name, state in ((chat_id, "requires_action"), (failed, "error")):
            printed = terminal.run(command, *([] if command == "list" else [name]))
            assert printed.code == 0, printed.err
            assert max(map(len, printed.out.splitlines())) <= max(columns, 43)
            assert state in printed.out.split(), printed.out


OWNER: Final = "a-long-name@customers.example"
ENDLESS: Final = {"demo", "chat", "inspect", "worker", "serve"}
"""Commands that show a conversation, or run until a signal."""
REPORTS: Final = {
    "list": ["{chat}", "requires_action"],
    "show {chat}": ["{chat}", "refund_the_order(cents=450)"],
    "audit {chat}": ["step_finished", "requires_action"],
    "replay {chat}": ["requires_action"],
    "verify {chat}": ["transition"],
    "explain {chat}": ["submit_tool_results,", "'webhook:billing':"],
    "schedules {chat}": ["s5", "Europe/Berlin"],
    "undelivered": ["{chat}", "webhook:billing"],
    "consumers": ["webhook:billing"],
    "inbox": ["{chat}", OWNER, "refund_the_order"],
    "budget --owner " + OWNER + " --tokens 100000000 --cost 12345.50 --per month": [OWNER, "100,000,000", "$12345.50"],
    "budgets": [OWNER, "{chat}", "100,000,000", "$12345.50"],
    "usage --by owner --by agent --by model --by day": [OWNER, "scripted:scripted"],
    "workers": [],
    "doctor": ["'webhook:billing':", "undelivered.error:", "`drop_consumer`"],
    "send {chat} hello": ["{chat}", "m3"],
    "submit {chat} call_1=false": ["{chat}"],
    "schedule {chat} Hello. --id nightly --at 2031-01-01T00:00:00Z": ["nightly"],
    "unschedule {chat} s5": [],
    "interrupt {chat}": ["{chat}", "interrupted"],
    "mark {chat}": ["{chat}"],
    "archive {chat}": ["{chat}"],
    "unarchive {chat}": ["{chat}"],
    "resume {chat}": ["{chat}"],
    "export {chat} --output chat.jsonl": ["chat.jsonl"],
    "migrate --store sqlite:///other.db": ["sqlite:///other.db"],
    "import chat.jsonl --store sqlite:///other.db": ["{chat}"],
    "diagram {chat} --out path.svg": ["path.svg"],
    "keygen audit.pem": ["audit.pem.pub,"],
    "erase {chat} m1 --yes": ["{chat}", "m1"],
    "interrupt  {chat}": ["{chat}", "interrupted"],
    "delete {chat} --yes": ["{chat}"],
}
"""Command lines, each with words of its report that must not be broken."""


def test_80_columns_show_whole_words(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer or cut, and copyable text is not broken over lines: of every command."""
    assert {line.split()[0] for line in REPORTS} | ENDLESS == {command.name for command in app.registered_commands}
    monkeypatch.setattr(style.console, "width", 80)
    chat_id = eventful(terminal)
    for line, whole in REPORTS.items():
        printed = terminal.run(*line.format(chat=chat_id).split())
        assert printed.code == (1 if line == "doctor" else 0), printed
        assert max(map(len, printed.out.splitlines()), default=0) <= 80, printed.out
        assert "…" not in printed.out, printed.out
        assert {word.format(chat=chat_id) for word in whole} - set(printed.out.split()) == set(), printed.out
    assert f"{datetime.now(UTC):%Y-}" in terminal.run("list", "--store", "sqlite:///other.db").out


def eventful(terminal: Terminal) -> str:
    """Make a chat that gives each of the commands something to report; return its id."""

    @tool(policy="ask")
    async def refund_the_order(cents: int) -> str:
        """Refund."""
        return f"{cents} refunded"

    async def refuse(_: Event) -> None:
        raise ValueError("billing knows no invoice of such a number")

    async def create() -> str:
        model = ScriptedModel([Reply(calls=[Call("refund_the_order", {"cents": 450})])])
        async with Engine(url_of(terminal), model=model, tools=[refund_the_order]) as engine:
            chat = await engine.create_chat(owner=OWNER, message="Give me my money back!")
            await engine.wait(chat.id)
            await engine.schedule(chat.id, "Ask again.", every="0 9 * * 1", timezone="Europe/Berlin")
            await engine.set_budget(chat_id=chat.id, tokens=1_000_000, per="month")
            async with anyio.create_task_group() as running:
                running.start_soon(partial(engine.consume, "webhook:billing", refuse, delays=(0.001,)))
                with anyio.fail_after(60):
                    while sum([one.undelivered for one in await engine.consumers()]) == 0:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                running.cancel_scope.cancel()
            return chat.id

    return anyio.run(create)


def test_last_is_the_latest_active_chat(terminal: Terminal) -> None:
    first, _, third = three_chats(terminal)
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == third
    terminal.run("unarchive", first)
    assert terminal.run("send", first, "hi").code == 0
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == first


def test_list_filters_by_awaited_party(terminal: Terminal) -> None:
    _, asked, _ = three_chats(terminal)
    for party, ids in (("client", [asked]), ("subagents", [])):
        listed = json.loads(terminal.run("list", "--awaiting", party, "--json").out)
        assert [chat["id"] for chat in listed] == ids


def test_list_fits_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [CHAT, replace(CHAT, id="c" * 26, archived=True, title=None, turn=12)]
    monkeypatch.setattr(style.console, "width", 100)
    assert look(_table(chats)) == [
        "[dim]chat                        state             turns  changed (UTC)     title  [/]",
        "c1                          [green]waiting         [/]  1      2026-01-02 03:04  A title",
        f"{'c' * 26}  [green]waiting[/][dim green] archived[/]  12     2026-01-02 03:04~~~~~~~~~",
    ]
    monkeypatch.setattr(style.console, "width", 30)
    assert look(_table(chats), width=30) == [
        "[dim]chat [/]  c1~~~~~~~~~~~~~~~~~~~~~",
        "[dim]state[/]  [green]waiting                [/]",
        "~" * 30,
        f"[dim]chat [/]  {'c' * 23}",
        "       ccc~~~~~~~~~~~~~~~~~~~~",
        "[dim]state[/]  [green]waiting[/][dim green] archived[/][green]       [/]",
    ]
    long = replace(CHAT, title="t" * 61)
    monkeypatch.setattr(style.console, "width", 100)
    assert look(_table([long]), width=150)[1].endswith(f" {'t' * 59}…")


def test_list_marks_unread_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longest state, whole ids and times fit on 80 columns."""
    asks = replace(CHAT, id="c" * 26, state=ChatState.requires_action, unread=True)
    monkeypatch.setattr(style.console, "width", 80)
    assert [line.rstrip("~") for line in look(_table([asks, replace(CHAT, unread=True)]), width=80)[1:]] == [
        f"{'c' * 26}  [bold yellow]requires_action unread[/]  1      2026-01-02 03:04",
        f"c1{' ' * 26}[green]waiting[/][bold green] unread[/][green]        [/]  1      2026-01-02 03:04",
    ]


def test_list_shows_what_is_unread_until_it_is_read(terminal: Terminal) -> None:
    chat = chat_with(terminal, Reply("hi"))
    assert f"{chat} waiting unread" in terminal.run("list").words
    assert terminal.run("mark", chat).code == 0
    assert "unread" not in terminal.run("list").words
    assert [one["unread"] for one in json.loads(terminal.run("list", "--json").out)] == [False]


def test_list_limit_takes_newest_first(terminal: Terminal) -> None:
    first, second, third = [chat_with(terminal, *replies) for replies in ([], [Reply(error=ModelError("quota"))], [])]

    def listed(*words: str) -> list[str]:
        return [chat["id"] for chat in json.loads(terminal.run("list", "--json", *words).out)]

    assert listed() == [third, second, first]
    assert listed("--limit", "2") == [third, second]
    assert listed("--state", "error") == [second]
    assert terminal.run("list", "--state", "pending").out == "There is no such chat.\n"
    expected = [[third, "waiting"], [second, "error"]]
    *rows, note = terminal.run("list", "--limit", "2").out.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == expected
    assert note == "2 shown; more with --limit"
    assert "shown" not in terminal.run("list", "--limit", "3").out


EXPLAINED = Explanation(
    chat_id="c1",
    state=ChatState.requires_action,
    since=AT,
    agent="support",
    tools_needed=(),
    lease_worker="w\x1b",
    lease_expires=AT,
    next_timer=AT,
    open_calls=(ToolCall(call_id="c1", name="ask", arguments={}, executor=Executor.client, index=0, step=1),),
    queued=2,
    last_error=ErrorInfo(kind="quota", message="too\nmuch", step=1),
    legal_triggers=("interrupt", "resume"),
    broken_invariants=("one", "two"),
    unreadable=(IntegrityIssue("messages.body", "no JSON"), IntegrityIssue("chats.state", "odd")),
    reason="Because.",
)


def test_explanation_prints_every_known_field() -> None:
    assert [line.rstrip("~") for line in look(explanation_table(EXPLAINED))] == [
        "[dim]state       [/] [bold yellow]requires_action                         [/]",
        "[dim]why         [/] Because.",
        "[dim]since       [/] 2026-01-02 03:04:05.067",
        r"[dim]lease of    [/] w\x1b",
        "[dim]lease until [/] 2026-01-02 03:04:05.067",
        "[dim]next timer  [/] 2026-01-02 03:04:05.067",
        "[dim]open calls  [/] ask (c1, planned)",
        "[dim]queue       [/] 2",
        "[dim]last error  [/] too much",
        "[dim]may come    [/] interrupt, resume",
        "[dim]unreadable  [/] messages.body: no JSON; chats.state: odd",
        "[dim]broken      [/] one, two",
    ]


def test_invalid_chat_exits_1(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken, unreadable, code in (((), (), 0), (("one",), (), 1), ((), (IntegrityIssue("chats.state", "odd"),), 1)):
        known = dataclasses.replace(EXPLAINED, broken_invariants=broken, unreadable=unreadable)
        monkeypatch.setattr(ChatSource, "on_chat", lambda *_, known=known: known)
        for words in ((), ("--json",)):
            assert terminal.run("explain", "last", *words).code == code


TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
HIDDEN = {
    "ARABIC LETTER MARK",
    "LEFT-TO-RIGHT MARK",
    "RIGHT-TO-LEFT MARK",
    "ZERO WIDTH SPACE",
    "WORD JOINER",
    "ZERO WIDTH NO-BREAK SPACE",
    "INTERLINEAR ANNOTATION ANCHOR",
    "INTERLINEAR ANNOTATION SEPARATOR",
    "INTERLINEAR ANNOTATION TERMINATOR",
}


def steers(character: str) -> bool:
    """Return whether a character controls the terminal, reverses or ends a line, or is invisible."""
    return (
        unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in TURNING
        or unicodedata.name(character, "") in HIDDEN
        or 0xE0000 <= ord(character) <= 0xE007F
    )


def test_only_control_characters_are_escaped() -> None:
    every = [chr(code) for part in (range(0x3000), range(0xD7F0, 0x10010), range(0xE0000, 0xE0200)) for code in part]
    spelled = [character for character in every if clean(character) != character]
    assert spelled == [character for character in every if steers(character) and character != "\n"]
    reported = {character: clean(character) for character in spelled}
    assert (reported.pop("\t"), reported.pop("\r")) == ("    ", "")
    assert all(words.isascii() and words.startswith("\\") for words in reported.values())


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_output_survives_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Prose replaces characters outside of the encoding by question marks; JSON must be exact."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", out)
    value = {"Größe €": "日本 👩 \u0301"}
    print_json(value)
    out.flush()
    out.seek(0)
    reported = out.read()
    assert json.loads(reported) == value
    assert reported.isascii() is (encoding != "utf-8")


@pytest.mark.parametrize(
    ("value", "length", "reported"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("abcd", 1, "…"),
        (" a \n b\t", 9, "a b"),
        ({"a": [1, "b"]}, 20, '{"a":[1,"b"]}'),
        (ValueError("odd"), 20, '"odd"'),
    ],
)
def test_excerpt_is_one_short_line(value: object, length: int, reported: str) -> None:
    assert excerpt(value, length) == reported


@pytest.mark.parametrize(
    ("usage", "reported"),
    [
        (Usage(), "tokens unknown"),
        (Usage(output_tokens=1), "tokens unknown"),
        (Usage(input_tokens=0, output_tokens=0), "0 tokens in, 0 out"),
        (Usage(input_tokens=1, output_tokens=2, partial=True), "1 tokens in, 2 out at least"),
        (Usage(input_tokens=1, output_tokens=2, cost=Decimal("0.0123")), "1 tokens in, 2 out · $0.0123"),
        (Usage(cost=Decimal("1234.5"), cost_partial=True), "tokens unknown · $1,234.50 at least"),
        (Usage(cost=Decimal("0.00009")), "tokens unknown · under $0.0001"),
        (Usage(cost=Decimal("0.0001")), "tokens unknown · $0.0001"),
        (Usage(cost=Decimal(0)), "tokens unknown · $0.00"),
    ],
)
def test_unknown_usage_is_not_zero(usage: Usage, reported: str) -> None:
    assert tokens(usage) == reported


def test_markup_is_printed_literally() -> None:
    """In lines, and in the cells of tables: any user may write the id of a message, or an error."""
    words = ["[/m1]", "[bold]m1", r"\[m1]", ":warning:"]
    table = plain_table("")
    for word in words:
        table.add_row(word)
    for console in (style.console, style.errors):
        with console.capture() as printed:
            console.print(" ".join(words))
            console.print(table)
        assert printed.get().split() == words * 2


# The chat and the store that were meant


def filled(path: Path, *chat_ids: str) -> str:
    url = f"sqlite:///{path}"

    async def fill() -> None:
        async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
            for _ in chat_ids:
                await engine.create_chat()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.engine.chat_ids.new_chat_id", iter(chat_ids).__next__)
        anyio.run(fill)
    return url


def meant(url: str, name: str) -> str:
    async def same(_chats: Chats, chat_id: str) -> str:
        return chat_id

    return ChatSource(url).on_chat(name, same)


SEVERAL = (*(f"z{n}" for n in range(1, 7)), "abc1", "abc2", "abd", "ab", *(f"x{n}" for n in range(1, 8)), "x")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(tmp_path_factory.mktemp("store") / "chats.db", *SEVERAL)


def test_chat_is_found_by_id_or_unique_prefix(store: str) -> None:
    for name, chat_id in {"abc1": "abc1", "abd": "abd", "ab": "ab", "z6": "z6", "x": "x", "last": "x"}.items():
        assert meant(store, name) == chat_id
    for name in ("", "b", "abc12", "y"):
        with pytest.raises(ChatNotFound):
            meant(store, name)


def test_ambiguous_prefix_names_the_chats(store: str) -> None:
    with pytest.raises(AmbiguousChat, match="2 chats") as refused:
        meant(store, "abc")
    assert sorted(refused.value.chat_ids) == ["abc1", "abc2"]
    assert refused.value.prefix == "abc"
    with pytest.raises(AmbiguousChat, match="4 chats"):
        meant(store, "a")
    with pytest.raises(AmbiguousChat, match="more than 5 chats") as refused:
        meant(store, "z")
    assert str(refused.value).count("z") == 6
    assert len(refused.value.chat_ids) == 6
    assert ", …;" in str(refused.value)


def test_empty_store_has_no_last_chat(tmp_path: Path) -> None:
    with pytest.raises(ChatNotFound, match="last"):
        meant(filled(tmp_path / "chats.db"), "last")


def test_unreadable_chat_is_found_by_prefix(tmp_path: Path) -> None:
    url = filled(tmp_path / "chats.db", "x", "x1", "x2", "x3", "x4", "x5", "x6")
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on, on:
        on.execute("UPDATE chats SET facts = 'broken' WHERE id = 'x'")
    assert [meant(url, name) for name in ("x", "x3")] == ["x", "x3"]


# Diagrams


BEGINNINGS: dict[Any, bytes] = {"mermaid": b"stateDiagram-v2", "svg": b"<svg", "png": b"\x89PNG\r\n", "json": b"{\n"}


class Screen(io.TextIOWrapper):
    """A watchable output of a command."""

    def __init__(self, *, watched: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched

    @property
    def printed(self) -> bytes:
        return self.buffer.getvalue()


def test_binary_drawing_is_not_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, beginning in BEGINNINGS.items():
        for watched in (True, False):
            screen = Screen(watched=watched)
            monkeypatch.setattr(sys, "stdout", screen)
            if form == "png" and watched:
                with pytest.raises(SettingsError, match="cannot write a PNG to a terminal"):
                    diagram(form="png", simple=True)
                assert screen.printed == b""
            else:
                diagram(form=form, simple=form == "png")
                assert screen.printed.startswith(beginning)


@pytest.fixture
def chat_url(tmp_path: Path) -> str:
    """Return the URL of a store with one chat after one turn."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"

    async def live() -> None:
        async with Engine(url, model=ScriptedModel(["hi"])) as engine:
            await engine.ask((await engine.create_chat()).id, "hello")

    anyio.run(live)
    return url


@pytest.mark.parametrize(
    ("show", "words"),
    [
        ("machine", b"The chat stands in waiting"),
        ("path", b"waiting</text>"),
        ("timeline", b"step 1, attempt 1"),
        ("sticker", b"<title>turnwise: waiting</title>"),
    ],
)
def test_diagram_options_choose_the_drawing(tmp_path: Path, chat_url: str, show: Any, words: bytes) -> None:
    diagram("last", store=chat_url, show=show, out=tmp_path / "drawing.svg")
    assert words in (tmp_path / "drawing.svg").read_bytes()


def test_simple_machine_highlights_the_chat_state(tmp_path: Path, chat_url: str) -> None:
    for name, drawn in (("drawing.svg", slide("waiting")), ("drawing.mmd", mermaid("waiting", simple=True))):
        diagram("last", store=chat_url, simple=True, out=tmp_path / name)
        assert (tmp_path / name).read_text() == drawn
    diagram(show="table", out=tmp_path / "table.svg")
    assert (tmp_path / "table.svg").read_text() == table()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"show": "timeline"}, "a timeline needs a chat"),
        ({"show": "sticker"}, "a sticker needs a chat"),
        ({"show": "table", "chat": "last"}, "the same for every chat"),
        ({"show": "table", "simple": True}, "not the table"),
        ({"show": "path", "chat": "last", "form": "mermaid"}, "the path is drawn as svg or png"),
        ({"simple": True, "form": "json"}, "the same for every chat"),
    ],
)
def test_conflicting_options_open_nothing(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        diagram(**options, store=f"sqlite:///{tmp_path / 'none.db'}", out=tmp_path / "drawing")
    assert list(tmp_path.iterdir()) == []


def test_diagram_writes_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the named format, else in that of the suffix."""
    screen = Screen(watched=True)
    monkeypatch.setattr(sys, "stdout", screen)
    for form, name, drawn in (("png", "drawing", "png"), (None, "a.SVG", "svg"), (None, "a", "mermaid")):
        diagram(form=form, simple=form == "png", out=tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(BEGINNINGS[drawn])
        assert screen.printed.decode().endswith(f"wrote {tmp_path / name}\n")
    for form, name in (("svg", "a.png"), (None, "a.jpg")):
        with pytest.raises(SettingsError):
            diagram(form=form, out=tmp_path / name)
        assert not (tmp_path / name).exists()
