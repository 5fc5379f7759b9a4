"""Handwritten writes: each kind passes where it can follow the earlier ones, and is refused elsewhere."""

from typing import Final

import pytest
from tests.persistence.spelled_log import log_of

from turnwise.persistence.audit.check_writes import Violation, WriteChecker

PASS: Final = {
    "messages": "message=m1 message=m2",
    "the queue's head enters": "enqueue=m1 enqueue=m2 / dequeue:taken=m1 message=m1 / dequeue:taken=m2 message=m2",
    "a queued message is changed": "enqueue=m1 / enqueue=m1",
    "a new order": "enqueue=m1 / enqueue=m2 / move=m2:m1 / dequeue:taken=m2 message=m2",
    "a new order with a new message": "enqueue=m1 / enqueue=m2 move=m2:m1 / dequeue:taken=m2 message=m2",
    "steering past the queue": "enqueue=m1 / enqueue:steer=m2 move=m2:m1 / dequeue:steered=m2 message=m2",
    "steering that begins a turn": "enqueue:steer=m1 / enqueue:steer=m1 / dequeue:taken=m1 message=m1",
    "a deletion": "enqueue=m1 / enqueue=m2 / dequeue:deleted=m1 / dequeue:taken=m2 message=m2",
    "a cut": "message=m1 message=m2 / cut=m2 / cut=m1",
    "an erasure of what was cut": "message=m1 / cut=m1 / erase=m1",
    "an erasure of an edit": "message=m1 / erase:edits=m1",
    "an erasure of what waited": "enqueue=m1 / dequeue:deleted=m1 / erase:queued=m1",
    "an erasure of what a repair inserted": "repaired! / erase=m77",
    "receipts": "receipt=c1 receipt=c2",
    "a call": "call:planned:at_most_once=a~x / call:started=a~x / call:succeeded=a message=m1",
    "a call without a start": "call:planned:at_most_once=a~x / call:failed=a message=m1",
    "a subagent's call that a stop closes": "call:planned:chat=a / call:cancelled=a message=m1",
    "two results": "call:planned:client=a call:planned:client=b / call:succeeded=a message=m1 call:failed=b message=m2",
    "a call again": "call:planned:at_least_once=a~x / call:started=a~x / call:started=a~x",
    "a call that is erased": "call:planned:at_least_once=a~x message=m1 / erase=m1 / call:started=a~y",
    "a call whose arguments are erased": "call:planned:at_least_once=a~x / erase:call=a~y / call:started=a~y",
    "another call's arguments": "call:planned:at_least_once=a~x / erase:call=z~y / call:started=a~x",
    "a client's call is asked": "call:planned:client=a~x / requires_action! call:planned:client=a~x deadline=a",
    "a client's call is asked after an erasure": "call:planned:client=a~x message=m1 / erase=m1 / "
    "requires_action! call:planned:client=a~y",
    "an approval": "call:planned:client=a~x / call:approved:at_most_once=a~x / call:started=a~x",
    "a start again of what was asked first": (
        "lease=1 / call:planned:asked_first=a / call:started=a / lease:dropped=1 / lease=2 / call:started=a"
    ),
    "leases": "lease=1 / lease:dropped=1 / lease=2 / lease:dropped=2 / lease=9",
    "a lease in one record": "lease=1 lease:dropped=1 lease=2",
    "a boundary": "boundary:clear=5",
    "schedules": "schedule=s / schedule=s / schedule:fired=s / schedule:fired=s schedule:dropped=s / schedule=s",
    "schedules end with the chat": "schedule=s / archived! schedule:dropped=s",
    "notes": "usage=1 profile= reason= facts=1 events=1-2 erase:errors= erase:reasons= erase:quarantine=",
    "a note of a receipt": "receipt=c / erase:receipt=c",
    "a repair ends everything": "lease=1 call:planned:client=a / repaired! / lease=2",
    "a repair closes what was never planned": "repaired! call:unknown=a message=m1",
    "a repair drops a lease of another number": "lease=1 / repaired! lease:dropped=77",
    "an edit closes a call without a message": "call:planned:client=a / edit_message! call:cancelled=a",
    "the last token that a column holds": "lease=9223372036854775807",
}

