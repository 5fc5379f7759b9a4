"""What commands print for people, to the word and to the colour."""

from __future__ import annotations

import dataclasses
import json

import pytest

from support.audit_records import AT
from support.look import WIDTH, colours, look, marked
from support.terminal import Terminal
from support.terminal_chats import CHAT, begun
from turnwise import Engine
from turnwise.cli import style
from turnwise.cli.chat_argument import attached
from turnwise.cli.erase import _erased, _leftovers
from turnwise.cli.explain import explanation_table
from turnwise.engine.erase import Erasure
from turnwise.engine.explain import Explanation
from turnwise.persistence.stored_chat import Flaw
from turnwise.states.calls import ToolCall
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.events import ErrorInfo
from turnwise.states.names import ChatState, Executor, Trigger

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
    legal_triggers=(Trigger.interrupt, Trigger.resume),
    broken_promises=("one", "two"),
    unreadable=(Flaw("messages.body", "no JSON"), Flaw("chats.state", "odd")),
    reason="Because.",
)


def test_all_that_is_known_is_explained_and_nothing_else() -> None:
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
    narrow = look(explanation_table(EXPLAINED), width=20)
    assert [line[:18] for line in narrow if line.startswith("[dim]lease until")] == ["[dim]lease until [/"[:18]]
    bare = dataclasses.replace(
        EXPLAINED,
        lease_worker=None,
        lease_expires=None,
        next_timer=None,
        open_calls=(),
        queued=0,
        last_error=None,
        broken_promises=(),
        unreadable=(),
    )
    assert [line.split("[/]")[0].split("]")[1].strip() for line in look(explanation_table(bare))] == [
        "state",
        "why",
        "since",
        "may come",
    ]


ERASED = Erasure(
    chat=CHAT,
    messages=("m1", "m2"),
    queued=("m7", "m8"),
    labels=("system", "title"),
    quarantined=2,
    may_quote=("m4", "m5"),
    forks=("c8", "c9"),
    overwritten=False,
    outside=("Here.", "There."),
)


def test_what_was_erased_and_what_is_left_is_told_where_there_is_any() -> None:
    assert [*_erased(ERASED), *_leftovers(ERASED)] == [
        ("messages", "m1, m2"),
        ("of the queue", "m7, m8"),
        ("labels", "system, title"),
        ("put aside", "2 row(s) of repairs"),
        ("may quote it", "m4, m5: summaries, to be erased like any message"),
        ("copied it", "c8, c9: forks, under the same message ids"),
        ("files", "may hold it still: not overwritten yet, or in a folder that --file-folder has to name"),
        ("elsewhere", "Here."),
        ("", "There."),
    ]
    bare = dataclasses.replace(
        ERASED, messages=(), queued=(), labels=(), quarantined=0, may_quote=(), forks=(), overwritten=True, outside=()
    )
    assert [*_erased(bare), *_leftovers(bare)] == [("messages", "none")]


def test_an_erasure_is_told_line_by_line(terminal: Terminal) -> None:
    chat_id = begun(terminal, "hello")
    with colours():
        first, *lines = marked(terminal.run("erase", chat_id, "m1", "--yes").out)
    assert first == f"[green]✓ [/]erased in {chat_id}"
    assert lines[0] == "[dim]  messages[/]  m1"
    assert lines[1].startswith("[dim]  elsewhere[/]  Backups") or lines[1].startswith("[dim]  files")


def test_what_operators_do_is_told_with_where_the_chat_stands_and_why(terminal: Terminal) -> None:
    chat_id = begun(terminal, "hello")
    with colours():
        sent = marked(terminal.run("send", chat_id, "hi", "--client-id", "one").out)
        again = marked(terminal.run("send", chat_id, "hi", "--client-id", "one").out)
        stopped = marked(terminal.run("interrupt", chat_id).out)
    stands = f"[bold]{chat_id} [/][yellow]pending[/][dim] · version "
    assert sent[0] == "[green]✓ [/]message m3 is accepted"
    assert again[0] == "[green]✓ [/]message m3 was accepted before"
    assert sent[1].startswith(stands)
    assert (
        sent[2] == "[dim]There is work to do: the chat waits for a worker that runs agent 'default'; is one running?[/]"
    )
    assert stopped[0].startswith(f"[bold]{chat_id} [/][bold magenta]interrupted[/][dim]")
    assert stopped[1:] == ["[dim]The user said stop; resume it or send a message to go on.[/]"]


def test_a_written_file_is_named_as_it_is_typed(terminal: Terminal) -> None:
    chat_id = begun(terminal, "hello")
    name = f"[red]{'long' * 30}.jsonl"
    (terminal.folder / "key").write_text("a very secret key")
    with colours():
        wrote = terminal.run("audit", chat_id, "--export", name).out
        signed = terminal.run("audit", chat_id, "--export", name, "--key", "key").out
        drawn = terminal.run("diagram", "--out", name.replace("jsonl", "svg")).out
        both = terminal.run("audit", chat_id, "--export", name, "--json").out
    records = len(json.loads(terminal.run("audit", chat_id, "--json").out))
    assert wrote == f"wrote {records} records to {name}\n"
    assert signed == f"wrote {records} records to {name}, signed\n"
    assert drawn == f"wrote {name.replace('jsonl', 'svg')}\n"
    assert both.startswith("[\n")


async def test_looking_runs_no_chat(terminal: Terminal) -> None:
    (terminal.folder / "empty.db").touch()
    there = f"sqlite:///{terminal.folder}/there.db"
    async with Engine(there, model="demo"):
        pass
    async with attached(there) as engine:
        assert not engine.settings.run_worker
    for store, problem in (("sqlite:///", "names no file"), ("sqlite:///missing.db", "there is no file")):
        with pytest.raises(SettingsError, match=problem):
            async with attached(store):
                pass
    for store in (f"sqlite:///{terminal.folder}/empty.db", "sqlite://"):
        with pytest.raises(StoreError, match="there is no store in"):
            async with attached(store):
                pass


def test_a_screen_is_as_wide_as_the_tests_say() -> None:
    with colours():
        assert style.console.width == WIDTH


@pytest.mark.parametrize(
    ("broken", "unreadable", "code"),
    [((), (), 0), (("one",), (), 1), ((), (Flaw("chats.state", "odd"),), 1)],
    ids=["sound", "broken", "unreadable"],
)
def test_a_chat_that_is_not_as_it_was_promised_is_a_problem(
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[str, ...],
    unreadable: tuple[Flaw, ...],
    code: int,
) -> None:
    known = dataclasses.replace(EXPLAINED, broken_promises=broken, unreadable=unreadable)
    monkeypatch.setattr("turnwise.cli.explain.on_chat", lambda *_: known)
    for words in ((), ("--json",)):
        assert terminal.run("explain", "last", *words).code == code
