"""The page of the log's format names what there is: every field of a record and a checkpoint, every kind of write."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import orjson

from support.logged_life import LOG
from turnwise import SigningKey
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line
from turnwise.persistence.audit.record import GENESIS, MOST, export, to_json

PAGE = (Path(__file__).parents[2] / "docs" / "audit-format.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    below = PAGE.partition(f"\n{heading}\n")[2]
    table = takewhile(lambda line: line.startswith("|"), below[below.index("\n|") + 1 :].splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [*table][2:]]


def names_in(cells: list[list[str]]) -> list[str]:
    return [name for first, *_ in cells for name in re.findall(r"`([\w:]+)`", first)]


def test_page_names_every_field_of_a_record() -> None:
    assert set(names_in(rows_of("## A record"))) == set(orjson.loads(to_json(LOG[0])))
    assert MOST == 2**53 - 1


def test_page_names_every_field_of_checkpoints() -> None:
    key = SigningKey.generate()
    last = orjson.loads(export("chat-1", LOG, key=b"k", signer=key).splitlines()[-1])
    assert {"count", "head", *names_in(rows_of("## The checkpoint"))} == set(last)
    line = checkpoint_line(Head("chat-1", 1, GENESIS), at=datetime.now(UTC), prev=GENESIS, key=key)
    assert set(names_in(rows_of("## Published checkpoints"))) == set(orjson.loads(line))
