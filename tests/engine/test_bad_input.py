"""Bad input raises a typed error that says what would be right; nothing is written."""

import math
import re
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine.chats import untouched

from support.engines import OpenChat
from turnwise import ChatNotFound, ClientTool, Engine, FilePart, Settings, SettingsError, TextPart, ToolResult
from turnwise.engine.config.settings import CompactionPolicy, RetryPolicy
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import IllegalTransition, InvalidArgument, InvalidContent, MessageNotFound, NothingToCompact

OBJECT = {"type": "object"}


async def test_unknown_chat_is_not_found(open_engine: Any, strict_model: Any) -> None:
    chat_id = "c404"
    plain = (
        *("get_chat", "interrupt", "resume", "queued", "request_compaction", "clear_context", "archive", "unarchive"),
        *("messages", "wait", "transcript", "audit", "export_audit", "verify", "explain"),
    )
    async with open_engine(strict_model([])) as engine:
        calls: list[Any] = [
            *(partial(getattr(engine, name), chat_id) for name in plain),
            *(partial(engine.messages, chat_id, view=view) for view in ("model", "raw")),
            partial(engine.send_message, chat_id, "hi"),
            partial(engine.send_message, chat_id, "hi", client_id="k", when_busy="interrupt"),
            partial(engine.ask, chat_id, "hi"),
            partial(engine.submit_tool_results, chat_id, [ToolResult("c", 1)]),
            partial(engine.edit_message, chat_id, "m1", "x"),
            partial(engine.edit_queued, chat_id, "m1", "x"),
            partial(engine.delete_queued, chat_id, "m1"),
            partial(engine.promote_queued, chat_id, "m1"),
            partial(engine.rename, chat_id, "x"),
            partial(engine.set_metadata, chat_id, {}),
            partial(engine.create_chat, parent=chat_id),
            partial(engine.fork, chat_id, at_version=1),
            lambda: anext(aiter(engine.events(chat_id))),
            lambda: anext(aiter(engine.events(chat_id, follow=False))),
        ]
        for call in calls:
            with pytest.raises(ChatNotFound) as refused:
                await call()
            assert refused.value.chat_id == chat_id
        with pytest.raises((ChatNotFound, MessageNotFound)):
            await engine.erase_message(chat_id, "m1")
        assert (await engine.list_chats()).items == []


@pytest.mark.parametrize(
    "content",
    ["", "\n\t", [], [TextPart(text="")], ["hi"], None, 7, "half \ud83d", [FilePart(media_type="a/b", url="\ud800")]],
)
async def test_blank_or_unstorable_content_is_refused(open_chat: OpenChat, content: Any) -> None:
    async with open_chat("ok") as (engine, chat, _):
        sent = (await engine.ask(chat.id, "hi")).messages[0]
        async with untouched(engine, chat.id):
            for client_id in (None, "k"):
                with pytest.raises(InvalidContent, match="nothing was written"):
                    await engine.send_message(chat.id, content, client_id=client_id)
            with pytest.raises(InvalidContent, match="nothing was written"):
                await engine.edit_message(chat.id, sent.id, content)


async def test_deep_value_for_a_word_is_refused(open_chat: OpenChat) -> None:
    """An enumeration's own error would hold the whole value, and fail to."""
    deep: Any = "waiting"
    for _ in range(5_000):
        deep = [deep]
    async with open_chat([]) as (engine, chat, _):
        with pytest.raises(InvalidArgument, match=r"state: must be one of 'waiting', .*; it was a value of type list"):
            await engine.list_chats(state=deep)
        with pytest.raises(
            InvalidArgument, match=r"until\[0\]: must be one of 'waiting', .*; it was a value of type list"
        ):
            await engine.wait(chat.id, until=deep)


async def test_illegal_transition_names_allowed_triggers(open_chat: OpenChat) -> None:
    async with open_chat([]) as (engine, chat, _), untouched(engine, chat.id):
        for act, trigger in ((engine.interrupt, "interrupt"), (engine.resume, "resume")):
            with pytest.raises(IllegalTransition, match="send_message") as refused:
                await act(chat.id)
            assert (refused.value.state, refused.value.trigger) == ("waiting", trigger)
        with pytest.raises(NothingToCompact, match="send one first"):
            await engine.request_compaction(chat.id)


