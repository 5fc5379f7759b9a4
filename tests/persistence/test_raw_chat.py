"""What the raw rows of a chat tell: which messages are missing, which event is the last, and all they hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from turnwise.persistence.repair.raw_chat import columns_in, last_seq_in, lines_of


def test_last_seq_skips_garbage() -> None:
    events = [{"seq": 3}, {"seq": "poison"}, {"seq": None}, {"seq": 1}]
    assert last_seq_in({"events": events}) == 3
    assert last_seq_in({"events": events, "partial_events": [{"seq": 5}, {"seq": b"9"}, {"seq": 4}]}) == 5
    assert last_seq_in({"events": [{"seq": -1}, {"seq": True}]}) == last_seq_in({}) == 0


def test_every_row_exports_as_json() -> None:
    row = {
        "a": b"\xff\x00",
        "b": memoryview(b"\x01"),
        "c": "half \ud800",
        "d": "grün",
        "e": None,
        "f": [1, "x"],
        "g": 2.5,
    }
    at = datetime(2026, 11, 22, tzinfo=UTC)
    told = {**row, "a": {"hex": "ff00"}, "b": {"hex": "01"}, "c": "half \\ud800"}
    assert columns_in(row) == told
    lines = list(lines_of({"messages": [row, {"at": at}], "queue": [], "usage": [{"version": 3}]}))
    assert [json.loads(line) for line in lines] == [
        {"table": "messages", "row": told},
        {"table": "messages", "row": {"at": "2026-11-22T00:00:00+00:00"}},
        {"table": "usage", "row": {"version": 3}},
    ]
