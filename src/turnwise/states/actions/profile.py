"""Actions on the chat itself: its creation, its labels, its archiving."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.actions.queue import clear_schedules
from turnwise.states.arguments import Inheritance
from turnwise.states.draft import Draft
from turnwise.states.events import MessageEvent
from turnwise.states.facts import CompactionFacts, HistoryFacts, Profile, StepFacts, TurnFacts
from turnwise.states.messages import marker_in, without_secrets
from turnwise.states.names import Audience
from turnwise.states.triggers import Configured, Create, MetadataChanged, Renamed, Trigger
from turnwise.states.writes import InsertBoundary, InsertMessage, PutProfile


def insert_chat(draft: Draft[Create]) -> None:
    """Store the chat and its profile; a fork begins with its parent's history, another perhaps with an imported one."""
    _put(draft, draft.trigger.profile)
    inheritance = draft.trigger.inheritance
    if inheritance is not None:
        _inherit(draft, inheritance)


def change_title(draft: Draft[Renamed]) -> None:
    """Store the new title, and book the model calls that it took."""
    _put(draft, replace(draft.before.profile, title=draft.trigger.title))
    draft.titled = draft.titled or draft.trigger.final
    if draft.trigger.usage is not None:
        draft.book_title(draft.trigger.usage)


def change_metadata(draft: Draft[MetadataChanged]) -> None:
    """Store the new metadata."""
    _put(draft, replace(draft.before.profile, metadata=draft.trigger.metadata))


def change_configuration(draft: Draft[Configured]) -> None:
    """Store who answers from the next model call on, and how; another agent has given no wrong answers yet."""
    configuration = draft.trigger
    before = draft.before.profile
    if configuration.agent != before.agent:
        draft.turn = replace(draft.turn, refused=0)
    if (configuration.agent, configuration.model) != (before.agent, before.model):
        draft.ask_first_model()
        draft.compaction = replace(draft.compaction, context_limit=None)  # it was the other model's
    _put(
        draft,
        replace(
            before,
            agent=configuration.agent,
            model=configuration.model,
            parameters=configuration.parameters,
            active_tools=configuration.active_tools,
            system=configuration.system,
            client_tools=before.client_tools if configuration.client_tools is None else configuration.client_tools,
        ),
    )


def mark_archived(draft: Draft[Trigger]) -> None:
    """Close the chat to everything but `unarchived`; what is scheduled is taken back."""
    draft.archived = True
    clear_schedules(draft)


def unmark_archived(draft: Draft[Trigger]) -> None:
    """Open the chat again."""
    draft.archived = False


def mark_read(draft: Draft[Trigger]) -> None:
    """Note that the end of the last turn was read."""
    draft.unread = False


def _put(draft: Draft[Trigger], profile: Profile) -> None:
    draft.profile = profile
    draft.writes.append(PutProfile(profile, draft.salt_of("profile")))


def _inherit(draft: Draft[Trigger], inheritance: Inheritance) -> None:
    messages = inheritance.messages
    draft.turn = TurnFacts(number=max((message.turn for message in messages), default=0))
    draft.step = StepFacts(number=max((message.step for message in messages), default=0))
    draft.serial = inheritance.serial
    draft.compaction = CompactionFacts(count=inheritance.compactions, next_tokens=inheritance.tokens)
    draft.history = HistoryFacts(
        length=max((message.position for message in messages), default=0),
        tail=inheritance.tail,
        boundary=inheritance.boundary,
        foldable=inheritance.foldable,
    )
    for message in messages:
        draft.writes.append(InsertMessage(message, draft.salt_of(message.id)))
        if message.audience is not Audience.model:
            draft.events.append(MessageEvent(message=without_secrets(message)))
        marker = marker_in(message)
        if marker is not None:
            # All are of the chat's step, which is compacted once at most: the older ones are only there for edits.
            reason = marker.reason if message.position == inheritance.boundary else "clear"
            draft.writes.append(InsertBoundary(reason, draft.step.number, message.position, marker.carried))
            if reason == "compaction":
                draft.compaction = replace(draft.compaction, step=draft.step.number)
    draft.history_changed()