async def test_unknown_option_values_are_refused(open_chat: OpenChat) -> None:
    async with open_chat([]) as (engine, chat, _):
        with pytest.raises(SettingsError, match="view: must be one of 'user', 'model', 'raw'; it was 'all'"):
            await engine.messages(chat.id, view="all")
        with pytest.raises(SettingsError, match=r"state: must be one of waiting, pending, .*; it was .idle."):
            await engine.list_chats(state="idle")
        with pytest.raises(SettingsError, match="until: must be one of waiting"):
            await engine.wait(chat.id, until={"done"})
        with pytest.raises(SettingsError, match="when_busy: must be one of 'queue', 'steer', 'interrupt', 'reject'"):
            await engine.send_message(chat.id, "hi", when_busy="wait")
        with pytest.raises(SettingsError, match="limit: must be at least 1; it was 0"):
            await engine.list_chats(limit=0)


async def test_odd_numbers_are_refused_in_words(open_chat: OpenChat) -> None:
    """Comparing a Decimal with a signalling NaN raises; so do some comparisons with zero."""
    async with open_chat([]) as (engine, chat, _):
        for cost in ("NaN", "sNaN", "Infinity", "-1"):
            with pytest.raises(InvalidArgument, match=r"cost: must be .* nothing was written"):
                await engine.set_budget(owner="ada", cost=Decimal(cost))
        for wrong in (partial(engine.rename, chat.id), engine.get_chat, partial(engine.wait, chat.id)):
            with pytest.raises(InvalidArgument, match="nothing was written"):
                await wrong(Decimal("sNaN"))
        assert await engine.budgets() == []


async def test_long_ids_are_cut_in_errors(open_chat: OpenChat) -> None:
    async with open_chat([]) as (engine, chat, _):
        for call in (engine.get_chat, partial(engine.edit_message, chat.id, content="x")):
            with pytest.raises((ChatNotFound, MessageNotFound), match=r"x'\.\.\. \(1,000,000 long\)") as refused:
                await call("x" * 10**6)
            assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([ClientTool("a", "A.", {})], "needs a JSON schema"),
        ([ClientTool("a", "A.", {"type": "array"})], 'of type "object"'),
        ([ClientTool("a", "A.", OBJECT), ClientTool("b", "B.", OBJECT | {"required": 3})], "not valid at required"),
        ([ClientTool("two words", "A.", OBJECT)], "needs a name of 1 to 64"),
        ([ClientTool("a", "A.", OBJECT), ClientTool("a", "B.", OBJECT)], "needs a name of its own"),
        ([ClientTool("a", "A.", OBJECT, deadline=0)], "deadline must be above 0"),
        ([ClientTool("a", "A.", OBJECT, deadline=math.inf)], "at most; it was inf"),
    ],
)
async def test_invalid_client_tool_is_refused(open_engine: Any, strict_model: Any, tools: Any, problem: str) -> None:
    async with open_engine(strict_model([])) as engine:
        with pytest.raises(SettingsError, match=f"^client tool '{tools[-1].name}': .*{problem}"):
            await engine.create_chat(client_tools=tools)
        assert (await engine.list_chats()).items == []


@pytest.mark.parametrize("name", ["", "unknown:gpt", "gpt-5"])
def test_unknown_model_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"model: .*demo"):
        Engine("sqlite://", model=name)


FIELDS = [
    (policy, name, hint)
    for policy in (Settings, RetryPolicy, CompactionPolicy)
    for name, hint in policy.__annotations__.items()
    if not name.startswith("_")
]


@pytest.mark.parametrize(("policy", "name", "hint"), FIELDS)
def test_setting_of_another_type_is_refused(policy: Any, name: str, hint: str) -> None:
    """Booleans are no numbers and texts are no whole numbers; no value is converted."""
    odd = [True, "3", 1.5, math.nan, object(), None]
    fits: dict[str, set[str]] = {"bool": {"True"}, "PositiveSeconds": {"1.5"}, "NonNegativeSeconds": {"1.5"}}
    fits |= {"Annotated[float,": {"1.5"}, "Annotated[str,": {"'3'"}}
    kind = hint.partition(" ")[0]
    others = {"renew_every": 1e-7} if name == "lease" else {}
    refused: list[SettingsError] = []
    taken = set()
    for value in odd:
        try:
            policy(**{name: value, **others})
        except SettingsError as error:
            refused.append(error)
        else:
            taken.add(repr(value))
    known = fits.get(kind, set()) | ({"None"} if "None" in hint else set())
    assert taken == known
    assert all(f"{name}: must be" in str(error) for error in refused)


