"""Families: what their logs say of answers and usage, and whether a subagent is still wanted."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from support.audit_records import record
from support.engines import OpenEngine
from support.life import NOW, asking, delegated
from turnwise import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.engine.family import Answer, answers_in, is_wanted
from turnwise.engine.family_usage import unheard_usage
from turnwise.persistence.audit.record import AuditRecord, WriteRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, Profile, TurnFacts
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage


def log_of(turns: Sequence[int], answers: Mapping[int, Sequence[str]]) -> list[AuditRecord]:
    """Return a log: the turn of each record, and by its version which helper answered there, with its version.

    Something is used by the last record of each turn.
    """
    following = [*turns[1:], None]
    return [
        record(
            version,
            turn=turn,
            writes=(
                *([WriteRecord("usage", "step:1:1", "-")] if turn != following[version - 1] else []),
                *(WriteRecord("helper", name, "-") for name in answers.get(version, ())),
            ),
        )
        for version, turn in enumerate(turns, 1)
    ]


def helper(chat_id: str, parent: str) -> Facts:
    """Return what is asked of a helper: its id, and whose it is."""
    return Facts(
        chat_id=chat_id, profile=Profile(created_at=NOW, parent=parent, helps="call"), since=NOW, updated_at=NOW
    )


@pytest.mark.parametrize("name", ["helper:0", "helper:-1", "helper:٣", "helper:" + "9" * 5_000, "no\0id:1"])
def test_invalid_version_in_a_log_is_ignored(name: str) -> None:
    """Whoever rewrites a log may write anything there, also what Python or a database does not take."""
    (written,) = log_of([1], {1: (name, "helper:7")})
    assert answers_in([written]) == {"helper": [Answer(at=1, version=7, head="-")]}


async def test_subagents_of_a_missing_chat_raise(open_engine: OpenEngine) -> None:
    """As everything else of it; a list without helpers would say that it has none."""
    async with open_engine("demo") as engine:
        chat = await engine.create_chat()
        assert await engine.helpers(chat.id) == []
        await engine.delete_chat(chat.id)
        with pytest.raises(ChatDeleted):
            await engine.helpers(chat.id)
        with pytest.raises(ChatNotFound):
            await engine.helpers("nobody")


def tells(**arguments: str) -> ToolCall:
    """Return a call that tells a helper more."""
    return replace(delegated("call_2", helper=None, helper_action="message"), arguments=arguments)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (tells(helper="helper", message="more"), True),
        (tells(), True),
        (tells(helper="another", message="more"), False),
        (tells(helper="helper", message="more").with_status(CallStatus.cancelled), False),
        (delegated("call_2"), False),
        (replace(delegated("call_2", helper=None, helper_action="wait"), arguments={}), False),
    ],
    ids=["tells it", "told somebody, which was erased", "tells another", "is closed", "asks another", "waits"],
)
async def test_open_message_call_keeps_a_subagent_running(call: ToolCall, *, wanted: bool) -> None:
    asker = replace(asking().facts, chat_id="above", calls=StepCalls([call]))

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            assert chat_id == "above"
            return asker

    told = replace(
        helper("helper", "parent"), turn=TurnFacts(number=2, started_at=NOW + timedelta(seconds=1), asker="above")
    )
    assert await is_wanted(cast("ChatStore", Known()), told) is wanted
    of_a_person = replace(told, turn=replace(told.turn, asker=None))
    assert await is_wanted(cast("ChatStore", Known()), of_a_person), "no chat asked for this turn"
    asker = replace(asker, state=ChatState.interrupted)
    assert not await is_wanted(cast("ChatStore", Known()), told), "nobody waits who was stopped"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ChatDeleted("above", NOW), False),
        (ChatNotFound("above"), True),
        (ChatUnreadable("chats.facts", "not JSON", chat_id="above"), True),
    ],
)
async def test_subagent_whose_parent_was_never_there_goes_on(error: Exception, *, wanted: bool) -> None:
    """The parent may be imported later."""

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            raise error

    facts = helper("helper", "above")
    facts = replace(facts, turn=replace(facts.turn, number=1, asker="above"))
    assert await is_wanted(cast("ChatStore", Known()), facts) is wanted


class Logs:
    """A store that tells logs, and what each turn has used."""

    def __init__(
        self,
        logs: Mapping[str, list[AuditRecord]],
        used: Mapping[str, Sequence[int]],
        broken: Mapping[str, Exception] | None = None,
    ) -> None:
        self._logs, self._used, self._broken = logs, used, broken or {}

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        if chat_id in self._broken:
            raise self._broken[chat_id]
        if chat_id not in self._logs:
            raise ChatDeleted(chat_id, NOW)
        return self._logs[chat_id]

    async def facts(self, chat_id: str) -> Facts:
        return helper(chat_id, "first")

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return [
            RecordUsage(purpose="step", turn=turn, step=1, attempt=1, usage=Usage(input_tokens=tokens))
            for turn, tokens in enumerate(self._used[chat_id])
        ]


HELPER = log_of([0, 1, 1, 2, 2, 2, 3, 3], {1: ("nobody:0", "nobody:new"), 2: ("its own:1",), 4: ("its own:3",)})
ITS_OWN = log_of([0, 1, 2], {})
USED = {"helper": (1, 2, 4, 8), "its own": (16, 32, 64), "parent": (128, 256, 512), "first": ()}
"""Tokens by turn: each sum of them tells what was counted, and how often."""


@pytest.mark.parametrize(
    ("answers", "unheard"),
    [({}, {1, 2, 4, 8, 16, 32, 64}), ({2: ("helper:3",)}, {4, 8, 32, 64}), ({2: ("helper:3",), 4: ("helper:6",)}, {8})],
)
async def test_usage_since_the_last_answer_counts_with_the_next(
    answers: Mapping[int, Sequence[str]], unheard: set[int]
) -> None:
    logs = {"parent": log_of([0, 1, 1, 2], answers), "helper": HELPER, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED))
    assert (await unheard_usage(store, "parent", helper("helper", "parent"))).input_tokens == sum(unheard)


@pytest.mark.parametrize(
    ("its_own", "unheard"),
    [([], {1, 2, 4, 8}), ([0], {1, 2, 4, 8, 16}), ([0, 1], {1, 2, 4, 8, 16, 32})],
    ids=["deleted", "restored from before both", "restored from before the last"],
)
async def test_answer_missing_from_a_log_makes_usage_partial(its_own: Sequence[int], unheard: set[int]) -> None:
    """A chat could never be answered whose helper's helper was deleted, or came back from an older backup."""
    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": log_of(its_own, {})}
    used = {**USED, "its own": USED["its own"][: len(its_own)]}
    usage = await unheard_usage(cast("ChatStore", Logs(logs, used)), "parent", helper("helper", "parent"))
    assert (usage.input_tokens, usage.partial) == (sum(unheard), True)


