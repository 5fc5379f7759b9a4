"""Writes about the chat itself: its creation, its labels, its archiving."""

from __future__ import annotations

import dataclasses

from turnwise.states.draft import Draft
from turnwise.states.effects import PutProfile
from turnwise.states.facts import Profile


def insert_chat(draft: Draft) -> None:
    """Store the chat with what was said at its creation."""
    _put(draft, draft.arguments["profile"])


def change_title(draft: Draft) -> None:
    """Store the new title."""
    _put(draft, dataclasses.replace(draft.before.profile, title=draft.arguments["title"]))


def change_metadata(draft: Draft) -> None:
    """Store the new metadata."""
    _put(draft, dataclasses.replace(draft.before.profile, metadata=draft.arguments["metadata"]))


def mark_archived(draft: Draft) -> None:
    """Close the chat to everything but `unarchived`."""
    draft.set(archived=True)


def unmark_archived(draft: Draft) -> None:
    """Open the chat again."""
    draft.set(archived=False)


def _put(draft: Draft, profile: Profile) -> None:
    draft.set(profile=profile)
    draft.writes.append(PutProfile(profile))
