"""What an explanation looks like: no line that has nothing to say, and no error that fills the screen."""

from __future__ import annotations

from rich.console import Console

from turnwise import Engine, ModelError
from turnwise.cli.explain import explanation_table
from turnwise.providers.scripted import Reply, ScriptedModel


async def test_of_a_long_error_the_beginning_is_told() -> None:
    model = ScriptedModel([Reply(error=ModelError("auth", message="x" * 400))])
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        fine = await engine.explain(chat.id)
        await engine.send_message(chat.id, "hello")
        await engine.wait(chat.id)
        failed = await engine.explain(chat.id)
    screen = Console(width=500)
    with screen.capture() as told:
        screen.print(explanation_table(failed))
    assert "x" * 299 + "… " in told.get()
    with screen.capture() as told:
        screen.print(explanation_table(fine))
    assert [line.split()[0] for line in told.get().splitlines() if line.strip()] == ["state", "why", "since", "may"]
