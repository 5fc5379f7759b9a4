"""What a title says: one line, short, without what models and users put around it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.life import NOW, said
from turnwise import Message
from turnwise.engine.prompt.title import LONGEST_TITLE, TitleSource, first_line_of, source_of, title_in, title_messages
from turnwise.states.digests import canonical
from turnwise.states.messages import ReasoningPart, TextPart, ToolCallPart

LONG = "Why do the foxes of the northern woods always sing so very late in the winter, and who listens to them?"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello there", "Hello there"),
        ("\n\n  Hello \t there \r\nand more", "Hello there"),
        ("# A heading\n\nand text", "A heading"),
        ("# Why **this** and _that_?", "Why this and that?"),
        ("a\x00b\x1b[31mc\u202ed", "a b [31mc d"),
        ("half \ud800 a character", "half \ufffd a character"),
        ("", None),
        (LONG, "Why do the foxes of the northern woods always sing so very late in the winter…"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("say " + "x" * 90, "say " + "x" * 75 + "…"),
    ],
)
def test_first_line_title_is_cut_between_words(text: str, title: str | None) -> None:
    assert first_line_of(text) == title


@pytest.mark.parametrize("cluster", ["e\u0301", "👨\u200d👩\u200d👧", "👍🏽"])
def test_title_splits_no_grapheme(cluster: str) -> None:
    for before in range(8):
        title = first_line_of("x" * before + cluster * 100)
        assert title is not None
        kept = title.removeprefix("x" * before).removesuffix("…")
        assert len(title) > LONGEST_TITLE - len(cluster) - 1
        assert kept == cluster * (len(kept) // len(cluster))


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Singing foxes", "Singing foxes"),
        ('"Singing foxes".', "Singing foxes"),
        ("Singing foxes.", "Singing foxes"),
        ("“Singing foxes”\n\nThis title says what the conversation is about.", "Singing foxes"),
        ("**Singing foxes**", "Singing foxes"),
        ("**Title:** Singing foxes", "Singing foxes"),
        ("Here is a title:\n\n*Singing foxes*", "Singing foxes"),
        ("Learning C#", "Learning C#"),
        ("Title", "Title"),
        ('"Fox" and "hen"', '"Fox" and "hen"'),
        ("“Fox and “hen”", "“Fox and “hen”"),
        ("the `__init__` of a class", "the `__init__` of a class"),
        ("# Title **bold** and _it_, (*so*)", "Title bold and it, (so)"),
        ("snake_case_names, 2 * 3 * 4 and `*a*`", "snake_case_names, 2 * 3 * 4 and `*a*`"),
        ("only:", "only:"),
        ("", None),
        (' \n""\n ', None),
    ],
)
def test_model_title_loses_quotes_and_markup(reply: str, title: str | None) -> None:
    assert title_in(reply) == title


@given(text=st.text() | st.text(st.characters(codec=None)) | st.text("\"'*_`#. \n:Title“”", max_size=30))
def test_title_is_one_short_storable_line(text: str) -> None:
    for title in (first_line_of(text), title_in(text)):
        if title is not None:
            assert title == title.strip() != ""
            assert len(title) <= LONGEST_TITLE
            assert len(title.splitlines()) == 1
            assert title.isprintable() or not any(ord(one) < 32 for one in title)
            assert canonical(title)


def message(role: Any, *parts: Any, **fields: Any) -> Message:
    return Message(id="m", role=role, parts=parts or said("words"), turn=1, step=1, created_at=NOW, **fields)


def test_title_comes_from_first_question_and_answer() -> None:
    question, answer = message("user", *said("Why?")), message("assistant", *said("Because."))
    call = ToolCallPart(call_id="a", name="look", arguments={})
    before = [
        message("system"),
        message("user", synthetic=True),
        message("user", erased=True),
        message("user", *said(" \n")),
    ]
    between = [
        message("assistant", TextPart(text="I look."), call),
        message("assistant", partial=True),
        message("assistant", erased=True),
        message("assistant", ReasoningPart(text="hm")),
    ]
    assert source_of([*before, question, *between, answer, message("user"), message("assistant")]) == (question, answer)
    assert source_of([*before, question, *between]) == (question, None)
    assert source_of([*before, answer]) is None
    assert source_of([]) is None


def test_title_request_holds_shortened_text_only() -> None:
    question = message("user", *said("q" * 5000))
    answer = message("assistant", ReasoningPart(text="hm", signature="s"), *said("Because."))
    shown = title_messages(source_of([question, answer]))  # type: ignore[arg-type] - it is there
    assert [(one.role, one.text[:8]) for one in shown] == [
        ("user", "qqqqqqqq"),
        ("assistant", "Because."),
        ("user", "Give the"),
    ]
    assert len(shown[0].text) == 4000
    assert [len(one.parts) for one in shown] == [1, 1, 1]
    assert [one.step for one in shown[:2]] == [0, 0], "what is shown is not all that the model made in a step"
    assert [one.text[:8] for one in title_messages(TitleSource(question, None))] == ["qqqqqqqq", "Give the"]
