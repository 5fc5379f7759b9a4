import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.json import decode, encode
from msgspec.structs import replace

from turnwise.providers.argument_text import ARGUMENT_TEXT
from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.providers.reply_builder import ReplyBuilder, join, parts_from_shown, read_arguments
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.messages import FilePart, Part, ReasoningPart, SourcePart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import ModelError
from turnwise.states.names import CallStatus, Executor
from turnwise.states.usage import Usage
from turnwise.states.values.plain import DEEPEST

FINISH = ModelPart("finish", stop_reason="end_turn")


def text(piece: str) -> ModelPart:
    return ModelPart("text_delta", text=piece)


def thought(piece: str, signature: str | None = None) -> ModelPart:
    return ModelPart("reasoning_delta", text=piece, signature=signature)


def start(call_id: str | None, name: str = "find") -> ModelPart:
    return ModelPart("tool_call_start", id=call_id, name=name)


def fragment(call_id: str | None, piece: str) -> ModelPart:
    return ModelPart("tool_call_delta", id=call_id, arguments=piece)


def call(call_id: str | None, arguments: Any, name: str = "find", **more: Any) -> ModelPart:
    return ModelPart("tool_call", id=call_id, name=name, arguments=arguments, **more)


def result(call_id: str, output: Any, **more: Any) -> ModelPart:
    return ModelPart("provider_result", call_id=call_id, output=output, **more)


def events(shown: Sequence[tuple[int, PartDelta]]) -> list[PartEvent]:
    return [PartEvent(step=1, attempt=1, index=index, part=piece) for index, piece in shown]


@pytest.mark.parametrize("silent", [ModelPart("heartbeat"), text(""), thought(""), thought("", "")])
def test_silent_part_neither_shows_nor_splits_text(silent: ModelPart) -> None:
    builder = ReplyBuilder()
    assert not builder.add(silent)
    builder.add(text("a"))
    builder.take_shown()
    assert not builder.add(silent)
    builder.add(text("b"))
    assert builder.partial_parts() == (TextPart(text="ab"),)


def test_signature_ends_its_reasoning_part() -> None:
    reply = join([thought("a"), thought("b", "1"), thought("c"), thought("", "2")])
    assert reply.parts == (ReasoningPart(text="ab", signature="1"), ReasoningPart(text="c", signature="2"))


@pytest.mark.parametrize("arguments", ["", "  \n", None, {}])
def test_empty_arguments_are_an_empty_object(arguments: Any) -> None:
    assert join([call("a", arguments)]).calls[0].arguments == {}
    assert join([start("a"), FINISH]).calls[0].arguments == {}


@pytest.mark.parametrize("hopeless", ['{"q":', "[1]", "nonsense", "null"])
def test_invalid_json_arguments_become_text(hopeless: str) -> None:
    assert read_arguments("find", hopeless, "c1") == {ARGUMENT_TEXT: hopeless}
    assert join([call("a", hopeless)]).calls[0].arguments == {ARGUMENT_TEXT: hopeless}


def test_deep_nesting_refuses_only_the_one_call() -> None:
    """A small model in a loop writes such arguments: only that call is refused."""
    builder = ReplyBuilder(read=lambda _name, text, _call: {"length": len(text)})
    for part in (call("whole", '{"a": [[]]}'), call("endless", "[" * 200_000), FINISH):
        builder.add(part)
    assert [one.arguments for one in builder.reply().calls] == [{"length": 11}, {"length": 200_000}]
    assert builder.unfinished_calls() == {"endless"}


def test_duplicate_call_id_is_renamed() -> None:
    reply = join([call("a", {"q": 1}), call("a", {"q": 2}), start("a"), fragment("a", '{"q": 3}'), FINISH])
    assert [(one.call_id, one.arguments["q"]) for one in reply.calls] == [("a", 1), ("a-2", 2), ("a-3", 3)]


def test_missing_call_id_is_made_from_the_index() -> None:
    parts = [text("x"), start(None, "f"), fragment(None, "{}"), start("", "g"), call(None, {"n": 1}, "f")]
    reply = join([*parts, call(None, {"n": 2}, "g"), FINISH])
    expected = [("call_1", "f", {"n": 1}), ("call_2", "g", {"n": 2})]
    assert [(one.call_id, one.name, one.arguments) for one in reply.calls] == expected


