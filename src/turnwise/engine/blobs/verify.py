"""Checks that the files which a chat's messages refer to are there, and are what the messages say."""

from __future__ import annotations

from turnwise.engine.blobs.files import Files
from turnwise.persistence.audit.check_rows import name_of
from turnwise.persistence.audit.verify import Verdict
from turnwise.persistence.blobs.references import blobs_named_in
from turnwise.persistence.chat_rows import ChatRows, Place, Row


async def verify_files(files: Files, rows: ChatRows) -> Verdict:
    """Return the verdict on the files of a chat whose log was found sound.

    The log binds the messages, and a message names the digest of each file: so the log binds the bytes, too.

    Raises:
        ChatDeleted: the chat was deleted meanwhile.
    """
    while not (verdict := await _verdict_on(files, rows)).ok:
        # An erasure takes the reference away before the file: what it has erased since then is not lost.
        later = await files.store.rows(rows.chat["id"])
        if later.chat["version"] == rows.chat["version"]:
            break
        rows = later
    return verdict


async def _verdict_on(files: Files, rows: ChatRows) -> Verdict:
    referring: dict[str, Row] = {}
    for row in rows.tables["messages"]:
        for digest in blobs_named_in(row["body"]):
            referring.setdefault(digest, row)
    held = await files.store.held_files(rows.chat["id"], referring) if referring else {}
    for digest, row in referring.items():
        problem = await files.problem_with(digest) if digest in held else "is not held by the chat"
        if problem is not None:
            place = Place("messages", name_of("messages", row), ("body",))
            return Verdict(ok=False, problem=f"The file {digest} {problem}.", position=row["added"], place=str(place))
    return Verdict(ok=True)
