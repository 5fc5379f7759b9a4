"""Requests to a provider: valid names and ids, its own data alone, in valid turns."""

import gc
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import messages as theirs

from turnwise import FilePart, TextPart
from turnwise.providers.pydantic_ai.provider_data import ProviderOrigin
from turnwise.providers.pydantic_ai.request_writer import RequestWriter
from turnwise.providers.repair_history import PerMessage
from turnwise.states.messages import Message, Part, ReasoningPart, Role, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor

AT = datetime(2026, 1, 1, tzinfo=UTC)
OWN = {"provider": "openai", "endpoint": "https://one.example", "id": "i1", "details": {"key": "k"}}
FOREIGN = {"provider": "stranger", "endpoint": "https://two.example", "id": "i2"}
THEIRS = {"provider_name": "openai", "id": "i1", "provider_details": {"key": "k"}}


def message(role: Role, *parts: Part | str, **fields: Any) -> Message:
    content = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(id=role, role=role, parts=content, turn=1, step=1, created_at=AT, **fields)


def sent(*messages: Message, **options: Any) -> list[Any]:
    """Return the parts of each converted message."""
    usual = {"takes_system": True, "needs_signature": False, "keeps_items": False}
    writer = RequestWriter(ProviderOrigin("openai", ""), **usual | {"takes": lambda _: True} | options)
    return [list(message.parts) for message in writer.history(messages)]


def plain(part: Any) -> Any:
    return {
        key: value
        for key, value in vars(part).items()
        if value is not None and key not in ("timestamp", "part_kind", "metadata")
    }


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return [(type(part), plain(part)) for part in left] == [(type(part), plain(part)) for part in right]


@pytest.mark.parametrize(
    ("name", "sent_name"), [("look", "look"), ("look at", "look_at"), ("", "unnamed"), ("é", "_"), ("a" * 99, "a" * 64)]
)
def test_invalid_tool_name_in_history_is_sanitized(name: str, sent_name: str) -> None:
    """Providers check the names in the history, too: one odd call would break the chat for good."""
    call = ToolCallPart(call_id="c", name=name, arguments={})
    result = ToolResultPart(call_id="c", name=name, output="there is no such tool", is_error=True)
    (asked,), (answered,) = sent(message("assistant", call), message("tool", result))
    assert (asked.tool_name, answered.tool_name) == (sent_name, sent_name)
    assert answered.outcome == "failed"


@pytest.mark.parametrize(
    ("call_id", "short_ids", "stays"),
    [
        ("c_1-A", False, True),
        ("c" * 41, False, False),
        ("a b", False, False),
        ("aB3456789", True, True),
        ("aB34567890", True, False),
        ("call_1234", True, False),
    ],
)
def test_call_and_result_share_an_id_of_valid_form(call_id: str, *, short_ids: bool, stays: bool) -> None:
    """OpenAI accepts 40 characters, Mistral nine: the chat may have used another model before."""
    call = ToolCallPart(call_id=call_id, name="look", arguments={"at": 1})
    result = ToolResultPart(call_id=call_id, name="look", output={"seen": 1})
    (asked,), (answered,) = sent(message("assistant", call), message("tool", result), short_ids=short_ids)
    assert asked.tool_call_id == answered.tool_call_id
    assert len(asked.tool_call_id) == 9 if short_ids else len(asked.tool_call_id) <= 40
    assert (asked.tool_call_id == call_id) is stays
    assert (asked.args, answered.content, answered.outcome) == ({"at": 1}, {"seen": 1}, "success")


def test_reply_keeps_its_provider_and_is_written_once() -> None:
    writer = RequestWriter(
        ProviderOrigin("openai", ""), takes_system=True, needs_signature=False, keeps_items=False, takes=lambda _: True
    )
    own = message("assistant", TextPart(text="a", metadata=OWN))
    for history in ([own], [message("assistant", "b"), own]):
        (reply,) = writer.history(history)
        assert (reply.provider_name, reply.provider_url) == ("openai", "https://one.example")
    assert writer.history([own])[0] is writer.history([own])[0]
    asked = message("user", "Hi.")
    assert writer.history([asked])[0] is writer.history([asked])[0]


