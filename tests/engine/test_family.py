"""What families use, reckoned from what their logs say. The rest is tested by whole lives, in `test_helpers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from support.audit_records import record
from support.engines import OpenEngine
from support.gated_model import GatedModel
from support.life import NOW, asking, delegated
from turnwise import Agent, ChatDeleted, ChatNotFound, ChatUnreadable, Engine, delegate
from turnwise.engine.family import Answer, answers_in, is_wanted, unheard_usage
from turnwise.persistence.audit.record import AuditRecord, WriteRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, Profile, TurnFacts
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import RecordUsage
from turnwise.testing import ManualClock


def log_of(turns: Sequence[int], answers: Mapping[int, Sequence[str]]) -> list[AuditRecord]:
    """Return a log: the turn of each record, and by its version which helper answered there, with its version."""
    return [
        record(
            version,
            turn=turn,
            writes=(
                WriteRecord("usage", "step:1:1", "-"),
                *(WriteRecord("helper", name, "-") for name in answers.get(version, ())),
            ),
        )
        for version, turn in enumerate(turns, 1)
    ]


class Logs:
    """A store that tells logs, and what each turn has used."""

    def __init__(self, logs: Mapping[str, list[AuditRecord]], used: Mapping[str, Sequence[int]]) -> None:
        self._logs, self._used = logs, used

    async def audit(self, chat_id: str) -> list[AuditRecord]:
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


def helper(chat_id: str, parent: str) -> Facts:
    """Return what is asked of a helper: its id, and whose it is."""
    return Facts(
        chat_id=chat_id, profile=Profile(created_at=NOW, parent=parent, helps="call"), since=NOW, updated_at=NOW
    )


HELPER = log_of([0, 1, 1, 2, 2, 2, 3, 3], {1: ("nobody:0", "nobody:new"), 2: ("its own:1",), 4: ("its own:3",)})
ITS_OWN = log_of([0, 1, 2], {})
USED = {"helper": (1, 2, 4, 8), "its own": (16, 32, 64), "parent": (128, 256, 512), "first": ()}
"""Tokens by turn: each sum of them tells what was counted, and how often."""


@pytest.mark.parametrize(
    ("answers", "unheard"),
    [
        ({}, {1, 2, 4, 8, 16, 32, 64}),
        ({2: ("helper:3",)}, {4, 8, 32, 64}),
        ({2: ("helper:3",), 4: ("helper:6",)}, {8}),
    ],
)
async def test_what_was_used_since_the_last_answer_is_told_with_the_next(
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
async def test_what_a_log_does_not_hold_that_an_answer_names_makes_a_sum_partial(
    its_own: Sequence[int], unheard: set[int]
) -> None:
    """A chat could never be answered whose helper's helper was deleted, or came back from an older backup."""
    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": log_of(its_own, {})}
    used = {**USED, "its own": USED["its own"][: len(its_own)]}
    usage = await unheard_usage(cast("ChatStore", Logs(logs, used)), "parent", helper("helper", "parent"))
    assert (usage.input_tokens, usage.partial) == (sum(unheard), True)


@pytest.mark.parametrize(
    ("gone", "unheard"), [("its own", {1, 2, 4, 8}), ("helper", {}), ("parent", {})], ids=["below", "itself", "above"]
)
@pytest.mark.parametrize("how", ["deleted", "its log cannot be read", "its usage cannot be read"])
async def test_what_nobody_can_tell_any_more_makes_a_sum_partial(gone: str, unheard: set[int], how: str) -> None:
    """Or else the answer of a helper is heard by nobody, ever."""

    class Gone(Logs):
        async def audit(self, chat_id: str) -> list[AuditRecord]:
            self._look(chat_id, "its log cannot be read")
            return await super().audit(chat_id)

        async def ledger(self, chat_id: str) -> list[RecordUsage]:
            self._look(chat_id, "its usage cannot be read")
            return await super().ledger(chat_id)

        def _look(self, chat_id: str, at: str) -> None:
            if chat_id == gone and how == "deleted":
                raise ChatDeleted(chat_id, NOW)
            if chat_id == gone and how == at:
                raise ChatUnreadable("audit.body", "not JSON", chat_id=chat_id)

    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": ITS_OWN}
    usage = await unheard_usage(cast("ChatStore", Gone(logs, USED)), "parent", helper("helper", "parent"))
    if (gone, how) == ("parent", "its usage cannot be read"):
        assert not usage.partial, "nobody asks what the parent has used"
    elif (gone, how) == ("helper", "its usage cannot be read"):
        assert (usage.input_tokens, usage.partial) == (sum({16, 32, 64}), True), "those below are known"
    else:
        assert ((usage.input_tokens or 0), usage.partial) == (sum(unheard), True)


async def test_a_helper_that_came_back_from_an_older_backup_than_its_answer_has_used_nothing_that_is_known() -> None:
    logs = {"parent": log_of([0, 1, 1], {3: ("helper:7",)}), "helper": log_of([0, 1], {}), "first": []}
    usage = await unheard_usage(cast("ChatStore", Logs(logs, USED)), "parent", helper("helper", "parent"))
    assert usage == NO_USAGE.marked_partial()


@pytest.mark.parametrize("name", ["helper:0", "helper:-1", "helper:", "helper:٣", "helper:" + "9" * 5_000, "no\0id:1"])
def test_what_can_be_no_version_of_a_chat_names_no_answer(name: str) -> None:
    """Whoever rewrites a log may write anything there, also what Python or a database does not take."""
    (written,) = log_of([1], {1: (name, "helper:7")})
    assert answers_in([written]) == {"helper": [Answer(at=1, version=7, head="-")]}