def test_provider_result_follows_its_call() -> None:
    search = call("s", {"q": 1}, "web_search", executor="provider", metadata={"raw": 1})
    local = call("l", {})
    parts = [search, local, text("found"), result("s", ["hit"], metadata={"raw": 2}), FINISH]
    assert join(parts).parts == (
        ToolCallPart(
            call_id="s", name="web_search", arguments={"q": 1}, executor=Executor.provider, metadata={"raw": 1}
        ),
        ToolResultPart(
            call_id="s", name="web_search", output=["hit"], outcome=CallStatus.succeeded, metadata={"raw": 2}
        ),
        ToolCallPart(call_id="l", name="find", arguments={}),
        TextPart(text="found"),
    )


def test_one_result_answers_one_call() -> None:
    twice = [call("s", {}, executor="provider"), call("s", {}, executor="provider")]
    reply = join([*twice, result("s", 1), result("s", 2), result("s", 3), result("nobody", 4), FINISH])
    results = [(part.call_id, part.output) for part in reply.parts if isinstance(part, ToolResultPart)]
    assert results == [("s", 1), ("s-2", 2)]


def test_nesting_above_the_limit_is_a_model_error() -> None:
    deep: list[Any] = json.loads("[" * DEEPEST + "]" * DEEPEST)
    asked = ModelPart("tool_call", id="a", name="search", arguments={"at": deep[0]}, executor="provider")
    reply = join([asked, ModelPart("provider_result", call_id="a", output=deep), FINISH])
    assert reply.calls[0].arguments == {"at": deep[0]}
    for wrong, what in (
        ([ModelPart("tool_call", id="a", name="search", arguments={"at": deep})], "arguments"),
        ([asked, ModelPart("provider_result", call_id="a", output=[deep])], "a result"),
    ):
        with pytest.raises(ModelError, match=rf"it called 'search' with {what} nested deeper than 100") as failed:
            join(wrong)
        assert (failed.value.kind, failed.value.retryable) == ("server_error", False)


@pytest.mark.parametrize("unknown", ["text", "Finish", "", None, 5])
def test_unknown_part_type_is_a_model_error(unknown: Any) -> None:
    """If it were dropped, the answer of a misspelling model would be lost, and the turn would succeed."""
    with pytest.raises(ModelError, match=f"a part of type {unknown!r}; there are text_delta, .*, finish$") as failed:
        join([text("Hello"), ModelPart(unknown, text="The whole answer."), FINISH])
    assert (failed.value.kind, failed.value.retryable) == ("server_error", False)


def test_finished_call_is_shown_whole() -> None:
    builder = ReplyBuilder()
    builder.add(start("i"))
    builder.add(fragment("i", '{"q": 1}'))
    builder.add(call("i", {"q": 1}, metadata={"secret": 1}))
    known = {"type": "tool_call", "call_id": "i", "name": "find", "executor": "local"}
    expected = [{**known, "delta": '{"q": 1}'}, {**known, "complete": {**known, "arguments": {"q": 1}}}]
    assert [to_builtins(piece) for _, piece in builder.take_shown()] == expected


def test_metadata_and_signatures_are_never_shown() -> None:
    secret = {"secret": "s3"}
    builder = ReplyBuilder()
    builder.add(ModelPart("reasoning_delta", text="a", signature="s3", metadata=secret))
    builder.add(ModelPart("text_delta", text="a", metadata=secret))
    builder.add(call("i", {}, executor="provider", metadata=secret))
    builder.add(result("i", 1, metadata=secret))
    builder.add(ModelPart("source", url="u", metadata=secret))
    builder.add(ModelPart("file", media_type="m", url="u", metadata=secret))
    assert len(builder.partial_parts()) == 6
    assert "s3" not in "".join(encode(piece).decode() for _, piece in builder.take_shown())