REFUSE: Final = {
    "a schedule fires that is not there": ("schedule=s / schedule:dropped=s / schedule:fired=s", "is not there"),
    "a schedule is dropped twice": ("schedule=s / schedule:dropped=s / schedule:dropped=s", "is not there"),
    "an archived schedule": ("schedule=s / archived!", "an archived chat has none"),
    "a message twice": ("message=m1 / message=m1", "given once"),
    "a message that waited and was deleted": ("enqueue=m1 / dequeue:deleted=m1 / message=m1", "given once"),
    "a taken message that does not enter": ("enqueue=m1 / dequeue:taken=m1", "did not enter the history"),
    "another one enters": ("enqueue=m1 / dequeue:taken=m1 message=m2", "did not enter the history"),
    "past the head": ("enqueue=m1 / enqueue=m2 / dequeue:taken=m2 message=m2", "not the head"),
    "past the new head": ("enqueue=m1 / enqueue=m2 / move=m2:m1 / dequeue:taken=m1 message=m1", "not the head"),
    "steering out of order": ("enqueue:steer=m1 / enqueue:steer=m2 / dequeue:steered=m2 message=m2", "not the next"),
    "steering by another": ("enqueue=m1 / dequeue:steered=m1 message=m1", "not the next"),
    "steering twice": (
        "enqueue:steer=m1 / dequeue:steered=m1 message=m1 / dequeue:steered=m1 message=m1",
        "not the next",
    ),
    "steering that does not enter": ("enqueue:steer=m1 / dequeue:steered=m1", "did not enter the history"),
    "a change to steering": ("enqueue=m1 / enqueue:steer=m1", "does not let it steer or not"),
    "steering before a result": (
        "enqueue:steer=m1 call:planned:client=c~x / dequeue:steered=m1 message=m1",
        "between call 'c' and its result",
    ),
    "from an empty queue": ("dequeue:taken=m1 message=m1", "not the head"),
    "taken twice": ("enqueue=m1 / dequeue:taken=m1 message=m1 / dequeue:taken=m1 message=m1", "not the head"),
    "a queued message that was said": ("message=m1 / enqueue=m1", "cannot be queued"),
    "a queued message that was deleted": ("enqueue=m1 / dequeue:deleted=m1 / enqueue=m1", "cannot be queued"),
    "a deletion of nothing": ("message=m1 / dequeue:deleted=m1", "does not wait"),
    "a deletion twice": ("enqueue=m1 / dequeue:deleted=m1 / dequeue:deleted=m1", "does not wait"),
    "a move of what does not wait": ("enqueue=m1 / move=m2:m1", "not both wait"),
    "a move before what was taken": (
        "enqueue=m1 / enqueue=m2 / dequeue:taken=m1 message=m1 / move=m2:m1",
        "not both wait",
    ),
    "a move before itself": ("enqueue=m1 / move=m1:m1", "not both wait"),
    "a move to nowhere": ("enqueue=m1 / move=m1", "not both wait"),
    "a cut of nothing": ("cut=m1", "not in it"),
    "a cut of what was cut": ("message=m1 message=m2 / cut=m1 / cut=m2", "not in it"),
    "a cut of what waits": ("enqueue=m1 / cut=m1", "not in it"),
    "an erasure of nothing": ("erase=m1", "never in the history"),
    "an erasure of an edit of nothing": ("erase:edits=m1", "never in the history"),
    "an erasure of what waits": ("enqueue=m1 / erase=m1", "never in the history"),
    "an erasure of what waits after a repair": ("enqueue=m1 / repaired! / erase=m1", "never in the history"),
    "an erasure of what waits still": ("enqueue=m1 / erase:queued=m1", "waits still"),
    "an erasure of what never waited": ("erase:queued=m1", "waits still"),
    "a receipt twice": ("receipt=c1 / receipt=c1", "accepted once"),
    "a call planned twice": ("call:planned:client=a~x / call:planned:client=a~x", "planned once"),
    "a local call asked": ("call:planned:at_most_once=a~x / requires_action! call:planned:client=a~x", "planned once"),
    "a client's call asked otherwise": (
        "call:planned:client=a~x / requires_action! call:planned:client=a~y",
        "planned once",
    ),
    "a call planned after its result": (
        "call:planned:client=a / call:succeeded=a message=m1 / call:planned:client=a",
        "nothing comes after",
    ),
    "a start of nothing": ("call:started=a", "never planned"),
    "a start of a client's call": ("call:planned:client=a / call:started=a", "only local calls"),
    "a start of a subagent's call": ("call:planned:chat=a / call:started=a", "only local calls"),
    "a start after the result": (
        "call:planned:at_most_once=a / call:succeeded=a message=m1 / call:started=a",
        "exactly one",
    ),
    "a second start": ("call:planned:at_most_once=a / call:started=a / call:started=a", "at most once"),
    "a second start of what was asked first": (
        "call:planned:asked_first=a / call:started=a / call:started=a",
        "at most once",
    ),
    "a second start of what was asked first under one lease": (
        "lease=1 / call:planned:asked_first=a / call:started=a / call:started=a",
        "at most once",
    ),
    "a start with other arguments": ("call:planned:at_most_once=a~x / call:started=a~y", "other arguments"),
    "a start with erased arguments": (
        "call:planned:at_most_once=a~x / erase:call=a~y / call:started=a~x",
        "other arguments",
    ),
    "an approval of nothing": ("call:approved:at_most_once=a", "never planned"),
    "an approval of a local call": ("call:planned:at_most_once=a / call:approved:at_most_once=a", "did not wait"),
    "an approval twice": (
        "call:planned:client=a / call:approved:at_most_once=a / call:approved:at_most_once=a",
        "did not wait",
    ),
    "a start with arguments that were not approved": (
        "call:planned:client=a~x / call:approved:at_most_once=a~y / call:started=a~x",
        "other arguments",
    ),
    "a deadline of a local call": ("call:planned:at_most_once=a / deadline=a", "not the client's"),
    "a deadline of nothing": ("deadline=a", "never planned"),
    "a result of nothing": ("call:succeeded=a message=m1", "never planned"),
    "a second result": (
        "call:planned:client=a / call:succeeded=a message=m1 / call:succeeded=a message=m2",
        "exactly one",
    ),
    "a result without a message": ("call:planned:client=a / call:succeeded=a", "without the message"),
    "a result whose message another takes": (
        "call:planned:client=a call:planned:client=b / call:succeeded=a call:succeeded=b message=m1",
        "without the message",
    ),
    "a result of a call that a repair closed": (
        "call:planned:client=a / repaired! / call:succeeded=a message=m1",
        "exactly one",
    ),
    "a second lease": ("lease=1 / lease=2", "at most one live lease"),
    "a token again": ("lease=1 / lease:dropped=1 / lease=1", "tokens only rise"),
    "a lower token": ("lease=5 / lease:dropped=5 / lease=4", "tokens only rise"),
    "a token after a repair": ("lease=5 / repaired! / lease=5", "tokens only rise"),
    "a token of 0": ("lease=0", "tokens only rise"),
    **{
        f"the token {word}": (f"lease={word}", "tokens only rise")
        for word in ("x", "", "-1", "1.5", "\u0663", "9" * 20)
    },
    "a drop of another token": ("lease=1 / lease:dropped=2", "the live one is 1"),
    "a drop of nothing": ("lease:dropped=1", "the live one is None"),
    "a drop twice": ("lease=1 / lease:dropped=1 / lease:dropped=1", "the live one is None"),
    "a boundary of another step": ("boundary:clear=6", "stands at step 5"),
    "a boundary of the record's step": ("boundary:compaction=7", "stands at step 5"),
    "a boundary of a fork": ("create! boundary:clear=5", "stands at step 7"),
    "another kind": ("sing=1", "no write of kind 'sing'"),
}
"""The last of the records is refused, with these words."""