@pytest.mark.parametrize("error", [ChatDeleted("x", NOW), ChatUnreadable("audit.body", "not JSON", chat_id="x")])
@pytest.mark.parametrize(("gone", "unheard"), [("its own", {1, 2, 4, 8}), ("helper", {}), ("parent", {})])
async def test_unreadable_or_deleted_chat_makes_usage_partial(error: Exception, gone: str, unheard: set[int]) -> None:
    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED, broken={gone: error}))
    usage = await unheard_usage(store, "parent", helper("helper", "parent"))
    assert ((usage.input_tokens or 0), usage.partial) == (sum(unheard), True)


async def test_usage_of_a_resumed_turn_counts_with_the_next_answer() -> None:
    """A helper that ended in error goes on in the same turn."""
    first = log_of([0, 1, 1], {})
    resumed = [dataclasses.replace(one, version=one.version + 3, turn=1) for one in log_of([1, 1], {})]
    logs = {"parent": log_of([0, 1, 1], {2: ("helper:3",)}), "helper": first + resumed}
    for entries, used in (((1, 2, 4), (4, False)), ((1, 2, 4, 8), (4, False)), ((1, 2), (None, True))):
        store = cast("ChatStore", Logs(logs, {"helper": entries}))
        usage = await unheard_usage(store, "parent", helper("helper", "parent"))
        assert (usage.input_tokens, usage.partial) == used


async def test_every_turn_of_a_family_counts_once() -> None:
    """Also of those whose answers came in several turns; what a helper has used since its last one was not heard of."""
    parent = log_of([0, 1, 1, 2], {2: ("helper:3",), 4: ("helper:6",)})
    logs = {"first": log_of([0, 1], {}), "parent": parent, "helper": HELPER, "its own": ITS_OWN}
    used = await unheard_usage(cast("ChatStore", Logs(logs, USED)), "first", helper("parent", "first"))
    assert used.input_tokens == sum({128, 256, 512, 1, 2, 4, 16, 32, 64})
