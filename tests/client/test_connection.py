"""What goes over the wire for a request, which requests are sent again, and what is made of an answer."""

from __future__ import annotations

import dataclasses

# How long a client waits before it tries again


async def waited(patience: Patience, clock: ClientClock) -> list[float]:
    """Return how long it is waited before each try, until there is none."""
    clock.slept.clear()
    while len(clock.slept) < 100 and await patience.wait():
        pass
    return clock.slept.copy()


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(ClientSettings)])
def test_infinite_time_is_refused(name: str) -> None:
    for odd in (-1, math.inf, math.nan):
        with pytest.raises(InvalidArgument, match=f"^{name}: must be"):
            ClientSettings(**{name: odd})


async def test_waits_double_up_to_the_longest(clock: ClientClock) -> None:
    assert await waited(Patience(ClientSettings()), clock) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5] * 10]
    assert clock.now == pytest.approx(1056.3), "after the next wait a minute would be over"


@pytest.mark.parametrize(("patience", "tries"), [(0, 0), (3, 2), (3.5, 3), (4, 3)])
async def test_no_try_after_patience_ends(clock: ClientClock, patience: float, tries: int) -> None:
    settings = ClientSettings(first_delay=1, max_delay=1, patience=patience)
    assert await waited(Patience(settings), clock) == [1] * tries


@pytest.mark.parametrize(("spread", "first"), [(0, 0.5), (0.5, 0.75), (1, 1)])
async def test_waits_have_jitter(clock: ClientClock, spread: float, first: float) -> None:
    clock.spread = spread
    patience = Patience(ClientSettings(first_delay=1, max_delay=2))
    for _ in range(3):
        assert await patience.wait()
    assert clock.slept == [first, 2 * first, 2 * first], "the longest wait is spread as well"


async def test_retry_after_is_the_least_wait(clock: ClientClock) -> None:
    patience = Patience(ClientSettings(first_delay=1, patience=20))
    assert await patience.wait(9)
    assert await patience.wait(0.5)
    assert not await patience.wait(9)
    assert clock.slept == [9, 2]


# Lines


async def each(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"one\ntw", b"", b"o\n\nfo", b"ur\n"], ["one\n", "two\n", "\n", "four\n"]),
        ([b"one\ntwo"], ["one\n", "two"]),
        ([b"\xe2\x82", b"\xac\xe2\x80\xa8\r\n\xc3", b"\xa4"], ["\u20ac\u2028\r\n", "\u00e4"]),
    ],
)
async def test_lines_are_read_from_any_chunking(pieces: list[bytes], lines: list[str]) -> None:
    assert [line async for line in lines_out(each(*pieces))] == lines


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["one\n", "two", ""], [b"one\n", b"two\n", b"\n"]),
        (("\u00e4\n\n",), [b"\xc3\xa4\n\n"]),
        ("one\ntwo", [b"one\n", b"two\n"]),
        (each("one", "two\n"), [b"one\n", b"two\n"]),
        ([], []),
    ],
)
async def test_lines_are_sent_with_one_line_feed(lines: Any, body: list[bytes]) -> None:
    assert [line async for line in lines_in(lines)] == body


# Which error is made of an answer


WHERE = "http://a/chats"
PROBLEM = "application/problem+json"


def told_of(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"urn:turnwise:problem:{name}", "title": "T", "status": 418, "detail": "as it was said", **fields}


@pytest.mark.parametrize(
    ("told", "kind", "facts"),
    [
        (told_of("not-authenticated"), NotAuthenticated, {}),
        (told_of("not-allowed", role="a", needed="b"), NotAllowed, {"role": "a", "needed": "b"}),
        (told_of("rate-limited", limit="3", retry_after=2), RateLimited, {"limit": "3", "retry_after": 2}),
        (told_of("body-too-large", limit=1000), BodyTooLarge, {"limit": 1000}),
        (told_of("invalid-request", problems=[{"field": "a"}]), InvalidRequest, {"problems": ({"field": "a"},)}),
        (told_of("of-the-future", limit=1), ServiceFailed, {"status": 418, "detail": "as it was said"}),
        (told_of("of-the-future", status="?"), ServiceFailed, {"status": 500, "detail": "as it was said"}),
    ],
)
def test_service_error_is_the_clients_own(
    told: dict[str, Any], kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = error_in(WHERE, told)
    assert (type(error), vars(error)) == (kind, facts)
    assert str(error) != "as it was said"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({}, "a problem 'None' without a detail"),
        (told_of("queue-full", detail=7), "a problem 'queue-full' without a detail"),
        (told_of("queue-full"), "a problem 'queue-full' without the fields of one"),
        (told_of("file-not-found", digest=7, chat_id=1), "a problem 'file-not-found' without the fields of one"),
        (told_of("rate-limited", limit=1, retry_after="x"), "a problem 'rate-limited' without the fields of one"),
        (told_of("chat-deleted", chat_id="c1", deleted_at="x"), "a problem 'chat-deleted' without the fields of one"),
        (told_of("tool-failed"), "a problem 'tool-failed' without the fields of one"),
    ],
)
def test_malformed_problem_is_a_bad_answer(told: dict[str, Any], wrong: str) -> None:
    error = error_in(WHERE, told)
    assert (type(error), vars(error)) == (BadAnswer, {"url": WHERE, "problem": wrong})


@pytest.mark.parametrize(
    ("status", "media_type", "body", "kind", "facts"),
    [
        (404, "text/plain", b"not here", BadAnswer, {"url": WHERE, "problem": "status 404, 'not here'"}),
        (500, "text/plain", b"x" * 101, ServiceFailed, {"status": 500, "detail": repr("x" * 100)}),
        (502, "text/html", b"\xff", ServiceFailed, {"status": 502, "detail": "'\ufffd'"}),
        (500, PROBLEM, b'{"detail": "see"}', ServiceFailed, {"status": 500, "detail": "see"}),
        (404, PROBLEM, b'{"detail": "see"}', BadAnswer, {"url": WHERE, "problem": "status 404, see"}),
        (404, PROBLEM, b'{"\xff": 1}', BadAnswer, {"url": WHERE, "problem": "status 404, '{\"\ufffd\": 1}'"}),
    ],
)
def test_foreign_answer_is_quoted(
    status: int, media_type: str, body: bytes, kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = error_of(WHERE, status, media_type, body)
    assert (type(error), vars(error)) == (kind, facts)


# A body that is broken off


BROKEN = "0123abcd"
REASON = b'{"type":"x"}'


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[first : first + size] for first in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 39])
@pytest.mark.parametrize("content", [b"", b"so much", b"0123abc", b"0123abc0123abc", b"0" * 20])
def test_content_and_problem_are_separated(content: bytes, size: int) -> None:
    body = BrokenOff(BROKEN)
    came = b"".join(map(body.content, cut(content + BROKEN.encode() + REASON, size)))
    assert came == content
    assert body.problem == {"type": "x"}


@pytest.mark.parametrize("size", [1, 7, 19])
@pytest.mark.parametrize("mark", [BROKEN, ""])
def test_body_without_problem_is_all_content(mark: str, size: int) -> None:
    content = b"so much, and 0123abc"
    body = BrokenOff(mark)
    assert b"".join(map(body.content, cut(content, size))) + body.rest == content
    assert body.problem is None