def test_builder_adds_hidden_data_to_shown_parts() -> None:
    """A partly visible part gets no data."""
    own = {"key": "k"}
    builder = ReplyBuilder()
    builder.add(thought("", "silent"))
    builder.add(ModelPart("reasoning_delta", text="hm", signature="s", metadata=own))
    builder.add(ModelPart("text_delta", text="He", metadata=own))
    builder.add(call("a", {"q": 1}, metadata=own))
    builder.add(thought("so", None))
    shown = events(builder.take_shown())
    builder.add(thought("", "late"))
    whole = builder.partial_parts()
    builder.add(thought("never shown", None))
    assert parts_from_shown(shown, builder) == whole
    assert [part.type for part in whole] == ["reasoning", "reasoning", "text", "tool_call", "reasoning"]
    assert parts_from_shown(shown[:1], builder) == whole[:2]

    builder = ReplyBuilder()
    builder.add(ModelPart("text_delta", text="He", metadata=own))
    shown = events(builder.take_shown())
    builder.add(text("llo"))
    assert parts_from_shown(shown, builder) == (TextPart(text="He"),)
    assert parts_from_shown([], builder) == ()


def test_latest_usage_wins_and_finish_is_last() -> None:
    builder = ReplyBuilder()
    builder.add(ModelPart("usage", usage=Usage(input_tokens=7)))
    assert not builder.visible
    assert builder.reply().usage == Usage(input_tokens=7)
    builder.add(ModelPart("usage", usage=Usage(input_tokens=7, output_tokens=1)))
    assert builder.reply().usage == Usage(input_tokens=7, output_tokens=1)
    builder.add(ModelPart("finish", usage=Usage(input_tokens=7, output_tokens=2)))
    assert builder.reply().usage == Usage(input_tokens=7, output_tokens=2)


arguments = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=8), max_size=3)
words = st.text(min_size=1, max_size=20)
wholes: st.SearchStrategy[Part] = st.one_of(
    words.map(lambda word: TextPart(text=word)),
    st.builds(ReasoningPart, text=words, signature=st.none() | words),
    st.builds(ReasoningPart, text=st.just(""), signature=words),
    st.builds(ToolCallPart, call_id=st.just(""), name=words, arguments=arguments),
    st.builds(
        SourcePart,
        url=words.map("https://a.example/{}".format),
        title=st.none() | words,
        id=st.none() | words,
        source_type=st.sampled_from(["url", "document"]),
    ),
    st.builds(FilePart, media_type=words, data=st.none() | words),
)


def may_be_neighbours(left: Part, right: Part) -> bool:
    unsigned = isinstance(left, ReasoningPart) and left.signature is None
    same_signature = (
        isinstance(left, ReasoningPart) and isinstance(right, ReasoningPart) and (left.signature == right.signature)
    )
    return left.type != right.type or not (left.type == "text" or unsigned or same_signature)


@st.composite
def replies(draw: st.DrawFn) -> list[Part]:
    chosen: list[Part] = []
    for part in draw(st.lists(wholes, max_size=6)):
        if not chosen or may_be_neighbours(chosen[-1], part):
            named = isinstance(part, ToolCallPart)
            chosen.append(replace(part, call_id=f"id{len(chosen)}") if named else part)
    return chosen


@st.composite
def cut(draw: st.DrawFn, whole: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Part], list[ModelPart]]:
    """Draw a reply and a way in which a provider may stream it."""
    whole = draw(replies())
    streamed: list[ModelPart] = []
    for part in whole:
        match part:
            case TextPart():
                streamed += [text(piece) for piece in draw(cut(part.text))]
            case ReasoningPart():
                streamed += [thought(piece) for piece in draw(cut(part.text))]
                streamed += [thought("", part.signature)] if part.signature else []
            case ToolCallPart():
                in_fragments = draw(st.booleans())
                if in_fragments:
                    streamed += [start(part.call_id, part.name)]
                    streamed += [fragment(part.call_id, piece) for piece in draw(cut(json.dumps(part.arguments)))]
                if not in_fragments or draw(st.booleans()):
                    streamed += [call(part.call_id, part.arguments, part.name)]
            case SourcePart():
                streamed += [
                    ModelPart("source", url=part.url, title=part.title, id=part.id, source_type=part.source_type)
                ]
            case FilePart():
                streamed += [ModelPart("file", media_type=part.media_type, data=part.data)]
        streamed += [ModelPart("heartbeat")] if draw(st.booleans()) else []
    return whole, [*streamed, FINISH]