async def test_message_over_the_limit_is_refused(open_chat: OpenChat) -> None:
    limited = Settings(run_worker=False, message_limit_bytes=100)
    async with open_chat([], settings=limited) as (engine, chat, _):
        first = await engine.send_message(chat.id, "é" * 50)
        second = await engine.send_message(chat.id, "waits")
        async with untouched(engine, chat.id):
            for large in (
                "é" * 50 + "x",
                [FilePart.from_bytes(b"x" * 80, "image/png")],
                [FilePart(media_type="image/png", url="https://a.example/" + "x" * 90)],
                [FilePart(media_type="image/png", url="https://a.example", name="x" * 90)],
                [TextPart(text="x", metadata={"note": "x" * 90})],
            ):
                for act in (
                    lambda large=large: engine.send_message(chat.id, large),
                    lambda large=large: engine.edit_message(chat.id, first.message_id, large),
                    lambda large=large: engine.edit_queued(chat.id, second.message_id, large),
                    lambda large=large: engine.ask(chat.id, large),
                ):
                    with pytest.raises(InvalidContent, match=r"at most 100 bytes \(Settings.message_limit_bytes\)"):
                        await act()
        with pytest.raises(InvalidArgument, match="system: must be 100 bytes at most; it was 101"):
            await engine.create_chat(system="x" * 101)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ScriptedModel}, "model: must be a Model or a string or a sequence or None; it was a class, not"),
        ({"model": "demo", "tools": [1]}, r"tools\[0\]: must be a Tool or a function or a ToolSource; it was 1"),
        ({"model": "demo", "settings": {}}, "settings: must be a Settings or None; it was a value of type dict"),
        ({"model": "demo", "observers": [object()]}, r"observers\[0\]: must be an Observer"),
        ({"modle": "demo"}, "modle: Engine has no such argument; did you mean 'model'"),
    ],
)
def test_invalid_engine_options_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Engine("sqlite://", **options)


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (Path("chats.db"), "store: must be a store's URL or a ChatStore; it was a path: write 'sqlite:///chats.db'; n"),
        ("sqlite://chats.db", "store: 'sqlite://chats.db' names no file; use sqlite:///chats.db, "),
        (":memory:", "store: ':memory:' is no store's URL; use sqlite:///chats.db, sqlite:////absolute/path"),
        (None, "store: must be a string or a ChatStore; it was None; use sqlite:///chats.db, "),
        ("sqlite:///\0", "store: must not hold the character NUL; nothing was written"),
    ],
)
def test_invalid_store_is_refused_with_a_valid_url(store: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)):
        Engine(store, model="demo")


@pytest.mark.parametrize("value", [1, ["x"], "\0", "\ud800"])
async def test_invalid_labels_never_reach_the_store(open_chat: OpenChat, value: Any) -> None:
    """Each of these once made a chat unreadable."""
    async with open_chat([]) as (engine, chat, _):
        async with untouched(engine, chat.id):
            for label in ("owner", "title", "system", "parent"):
                with pytest.raises(InvalidArgument, match=label):
                    await engine.create_chat(**{label: value})
            with pytest.raises(InvalidArgument, match="title"):
                await engine.rename(chat.id, value)
            with pytest.raises(InvalidArgument, match="client_id"):
                await engine.send_message(chat.id, "hi", client_id=value)
            with pytest.raises(InvalidArgument, match="client_id"):
                await engine.ask(chat.id, "hi", client_id=value)
            with pytest.raises(InvalidArgument, match="reason"):
                await engine.interrupt(chat.id, reason=value)
            with pytest.raises(InvalidArgument, match="name"):
                ClientTool(value, "A.", OBJECT)
        assert [one.id for one in (await engine.list_chats()).items] == [chat.id]