async def test_helpers_of_a_chat_that_is_not_there_are_asked_for_in_vain(open_engine: OpenEngine) -> None:
    """As everything else of it; a list without helpers would say that it has none."""
    async with open_engine("demo") as engine:
        chat = await engine.create_chat()
        assert await engine.helpers(chat.id) == []
        await engine.delete_chat(chat.id)
        with pytest.raises(ChatDeleted):
            await engine.helpers(chat.id)
        with pytest.raises(ChatNotFound):
            await engine.helpers("nobody")


async def test_every_turn_of_a_family_is_counted_once() -> None:
    """Also of those whose answers came in several turns; what a helper has used since its last one was not heard of."""
    parent = log_of([0, 1, 1, 2], {2: ("helper:3",), 4: ("helper:6",)})
    logs = {"first": log_of([0, 1], {}), "parent": parent, "helper": HELPER, "its own": ITS_OWN}
    used = await unheard_usage(cast("ChatStore", Logs(logs, USED)), "first", helper("parent", "first"))
    assert used.input_tokens == sum({128, 256, 512, 1, 2, 4, 16, 32, 64})


@pytest.mark.parametrize("directly", [1, 3], ids=["before the parent", "between the answers of the parent"])
async def test_what_a_chat_has_heard_of_a_helper_itself_does_not_count_again_with_the_parents_answer(
    directly: int,
) -> None:
    """Nor the other way about: whoever tells first, every turn is counted once."""
    parent = log_of([0, 1, 1, 2], {2: ("helper:3",), 4: ("helper:6",)})
    family = {"parent": parent, "helper": HELPER, "its own": ITS_OWN}
    heard: list[int] = []
    answers: dict[int, Sequence[str]] = {}
    for version in range(1, 5):
        name, above, told = ("helper", "parent", "helper:8") if version == directly else ("parent", "first", "parent:2")
        logs = {"first": log_of([0] * (version - 1), answers), **family}
        logs["parent"] = parent[:2] if version < 4 else parent
        store = cast("ChatStore", Logs(logs, USED))
        heard.append((await unheard_usage(store, "first", helper(name, above))).input_tokens or 0)
        answers[version] = (told,)
    assert sum(heard) == sum({128, 256, 512, 1, 2, 4, 8, 16, 32, 64})


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
async def test_a_helper_that_was_told_more_is_wanted_by_the_open_call_that_tells_it(
    call: ToolCall, *, wanted: bool
) -> None:
    asker = replace(asking().facts, chat_id="above", calls=StepCalls([call]))

    class Known:
        async def facts(self, chat_id: str) -> Facts:
            assert chat_id == "above"
            return asker

    told = replace(
        helper("helper", "parent"), turn=TurnFacts(number=2, started_at=NOW + timedelta(seconds=1), asker="above")
    )
    assert await is_wanted(cast("ChatStore", Known()), told) is wanted
    asker = replace(asker, state=ChatState.interrupted)
    assert not await is_wanted(cast("ChatStore", Known()), told), "nobody waits who was stopped"


async def test_whoever_asked_for_a_turn_of_a_helper_is_told_by_the_turn_and_not_by_the_clock(
    open_engine: OpenEngine,
) -> None:
    """A clock that is moved by hand stands still: every turn begins when the helper was made."""
    asks = lead([Call("ask_research", {"task": "one"})])
    research = GatedModel(lambda _: Reply("answer", usage=(1, 1)))
    helper = Agent("research", research)
    agents = [Agent("lead", asks, tools=[delegate(helper)]), helper]
    async with open_engine(None, agents=agents, clock=ManualClock()) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            name = await at_work(engine, research)
            of_task = await engine._store.facts(name)
            assert (of_task.turn.asker, of_task.turn.number) == (chat.id, 1)
            of_before = msgspec.structs.replace(of_task, turn=msgspec.structs.replace(of_task.turn, asker=None))
            for facts in (of_task, of_before):
                assert await is_wanted(engine._store, facts)
            await engine.interrupt(name)
            await engine.wait(chat.id, until=["waiting"])
            for facts in (of_task, of_before):
                assert not await is_wanted(engine._store, facts)
            await engine.resume(name)
            assert await is_wanted(engine._store, await engine._store.facts(await at_work(engine, research)))
            research.gate.set()
            assert (await engine.wait(name)).state == "waiting"
            research.gate = anyio.Event()
            await engine.send_message(name, "and more?")
            more = await engine._store.facts(await at_work(engine, research))
            assert (more.turn.asker, more.turn.number) == (None, 2)
            assert await is_wanted(engine._store, more)
            research.gate.set()
            assert (await engine.wait(name)).state == "waiting"


async def at_work(engine: Engine, research: GatedModel) -> str:
    """Return the id of the only helper that there is, once its model is asked."""
    while not research.busy:  # noqa: ASYNC110 - a model tells nobody
        await anyio.sleep(0.01)
    (name,) = [one for one in await engine.chat_ids() if (await engine.get_chat(one)).helps]
    return name


def lead(*batches: list[Call]) -> ScriptedModel:
    """Return a model that makes each of these batches of calls, and then says that it is done."""
    taken = iter(batches)
    return ScriptedModel(lambda _: Reply(calls=batch) if (batch := next(taken, None)) else Reply("done"))