@given(streams())
def test_chunking_does_not_change_the_reply(stream: tuple[list[Part], list[ModelPart]]) -> None:
    whole, streamed = stream
    assert join(streamed) == ModelReply(tuple(whole), FINISH)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", " java\nscript:alert(1)", "file:///etc/passwd", "data:text/html"]
)
def test_address_that_no_page_may_link_is_a_title(url: str) -> None:
    """A page links sources and files of a reply: what a search has found may be a script."""
    unsafe = [ModelPart("source", url=url), ModelPart("file", url=url, media_type="a/b", name="n")]
    source, file = join([*unsafe, FINISH]).parts
    assert source == SourcePart(title=url, source_type="document")
    assert file == SourcePart(title="n", source_type="document")


def test_data_url_of_a_reply_is_its_content() -> None:
    (file,) = join([ModelPart("file", url="data:a/b;base64,aGk=", media_type="a/b"), FINISH]).parts
    assert file == FilePart(media_type="a/b", data="aGk=")


@given(streams(), st.data())
def test_shown_deltas_fold_to_the_reply_without_signatures(
    stream: tuple[list[Part], list[ModelPart]], data: st.DataObject
) -> None:
    whole, streamed = stream
    builder = ReplyBuilder()
    shown: list[tuple[int, PartDelta]] = []
    for part in streamed:
        builder.add(part)
        if data.draw(st.booleans()):
            shown += builder.take_shown()
    shown += builder.take_shown()
    visible = [
        replace(part, signature=None) if isinstance(part, ReasoningPart) else part
        for part in whole
        if not isinstance(part, ReasoningPart) or part.text
    ]
    assert parts_from_shown(events(shown)) == tuple(visible)
    last = max((index for index, _ in shown), default=-1)
    assert parts_from_shown(events(shown), builder) == tuple(whole[: last + 1])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((start("c", ""), call("c", {"q": 1}, "look")), ToolCallPart(call_id="c", name="look", arguments={"q": 1})),
        ((ModelPart("tool_call_start", id="c"), FINISH), ToolCallPart(call_id="c", name="", arguments={})),
        (
            (fragment(None, '{"q":'), fragment(None, "1}"), FINISH),
            ToolCallPart(call_id="call_0", name="", arguments={"q": 1}),
        ),
        (
            (
                ModelPart("tool_call_start", id="c", name="look", metadata={"a": 1, "b": 1}),
                call("c", "", "look", executor="client", metadata={"b": 2}),
            ),
            ToolCallPart(call_id="c", name="look", arguments={}, executor=Executor.client, metadata={"a": 1, "b": 2}),
        ),
        (
            (start("c", "look"), ModelPart("tool_call_delta", id="c", arguments={"q": 0}), fragment("c", "{}"), FINISH),
            ToolCallPart(call_id="c", name="look", arguments={}),
        ),
    ],
)
def test_call_merges_all_of_its_pieces(parts: Sequence[ModelPart], expected: ToolCallPart) -> None:
    assert join(parts).parts == (expected,)


HALF = "a\ud800b"


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (call("c", {}, HALF), ToolCallPart(call_id="c", name="a\ufffdb", arguments={})),
        (call("c", '{"q": "a\\ud800b"}'), ToolCallPart(call_id="c", name="find", arguments={"q": "a\ufffdb"})),
        (start("c", HALF), ToolCallPart(call_id="c", name="a\ufffdb", arguments={})),
        (thought("hm", HALF), ReasoningPart(text="hm", signature="a\ufffdb")),
        (ModelPart("source", url=HALF, title=HALF), SourcePart(url="a\ufffdb", title="a\ufffdb")),
        (
            ModelPart("file", media_type=HALF, data=HALF, url=HALF, name=HALF),
            FilePart(media_type="a\ufffdb", data="a\ufffdb", url="a\ufffdb", name="a\ufffdb"),
        ),
    ],
    ids=["a call", "the JSON of arguments", "the start of a call", "a signature", "a source", "a file"],
)
def test_lone_surrogates_are_replaced(part: ModelPart, stored: Part) -> None:
    builder = ReplyBuilder()
    assert builder.add(part)
    assert builder.take_shown()
    builder.add(FINISH)
    assert builder.partial_parts() == (stored,)


