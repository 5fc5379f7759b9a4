"""What logs say of helpers, and who is wanted still. The rest is tested by whole lives, in `test_helpers`."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from support.engines import OpenEngine
from support.family_logs import helper, log_of
from support.life import NOW, asking, delegated
from turnwise import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.engine.family import Answer, answers_in, is_wanted
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, TurnFacts
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.step_calls import StepCalls


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
