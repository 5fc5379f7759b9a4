"""Which messages of a request the history has already."""

import pytest

from turnwise import Engine, TextPart
from turnwise.providers.scripted import ScriptedModel
from turnwise.service.protocols.new_input import NewInput
from turnwise.service.routes.known_messages import known_messages


@pytest.mark.parametrize(
    ("behind", "known"),
    [
        *((answer, ["m3"]) for answer in (None, "m2", "m9", "page-t1", "page-s1", "page-t1-m1")),
        *((answer, []) for answer in ("m4", "page-t2", "page-s2", "page-t2-m3")),
    ],
)
async def test_message_before_the_answer_is_a_new_one(behind: str | None, known: list[str]) -> None:
    """A page may number its messages as the store does. It names the answer by message, turn or step."""
    async with Engine("sqlite://", model=ScriptedModel("Well.")) as engine:
        chat = await engine.create_chat()
        for _ in range(2):
            await engine.ask(chat.id, "Well?")
        new_input = NewInput(messages=[("m3", [TextPart(text="Well?")])], behind=behind)
        assert [*await known_messages(engine, chat, new_input, anew=False)] == known
