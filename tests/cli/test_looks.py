"""What commands print for people, to the word and to the colour."""

from __future__ import annotations

import dataclasses

import pytest

from support.audit_records import AT
from support.look import colours, look, marked
from support.terminal import Terminal
from support.terminal_chats import begun
from turnwise import Engine
from turnwise.cli.chat_argument import attached
from turnwise.cli.explain import explanation_table
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


def test_operator_commands_print_the_new_state(terminal: Terminal) -> None:
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


async def test_reading_commands_run_no_worker(terminal: Terminal) -> None:
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


@pytest.mark.parametrize(
    ("broken", "unreadable", "code"),
    [((), (), 0), (("one",), (), 1), ((), (Flaw("chats.state", "odd"),), 1)],
    ids=["sound", "broken", "unreadable"],
)
def test_invalid_chat_exits_1(
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