@pytest.mark.parametrize("delta", [text, thought], ids=["text", "reasoning"])
def test_surrogate_pair_split_across_deltas_is_joined(delta: Callable[[str], ModelPart]) -> None:
    """Servers that count UTF-16, as those in JavaScript do, cut a reply in the middle of one."""
    builder, shown = ReplyBuilder(), ""
    for piece in ("\ud83d", "\ude00b\ud83d", "\ud83d", "\ude00c", "\ude00", "d\ud83d"):
        builder.add(delta(piece))
        shown += "".join(one.delta or "" for _, one in builder.take_shown())
    assert shown == "\U0001f600b\ufffd\U0001f600c\ufffdd"
    assert _words_in(builder) == shown, "a reply that was cut off keeps what was shown"
    builder.add(FINISH)
    shown += "".join(one.delta or "" for _, one in builder.take_shown())
    assert shown.endswith("d\ufffd")
    assert _words_in(builder) == shown


def _words_in(builder: ReplyBuilder) -> str:
    (part,) = builder.partial_parts()
    return part.text


@pytest.mark.parametrize("odd", [5, {"a": 1}, object()], ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("text_delta", "text"),
        ("reasoning_delta", "signature"),
        ("tool_call_start", "name"),
        ("tool_call", "executor"),
        ("source", "url"),
        ("file", "media_type"),
    ],
)
def test_wrong_type_in_a_part_is_a_retryable_model_error(kind: Any, field: str, odd: Any) -> None:
    builder = ReplyBuilder()
    with pytest.raises(ModelError, match=f"something in a {kind!r} part is not what it must be") as failed:
        builder.add(ModelPart(kind, **{field: odd}))
    assert (failed.value.kind, failed.value.retryable) == ("server_error", True)
    assert builder.take_shown() == []


@dataclasses.dataclass
class Place:
    at: tuple[int, ...] = (1, 2)


ODD = {
    "days": ("mon", "tue"),
    "on": datetime(2026, 1, 1, tzinfo=UTC),
    "price": Decimal("1.10"),
    "raw": b"ab",
    "id": UUID(int=5),
    "where": Place(),
    "half \ud800": "\ud800",
    1: float("inf"),
}
"""Values that a Python adapter makes, and no store returns."""
AS_READ = {
    "days": ["mon", "tue"],
    "on": "2026-01-01T00:00:00Z",
    "price": "1.10",
    "raw": "ab",
    "id": "00000000-0000-0000-0000-000000000005",
    "where": {"at": [1, 2]},
    "half \ufffd": "\ufffd",
    "1": None,
}


def test_python_values_become_stored_json() -> None:
    parts = [
        call("w", ODD, executor="provider", metadata=ODD),
        result("w", ODD, metadata=ODD),
        ModelPart("text_delta", text="so", metadata=ODD),
    ]
    stored = join([*parts, FINISH]).parts
    assert stored == (
        ToolCallPart(call_id="w", name="find", arguments=AS_READ, executor=Executor.provider, metadata=AS_READ),
        ToolResultPart(call_id="w", name="find", output=AS_READ, metadata=AS_READ),
        TextPart(text="so", metadata=AS_READ),
    )
    assert [decode(encode(part), type=Part) for part in stored] == [*stored]


@pytest.mark.parametrize("part", [call("c", {"a": object()}), result("w", {"a": object()})], ids=["call", "result"])
def test_value_without_json_is_a_retryable_model_error(part: ModelPart) -> None:
    builder = ReplyBuilder()
    builder.add(start("w"))
    with pytest.raises(ModelError, match="is not what it must be") as failed:
        builder.add(part)
    assert failed.value.retryable
