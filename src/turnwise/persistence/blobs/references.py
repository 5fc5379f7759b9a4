"""Finds the blobs that stored rows refer to."""

from __future__ import annotations

import re
from typing import Final

from turnwise.persistence.chat_rows import ChatRows

REFERRING: Final = {"messages": "id", "queue": "id", "events": "seq"}
"""The tables whose bodies may refer to blobs, each with the column by which an erasure names a row."""
_BLOB: Final = re.compile(r'"blob":\s?"([0-9a-f]{64})"')
"""Finds references in JSON: text that looks like one has its quotes escaped there."""


def blobs_named_in(body: object) -> set[str]:
    """Return the digests of the blobs that a stored body refers to."""
    return set(_BLOB.findall(str(body)))


def blobs_of(rows: ChatRows) -> set[str]:
    """Return the digests of the blobs that the rows of a chat refer to."""
    return {digest for table in REFERRING for row in rows.tables[table] for digest in blobs_named_in(row["body"])}