@pytest.mark.parametrize(
    ("roles", "takes_system", "kinds"),
    [
        (["system"], False, ["system-prompt"]),
        (["system", "user"], False, ["system-prompt", "user-prompt"]),
        (["user", "system"], True, ["user-prompt", "system-prompt"]),
        (["user", "system"], False, ["user-prompt", "user-prompt"]),
        (["assistant", "system"], False, ["text", "user-prompt"]),
        (["user", "system", "user", "system"], False, ["user-prompt"] * 4),
    ],
)
def test_late_system_message_becomes_a_user_message(roles: list[Role], kinds: list[str], *, takes_system: bool) -> None:
    turns = sent(*(message(role, f"{role} said") for role in roles), takes_system=takes_system)
    parts = [part for turn in turns for part in turn]
    assert [part.part_kind for part in parts] == kinds
    assert [part.content for part in parts] == [f"{role} said" for role in roles]


PROVIDER = Executor.provider


@pytest.mark.parametrize(
    ("part", "options", "expected"),
    [
        (TextPart(text="a", metadata=OWN), {}, [theirs.TextPart("a", **THEIRS)]),
        (TextPart(text="a", metadata=FOREIGN), {}, [theirs.TextPart("a")]),
        (
            ReasoningPart(text="a", signature="s", metadata=OWN),
            {"needs_signature": True},
            [theirs.ThinkingPart("a", signature="s", **THEIRS)],
        ),
        (ReasoningPart(text="a", metadata=OWN), {}, [theirs.ThinkingPart("a", **THEIRS)]),
        (ReasoningPart(text="a", metadata=OWN), {"needs_signature": True}, []),
        (ReasoningPart(text="a", signature="s", metadata=FOREIGN), {}, []),
        (
            ToolCallPart(call_id="c", name="web", arguments={"q": 1}, executor=PROVIDER, metadata=OWN),
            {},
            [theirs.NativeToolCallPart("web", {"q": 1}, "c", **THEIRS)],
        ),
        (ToolCallPart(call_id="c", name="web", arguments={}, executor=PROVIDER, metadata=FOREIGN), {}, []),
        (
            ToolResultPart(call_id="c", name="web", output="found", metadata=OWN),
            {},
            [theirs.NativeToolReturnPart("web", "found", "c", provider_name="openai", provider_details={"key": "k"})],
        ),
        (ToolResultPart(call_id="c", name="web", output="found", metadata=FOREIGN), {}, []),
        (
            FilePart(media_type="image/png", data="aGk=", metadata=OWN),
            {},
            [theirs.FilePart(theirs.BinaryContent(b"hi", media_type="image/png"), **THEIRS)],
        ),
        (FilePart(media_type="image/png", data="aGk="), {}, []),
        (FilePart(media_type="image/png", url="https://x.example/a.png", metadata=OWN), {}, []),
        (SourcePart(url="https://x.example"), {}, []),
    ],
    ids=lambda value: getattr(value, "type", None),
)
def test_own_provider_data_goes_back_with_its_parts(part: Part, options: dict[str, Any], expected: list[Any]) -> None:
    (reply,) = sent(message("assistant", part, "."), **options)
    assert same(reply[:-1], expected)


# What is remembered per message


EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def user_message(text: str) -> Message:
    return Message(id="m1", role="user", parts=(TextPart(text=text),), turn=1, step=1, created_at=EPOCH, position=1)


def test_cache_entry_is_dropped_with_its_message() -> None:
    """Addresses of dropped messages are reused thousands of times: entries must not mix."""
    known = PerMessage(lambda message: message.text)
    stays = user_message("stays")
    known(stays)
    for number in range(3000):
        assert known(user_message(str(number))) == str(number)
    gc.collect()
    assert len(known) == 1
    assert known(stays) == "stays"


# Whose data a part carries


HERE = ProviderOrigin("openai", "https://one.example")
OURS = {"provider": "openai", "endpoint": "https://one.example"}
OTHER = {"provider": "stranger", "endpoint": "https://two.example", "id": "i", "details": {"key": "k"}}


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (OTHER, {}),
        (OURS, {"provider_name": "openai", "id": None, "provider_details": None}),
        (
            OURS | {"id": "i", "details": {"key": "k"}},
            {"provider_name": "openai", "id": "i", "provider_details": {"key": "k"}},
        ),
    ],
    ids=str,
)
def test_provider_gets_back_only_its_own_data(metadata: dict[str, Any] | None, data: dict[str, Any]) -> None:
    assert HERE.data(TextPart(text="a", metadata=metadata)) == data


def test_reply_endpoint_is_that_of_its_first_own_part() -> None:
    """Ids mean nothing at another address of the same provider."""
    elsewhere = OURS | {"endpoint": "https://three.example"}
    parts = [TextPart(text="a", metadata=metadata) for metadata in (None, OTHER, elsewhere, OURS)]
    assert HERE.address(parts) == {"provider_name": "openai", "provider_url": "https://three.example"}
    assert HERE.address(parts[:2]) == {}
