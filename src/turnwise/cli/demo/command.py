"""`turnwise demo`: the acts in their order, and the files that they leave."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from rich.text import Text

from turnwise.cli.audit import timeline
from turnwise.cli.chat import ASK_USER
from turnwise.cli.demo.acts import (
    Play,
    asks_the_client,
    compacts,
    is_interrupted,
    outlives_its_process,
    reads_real_files,
)
from turnwise.cli.demo.cast import PACKAGE, DemoFailed, Presenter, Scene
from turnwise.cli.event_view import EventView
from turnwise.cli.screen import Scroll
from turnwise.cli.style import console, excerpt, plain_table
from turnwise.cli.verify import verdict_line
from turnwise.diagrams import svg
from turnwise.persistence.audit.verify import verify_export

PACE: Final = 0.03
"""Seconds between two words, for people."""
AT_MOST: Final = 120
"""Seconds after which something must have gone wrong."""


def demo(
    *,
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause; the default without a terminal.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for its files.")] = Path("demo-out"),
) -> None:
    """Watch one chat live: tools, a client's turn, an interrupt, a compaction, kill -9 - each claim checked."""
    out.mkdir(parents=True, exist_ok=True)
    scene = Scene(out)
    if received := anyio.run(_play_until_signal, scene, 0.0 if fast or not console.is_terminal else PACE):
        raise typer.Exit(128 + received[0])


async def _play_until_signal(scene: Scene, pace: float) -> list[int]:
    """Play; SIGTERM and SIGHUP end it in order, so that the cursor is shown again. Return those that came."""
    received: list[int] = []
    with anyio.CancelScope() as playing:

        def stop(number: int) -> None:
            received.append(number)
            playing.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        await _play(scene, pace)
    return received


async def _play(scene: Scene, pace: float) -> None:
    stage = Presenter(console)
    console.print(Text("turnwise: the whole life of one chat", style="bold"))
    stage.say(
        "The model is turnwise's own, which answers by rules: no network, no key. All else is real, and every ✔ is "
        f"checked. It reads {PACKAGE} and writes to {scene.out}."
    )
    view = EventView(Scroll(console))
    try:
        with anyio.fail_after(AT_MOST):
            model = scene.model(pace)
            async with scene.engine(model) as engine:
                chat = await engine.create_chat(
                    system="You are terse.", client_tools=[ASK_USER], title="The demo: one whole life"
                )
                play = Play(scene, stage, view, engine, chat.id)
                await reads_real_files(play)
                await asks_the_client(play)
                await is_interrupted(play, model)
                await compacts(play)
            async with scene.engine(model, run_worker=False) as engine:
                play.engine = engine
                await outlives_its_process(play, pace)
                await _is_audited(play)
    except TimeoutError:
        raise DemoFailed("every turn comes to rest", f"this one did not within {AT_MOST} seconds") from None
    console.print()
    stage.show(stage.books())
    _list_files(scene, stage)


async def _is_audited(play: Play) -> None:
    """Show the log of the last turn, check the whole of it, and prove that the check can fail."""
    engine, stage, chat_id = play.engine, play.stage, play.chat_id
    records, log = await engine.audit(chat_id), await engine.export_audit(chat_id)
    chat = await engine.get_chat(chat_id)
    last_turn = [record for record in records if record.turn == chat.turn]
    stage.act(
        "Every transition is on record",
        f"{len(records)} records, hash-chained, each written in its own transaction. Here is the turn that was killed.",
    )
    stage.show(timeline(last_turn))
    (play.scene.out / "audit.jsonl").write_text(log, encoding="utf-8")
    (play.scene.out / "machine.svg").write_text(svg(chat.state), encoding="utf-8")
    stage.promise(
        "the log is sound",
        f"all {len(records)} transitions are the table's, in the store and in the export",
        holds=(await engine.verify(chat_id)).ok and verify_export(log).ok,
    )
    forged = verify_export(_forge(log))
    stage.note("·", excerpt(verdict_line(forged).plain, 90), "yellow")
    stage.promise(
        "a forged log is found out", "one word was changed in a copy: the check names the place", holds=not forged.ok
    )
    usage = chat.usage
    table = plain_table("tokens", "in", "out", "of it thinking")
    for name, share in (("the chat", usage), ("its compaction", usage.compaction)):
        if share is not None:
            counts = (share.input_tokens, share.output_tokens, share.reasoning_tokens)
            table.add_row(name, *("unknown" if count is None else f"{count:,}" for count in counts))
    stage.show(table)
    stage.say("Counted for every model call; the two that were cut off reported nothing, so the sum is marked partial.")


def _forge(log: str) -> str:
    header, *lines = log.splitlines()
    middle = len(lines) // 2
    lines[middle] = json.dumps(json.loads(lines[middle]) | {"actor": "mallory"})
    return "\n".join([header, *lines])


def _list_files(scene: Scene, stage: Presenter) -> None:
    table = plain_table("left behind", "look at it with")
    table.add_row(str(scene.database), f"turnwise show last --store {scene.store}")
    table.add_row(str(scene.out / "audit.jsonl"), f"turnwise verify {scene.out / 'audit.jsonl'}")
    table.add_row(str(scene.out / "machine.svg"), "a browser: the chat's state is lit")
    console.print()
    stage.show(table)
