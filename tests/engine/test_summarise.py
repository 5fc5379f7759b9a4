"""Pieces of a history that is too long for one summary: complete, in order, as large as possible."""

import json
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.leased import leased_chat

from support.life import NOW, text_parts
from turnwise import CompactionPolicy, ModelError, ModelRequest, Settings, Usage
from turnwise.engine.config.results import Spending
from turnwise.engine.jobs.summarise import Summariser, _next_piece, _whole_pieces
from turnwise.engine.prompt.history import SUMMARY_PREFIX
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import FilePart, Message, Part, ToolCallPart, ToolResultPart, length_of


def message(role: Any, *parts: Part) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=1, created_at=NOW)


def user(length: int) -> Message:
    return message("user", *text_parts("u" * length))


def result(length: int) -> Message:
    return message("tool", ToolResultPart(call_id="c", name="look", output="r" * length))


def length(messages: list[Message]) -> int:
    return sum(length_of(part) for one in messages for part in one.parts)


def taken(messages: list[Message], room: int | None) -> tuple[list[Message], list[Message]]:
    """Return the next piece and the rest."""
    waiting = deque(_whole_pieces(messages))
    piece = _next_piece(waiting, room)
    return piece, [one for left in waiting for one in left]


@given(
    lengths=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), min_size=1, max_size=8),
    room=st.none() | st.integers(1, 400),
)
def test_pieces_lose_nothing_and_fill_the_room(lengths: list[tuple[bool, int]], room: int | None) -> None:
    history = [user(size) if is_user else result(size) for is_user, size in lengths]
    piece, left = taken(history, room)
    assert len(piece) + len(left) == len(history)
    assert left == history[len(piece) :]
    assert not left or left[0].role == "user"
    if room is None:
        assert left == []
    elif length(history[: len(piece)]) > room:  # one whole piece that is too long alone
        assert [one.role for one in piece[1:]] == ["tool"] * (len(piece) - 1)
    else:
        assert piece == history[: len(piece)]
        following = _whole_pieces(left)
        assert not following or length([*piece, *following[0]]) > room


LONG = "a" * 500 + "m" * 500 + "z" * 500


def shortened(*parts: Part, room: int = 300) -> tuple[Part, ...]:
    (short,), _ = taken([message("assistant", *parts)], room)
    return short.parts


def test_long_text_keeps_beginning_and_end() -> None:
    (part,) = shortened(*text_parts(LONG))
    text = getattr(part, "text", "")
    assert text.startswith("a" * 150)
    assert text.endswith("z" * 150)
    assert "1200 characters left out" in text
    assert len(text) < 350
    (least,) = shortened(*text_parts("abc"), room=1)
    assert "3 characters left out" in getattr(least, "text", "")


def test_files_are_named_and_json_stays_json() -> None:
    many = ToolCallPart(call_id="c", name="look", arguments={"at": LONG})
    picture = FilePart(media_type="image/png", data="A" * 9000)
    earlier_image = FilePart(media_type="image/png", data="AAAA", name="a.png")
    output = ToolResultPart(call_id="c", name="look", output={"seen": LONG}, attachments=(picture,))
    plain = ToolResultPart(call_id="c", name="look", output=LONG)
    parts = shortened(many, picture, earlier_image, output, plain, room=500)
    assert [getattr(part, "text", None) for part in parts[1:3]] == ["[a file, image/png]", "[a file, a.png]"]
    call, cut, text = parts[0], parts[3], parts[4]
    assert call.arguments["shortened"].startswith('{"at": "aaa')
    assert str(cut.output).startswith('{"seen": "aaa')
    assert str(text.output).startswith("a" * 50 + " [")
    assert (cut.attachments, cut.call_id) == ((), "c")
    assert max(len(json.dumps(one)) for one in (call.arguments, cut.output, text.output)) < 250


REFUSAL = Reply(error=ModelError("context_overflow", message="too long"))


@pytest.mark.parametrize(("size", "requests"), [(100, 1), (399, 1), (400, 2), (1000, 3)])
async def test_message_is_halved_down_to_200_characters(size: int, requests: int) -> None:
    model = ScriptedModel([], summary=REFUSAL)
    leased, _ = leased_chat(model=model)
    spending = Spending()
    with pytest.raises(ModelError) as refused:
        await Summariser(leased, spending).summarise([user(size)])
    assert refused.value.kind == "context_overflow"
    assert len(model.requests) == requests
    assert spending.usage == Usage(partial=True)


@pytest.mark.parametrize("own", [True, False])
async def test_each_piece_carries_the_summary_so_far(*, own: bool) -> None:
    """The summary model writes it, if there is one."""

    def narrow(request: ModelRequest) -> Reply | str:
        first = request.messages[0].text
        return REFUSAL if length(list(request.messages)) > 2600 else f"[{first[-12:]}]"

    writer, other = ScriptedModel([], summary=narrow), ScriptedModel([])
    settings = Settings(compaction=CompactionPolicy(model=writer if own else None, prompt="Sum up."))
    leased, _ = leased_chat(model=other if own else writer, settings=settings)
    history = [placed(turn) for turn in (1, 2, 3)]
    found = await Summariser(leased, Spending()).summarise(history)
    sent = [[(one.role, one.text[:20], one.turn, one.step) for one in request.messages] for request in writer.requests]
    prompt, words = ("user", "Sum up."), ("user", "u" * 20)
    assert sent == [
        [(*words, 1, 10), (*words, 2, 20), (*words, 3, 30), (*prompt, 3, 30)],
        [(*words, 1, 10), (*prompt, 1, 10)],
        [("user", SUMMARY_PREFIX[:20], 2, 20), (*words, 2, 20), (*prompt, 2, 20)],
        [("user", SUMMARY_PREFIX[:20], 3, 30), (*words, 3, 30), (*prompt, 3, 30)],
    ]
    assert found.startswith("[")
    assert other.requests == []
    assert {(request.purpose, request.step, request.attempt) for request in writer.requests} == {("summary", 3, 2)}


def placed(turn: int) -> Message:
    return Message(id="m", role="user", parts=text_parts("u" * 1000), turn=turn, step=10 * turn, created_at=NOW)


@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ([Reply(" \n so \n")], "so"),
        ([Reply(" ", calls=[Call("look", {})]), Reply("so")], "so"),
        ([Reply("so", calls=[Call("look", {})])], "so"),
        ([Reply(" ")], None),
        ([Reply(" ", calls=[Call("look", {})]), Reply(" ")], None),
    ],
)
async def test_summary_is_text_or_fails(replies: list[Reply], text: str | None) -> None:
    lines = iter(replies)
    model = ScriptedModel([], summary=lambda _: next(lines))
    leased, _ = leased_chat(model=model)
    if text is not None:
        assert await Summariser(leased, Spending()).summarise([user(5)]) == text
    else:
        with pytest.raises(ModelError, match="empty"):
            await Summariser(leased, Spending()).summarise([user(5)])
    forced = [request.parameters.get("tool_choice") for request in model.requests]
    assert forced == [None, "none"][: len(replies)]
