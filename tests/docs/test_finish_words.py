"""The table of finish words in the reference is that of the code, and agrees with what pydantic-ai takes words for."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic_ai.models import google, zai
from pydantic_ai.models.anthropic._response import FINISH_REASON_MAP
from pydantic_ai.models.openai._response_fields import RESPONSES_FINISH_REASON_MAP

from turnwise import StopReason
from turnwise.providers.reply_worth import FINISH_WORDS, WORTH, stop_reason_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
THEIRS = {
    "stop": StopReason.end_turn,
    "tool_call": StopReason.end_turn,
    "length": StopReason.max_tokens,
    "content_filter": StopReason.content_filter,
}
NO_REPLY = {"compaction"}
"""A word for a reply that holds a summary of the prompt alone: it answers nothing."""


def test_reference_has_every_finish_word() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", PAGE, re.MULTILINE)
    table = {reason: (worth, tuple(re.findall(r"`(\w+)`", words))) for reason, worth, words in rows}
    assert table == {str(reason): (str(worth), FINISH_WORDS.get(reason, ())) for reason, worth in WORTH.items()}


def test_words_mean_what_pydantic_ai_takes_them_for() -> None:
    maps = (google._FINISH_REASON_MAP, zai._ZAI_FINISH_REASON_MAP, FINISH_REASON_MAP, RESPONSES_FINISH_REASON_MAP)
    theirs = {str(word): reason for one in maps for word, reason in one.items() if word not in NO_REPLY}
    assert {word: stop_reason_of(word) for word in theirs} == {
        word: THEIRS.get(str(reason), StopReason.unknown) for word, reason in theirs.items()
    }
