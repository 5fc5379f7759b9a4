"""Checks after a torture: every chat, the outside world, and the logs of the processes."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from acceptance.worker_process import Place
from turnwise.engine.subagents.verification import verify_family
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.states.names import CallStatus
from turnwise.testing.simulation.checks import problems_of

_NEVER_SAID = ("database is locked", "job_failed", "never awaited", "Task exception")


async def problems_of_all(place: Place, accepted: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every broken promise about chats whose `accepted` messages are known."""
    store = store_from_url(place.url, durability="full", now=None)
    await store.open()
    try:
        pruned = place.keep_parts is not None
        found = [
            problem
            for chat_id in accepted
            for problem in await _of_a_chat(store, chat_id, accepted[chat_id], pruned=pruned)
        ]
        everyone = [chat_id for _, chat_id in await store.chat_ids(after=0, limit=1_000_000)]
        for chat_id in everyone:
            found += await _of_a_member(store, chat_id, is_known=chat_id in accepted, pruned=pruned)
        acts = [line.split() for line in place.world.read_text().splitlines()] if place.world.exists() else []
        found += [problem async for problem in _of_the_world(store, everyone, acts)]
    finally:
        await store.close()
    return [*found, *_of_the_words(place)]


async def _of_a_chat(store: ChatStore, chat_id: str, accepted: Sequence[str], *, pruned: bool) -> list[str]:
    found = await problems_of(store, chat_id, pruned=pruned)
    history = await store.history(chat_id)
    stored = Counter(message.id for message in history if message.role == "user")
    stored.update(queued.id for queued in (await store.facts(chat_id)).queue)
    found += [
        f"{chat_id}: message {each} was accepted and is kept {stored[each]} times"
        for each in accepted
        if stored[each] != 1
    ]
    if history and history[-1].role == "user":
        found.append(f"{chat_id}: its last message has no answer")
    return found


async def _of_a_member(store: ChatStore, chat_id: str, *, is_known: bool, pruned: bool) -> list[str]:
    """Return the problems of a subagent, or of a parent's whole family."""
    if not is_known:
        return await problems_of(store, chat_id, pruned=pruned)
    verdict = await verify_family(store, chat_id)
    return [] if verdict.ok else [f"{chat_id}: its family does not verify: {verdict.problem}"]


async def _of_the_world(store: ChatStore, chats: Sequence[str], acts: Sequence[Sequence[str]]) -> AsyncIterator[str]:
    """Yield acts without a record, acts done twice, acts with two keys, and results without an act."""
    done = Counter((act[1], act[2], act[0]) for act in acts if act[0] != "fault")
    for fault in (act for act in acts if act[0] == "fault"):
        yield f"the model was asked what a strict provider refuses: {' '.join(fault[1:])}"
    keys = {(act[1], act[2], act[3]) for act in acts if act[0] != "fault"}
    for (chat_id, call_id), count in Counter((chat_id, call_id) for chat_id, call_id, _ in keys).items():
        if count > 1:
            yield f"{chat_id}: call {call_id} acted under {count} keys"
    for chat_id in chats:
        started = _starts(await store.audit(chat_id))
        calls = await store.calls(chat_id, [*started, *(call for chat, call, _ in done if chat == chat_id)])
        for call_id, call in calls.items():
            acted = done.pop((chat_id, call_id, call.name), 0)
            reported = f"{chat_id}: {call.name} {call_id}, which {call.status},"
            if acted > started[call_id]:
                yield f"{reported} was started {started[call_id]} times, and acted {acted} times"
            if call.crash == "at_most_once" and started[call_id] > 1:
                yield f"{reported} may run once, and was started {started[call_id]} times"
            if call.status is CallStatus.succeeded and acted == 0:
                yield f"{reported} has not acted"
    for (chat_id, call_id, name), count in done.items():
        yield f"{chat_id}: {name} acted {count} times for {call_id}, which is no call of it"


def _starts(records: Sequence[AuditRecord]) -> Counter[str]:
    return Counter(write.id for record in records for write in record.writes if write.kind.startswith("call:started"))


def _of_the_words(place: Place) -> Iterator[str]:
    words = place.words.read_text(errors="replace") if place.words.exists() else ""
    for never in _NEVER_SAID:
        if never in words:
            at = words.index(never)
            yield f"a process said: {words[max(0, at - 500) : at + 1500]}"