BEFORE: Final = 5
"""The chat's step before."""
NOW: Final = 7
"""The step that each record names."""


def _checked(text: str) -> tuple[WriteChecker, str | None]:
    """Replay records between slashes; `word!` names a trigger, or a target."""
    checker, records = WriteChecker(), text.split(" / ")
    for place, words in enumerate(records, start=1):
        named = [word.rstrip("!") for word in words.split() if word.endswith("!")]
        trigger = next((word for word in named if word != "requires_action"), "renamed")
        target = "requires_action" if "requires_action" in named else "streaming"
        writes = " ".join(word for word in words.split() if not word.endswith("!"))
        (record,) = log_of(f"{trigger} streaming {target} 0 {NOW} 0 {writes}")
        try:
            checker.follow(record, step=BEFORE)
        except Violation as error:
            return checker, f"record {place} of {len(records)}: {error}"
    return checker, None


@pytest.mark.parametrize("name", PASS)
def test_possible_write_passes(name: str) -> None:
    assert _checked(PASS[name])[1] is None


@pytest.mark.parametrize("name", REFUSE)
def test_impossible_write_is_refused(name: str) -> None:
    text, words = REFUSE[name]
    refusal = _checked(text)[1]
    last = len(text.split(" / "))
    assert refusal.startswith(f"record {last} of {last}: Version 1, '")
    assert words in refusal


def test_checker_state_after_writes() -> None:
    checker, _ = _checked("lease=4 enqueue=m1 / enqueue=m2 / dequeue:deleted=m1 / call:planned:client=c~x")
    assert (checker.token, checker.queue, checker.acting_step, checker.compacted) == (4, ["m2"], 0, set())
    assert (checker.open_calls["c"].runner, checker.open_calls["c"].started) == ("client", False)
    checker, _ = _checked("call:planned:chat=h~x")
    assert (checker.open_calls["h"].runner, checker.acting_step) == ("chat", 0)
    checker, _ = _checked("call:planned:at_most_once=a~x / call:started=a~x")
    assert (checker.open_calls["a"].started, checker.acting_step) == (True, NOW)
    checker, _ = _checked("call:planned:client=a~x / call:approved:at_least_once=a~x")
    assert (checker.open_calls["a"].runner, checker.acting_step) == ("at_least_once", NOW)
    for trigger in ("compacted", "compaction_failed"):
        assert _checked(f"{trigger}!")[0].compacted == {BEFORE}
    checker, _ = _checked("lease=4 call:planned:client=c~x / repaired!")
    assert (checker.token, checker.open_calls) == (None, {})
    checker, _ = _checked("call:planned:client=c~x / repaired! call:unknown=c message=m1")
    assert checker.open_calls == {}
