"""Handwritten logs: sequences that the table and the invariants allow pass, and every neighbouring one is refused."""

from pathlib import Path
from typing import Final

import pytest
from tests.persistence.spelled_log import refusal_of

from support.rewriting import rewrite
from turnwise import Engine

NEW: Final = "create - waiting 0 0 0 profile=\n"
SENT: Final = NEW + "send_message waiting pending 1 0 0 message=m1\n"
STARTED: Final = SENT + "claimed pending streaming 1 1 1 lease=1\n"
ANSWERED: Final = STARTED + "step_finished streaming waiting 1 1 1 message=m2 lease:dropped=1\n"
QUEUED: Final = STARTED + "send_message streaming streaming 1 1 1 enqueue=m2\n"
STOPPED: Final = STARTED + "interrupt streaming interrupted 1 1 1\n"
SETTLED: Final = STOPPED + "settled interrupted interrupted 1 1 1 lease:dropped=1\n"
REFUSED: Final = STARTED + "attempt_discarded streaming compacting 1 1 1\n"
ASKED: Final = (
    STARTED + "step_finished streaming requires_action 1 1 1 message=m2 call:planned:client=c lease:dropped=1\n"
)
DELEGATED: Final = (
    STARTED + "step_finished streaming requires_action 1 1 1 message=m2 call:planned:chat=h lease:dropped=1\n"
)
ACTING: Final = STARTED + "step_finished streaming executing_tools 1 1 1 message=m2 call:planned:at_most_once=a\n"
ACTED: Final = ACTING + "call_finished executing_tools executing_tools 1 1 1 call:succeeded=a message=m3\n"
STEERED: Final = ACTED + "send_message executing_tools executing_tools 1 1 1 enqueue:steer=m9\n"
FULL: Final = ACTED + "tools_finished executing_tools compacting 1 1 2\n"
ERASED: Final = ANSWERED + "message_erased waiting waiting 1 1 1 erase=m1 "

AGAIN: Final = STARTED + "attempt_discarded streaming streaming 1 1 1\nattempt_started streaming streaming 1 1 2\n"

SOUND: Final = {
    "a compaction names its step, not its attempt": AGAIN
    + "attempt_discarded streaming compacting 1 1 2\ncompacted compacting streaming 1 1 2 boundary:compaction=1",
    "a claim goes on with a step after many attempts": AGAIN
    + "released streaming pending 1 1 2 lease:dropped=1\nclaimed pending streaming 1 1 3 lease=2",
    "a claim waits for a retry": STARTED + "attempt_discarded streaming streaming 1 1 1\n"
    "released streaming pending 1 1 1 lease:dropped=1\nclaimed pending streaming 1 1 1 lease=2\n"
    "attempt_started streaming streaming 1 1 2",
    "a call starts with its reply": STARTED
    + "step_finished streaming executing_tools 1 1 1 message=m2 call:started:at_most_once=a\n"
    + "call_finished executing_tools executing_tools 1 1 1 call:succeeded=a message=m3",
    "a fork takes over numbers and a boundary": "create - waiting 2 3 0 profile= message=m1 boundary:clear=3",
    "a fork takes over a boundary beside zeros": "create - waiting 0 3 1 profile= boundary:compaction=3",
    "an answer": ANSWERED,
    "a second turn": ANSWERED
    + "send_message waiting pending 2 1 1 message=m3\nclaimed pending streaming 2 2 1 lease=2",
    "a queue": QUEUED + "step_finished streaming pending 2 1 1 message=m3 dequeue:taken=m2 message=m2 lease:dropped=1",
    "steering": STEERED + "tools_finished executing_tools streaming 1 2 1 dequeue:steered=m9 message=m9",
    "a claim goes on with a step": STARTED
    + "released streaming pending 1 1 1 lease:dropped=1\nclaimed pending streaming 1 1 2 lease=2",
    "a claim begins a step": STARTED
    + "released streaming pending 1 1 1 lease:dropped=1\nclaimed pending streaming 1 2 1 lease=2",
    "a settled stop": SETTLED,
    "a message to a settled chat": SETTLED + "send_message interrupted pending 2 1 1 message=m2",
    "a message to a chat that stops": STOPPED + "send_message interrupted interrupted 1 1 1 enqueue=m2",
    "a claim to settle": STARTED
    + "released streaming pending 1 1 1 lease:dropped=1\ninterrupt pending interrupted 1 1 1\n"
    + "claimed interrupted interrupted 1 1 1 lease=2\nsettled interrupted interrupted 1 1 1 lease:dropped=2",
    "an archive": SETTLED + "archived interrupted interrupted 1 1 1\nunarchived interrupted interrupted 1 1 1\n"
    "renamed interrupted interrupted 1 1 1 profile=",
    "an erasure in the archive": ANSWERED
    + "archived waiting waiting 1 1 1\nmessage_erased waiting waiting 1 1 1 erase=m1 facts= events=",
    "an erasure that writes nothing": NEW + "message_erased waiting waiting 0 0 0 facts=",
    "an erasure of labels": ANSWERED + "message_erased waiting waiting 1 1 1 profile=",
    "an erasure beside the queue": QUEUED
    + "message_erased streaming streaming 1 1 1 erase:queued=m1 dequeue:deleted=m2",
    "a compaction lets a refused step go on": REFUSED
    + "compacted compacting streaming 1 1 1 boundary:compaction=1 message=m2",
    "a compaction after the first step begins the next": FULL
    + "compacted compacting streaming 1 2 0 boundary:compaction=1 message=m4",
    "a compaction begins a step whose attempt was only taken back": AGAIN
    + "step_finished streaming executing_tools 1 1 2 message=m2 call:planned:at_most_once=a\n"
    + "call_finished executing_tools executing_tools 1 1 2 call:succeeded=a message=m3\n"
    + "tools_finished executing_tools compacting 1 1 3\n"
    + "compacted compacting streaming 1 2 0 boundary:compaction=1 message=m4",
    "a failed compaction begins a step": FULL + "compaction_failed compacting streaming 1 2 0",
    "client calls": ASKED + "submit_tool_results requires_action pending 1 1 1 call:succeeded=c message=m3",
    "a subagent's call": DELEGATED
    + "submit_tool_results requires_action pending 1 1 1 subagent=x:3 call:succeeded=h message=m3",
    "one subagent after another": DELEGATED.replace("call:planned:chat=h", "call:planned:chat=h call:planned:chat=i")
    + "submit_tool_results requires_action requires_action 1 1 1 subagent=x:3 call:succeeded=i message=m3\n"
    + "submit_tool_results requires_action pending 1 1 1 subagent=y:3 call:succeeded=h message=m4",
    "an approval beside a subagent": DELEGATED.replace(
        "call:planned:chat=h", "call:planned:client=c call:planned:chat=h"
    )
    + "submit_tool_results requires_action pending 1 1 1 call:approved:at_most_once=c\n"
    + "claimed pending executing_tools 1 1 1 lease=2",
    "calls": ACTED + "tools_finished executing_tools streaming 1 2 1",
    "a repair from anywhere to error": SENT + "repaired dreaming error 7 0 3",
    "a repair sets numbers back": STARTED + "repaired streaming error 0 0 0",
    "a repair beside a queue and a lease": QUEUED + "repaired streaming error 1 1 1",
    "a repair while it stops": STOPPED + "repaired interrupted error 1 1 1",
    "a claim hands back a started call that may run again": STARTED
    + "step_finished streaming executing_tools 1 1 1 message=m2 call:planned:at_least_once=a\n"
    + "call_started executing_tools executing_tools 1 1 1 call:started=a\n"
    + "lease_expired executing_tools pending 1 1 1 lease:dropped=1\nclaimed pending executing_tools 1 1 1 lease=2",
    "a call not started is handed back": ACTING + "released executing_tools pending 1 1 1 lease:dropped=1\n"
    "renamed pending pending 1 1 1 profile=\nclaimed pending executing_tools 1 1 1 lease=2",
    "an approval": ASKED.replace("call:planned:client=c", "call:planned:client=c~x")
    + "submit_tool_results requires_action pending 1 1 1 call:approved:at_most_once=c~x\n"
    + "claimed pending executing_tools 1 1 1 lease=2",
    "a client's call beside local ones": STARTED + "step_finished streaming executing_tools 1 1 1 message=m2 "
    "call:planned:client=c call:planned:at_most_once=a\n"
    "call_finished executing_tools executing_tools 1 1 1 call:succeeded=a message=m3\n"
    "tools_finished executing_tools requires_action 1 1 1 lease:dropped=1",
}

FORGED: Final = {
    **{
        f"a chat begins at {n}": (f"create - waiting {n} profile=", "after (0, 0, 0), but (0, 0, 0) follows")
        for n in ("-1 0 0", "0 -1 0", "0 0 -1")
    },
    "no such trigger": (NEW + "sing waiting waiting 0 0 0", "no such trigger"),
    "another source": (SENT + "renamed waiting waiting 1 0 0 profile=", "led to 'pending'"),
    "no beginning": ("send_message - pending 1 0 0 message=m1", "begins with create"),
    "no such row": (NEW + "settled waiting waiting 0 0 0", "no such row in waiting; it allows there: send_message"),
    "another target": (NEW + "renamed waiting pending 0 0 0 profile=", "table leads to: waiting"),
    "a repair to rest": (SENT + "repaired dreaming waiting 1 0 0", "leads to: error"),
    "the archive of a chat that stops": (
        STOPPED + "archived interrupted interrupted 1 1 1",
        "nothing, as the chat stands",
    ),
    "a turn while it stops": (STOPPED + "send_message interrupted pending 2 1 1 message=m2", "leads to: interrupted"),
    "a settling twice": (SETTLED + "settled interrupted interrupted 1 1 1", "nothing, as the chat stands"),
    "rest beside a queue": (
        QUEUED + "step_finished streaming waiting 1 1 1 message=m3 lease:dropped=1",
        "table leads to",
    ),
    "an edit of an empty queue": (STARTED + "edit_queued streaming streaming 1 1 1 enqueue=m2", "nothing, as the chat"),
    "a claim to settle beside a lease": (
        STOPPED + "claimed interrupted interrupted 1 1 1 lease=2",
        "nothing, as the chat",
    ),
    "a label in the archive": (
        ANSWERED + "archived waiting waiting 1 1 1\nrenamed waiting waiting 1 1 1 profile=",
        "is archived",
    ),
    "a label in the archive, beside an erasure": (
        ANSWERED + "archived waiting waiting 1 1 1\nmessage_erased waiting waiting 1 1 1 erase=m1\n"
        "renamed waiting waiting 1 1 1 profile=",
        "is archived",
    ),
    "no step begun by tools": (ACTED + "tools_finished executing_tools streaming 1 1 1", "(1, 2, 1) follows"),
    "an attempt kept beyond its step": (
        AGAIN + "step_finished streaming streaming 1 2 2 message=m2",
        "(1, 2, 0) follows",
    ),
    "a step begun by a start": (STARTED + "attempt_started streaming streaming 1 2 0", "(1, 1, 2) follows"),
    "steering left behind": (STEERED + "tools_finished executing_tools streaming 1 2 1", "'m9' waits, which steers"),
    "an attempt not counted": (STARTED + "attempt_started streaming streaming 1 1 1", "(1, 1, 2) follows"),
    "an attempt counted twice": (STARTED + "attempt_started streaming streaming 1 1 3", "(1, 1, 2) follows"),
    "an attempt that a claim does not begin": (SENT + "claimed pending streaming 1 1 0 lease=1", "(1, 1, 1) follows"),
    "a claim that waits for a retry that is over": (
        AGAIN + "released streaming pending 1 1 2 lease:dropped=1\nclaimed pending streaming 1 1 2 lease=2",
        "(1, 1, 3) follows",
    ),
    "tools that wait for a retry": (ACTED + "tools_finished executing_tools compacting 1 1 1", "(1, 1, 2) follows"),
    "a turn not begun": (ANSWERED + "send_message waiting pending 1 1 1 message=m3", "(2, 1, 1) follows"),
    "a turn not begun by the queue": (
        QUEUED + "step_finished streaming pending 1 1 1 message=m3 dequeue:taken=m2 message=m2 lease:dropped=1",
        "(2, 1, 1) follows",
    ),
    "a refused step left": (
        REFUSED + "compacted compacting streaming 1 2 0 boundary:compaction=1 message=m2",
        "(1, 1, 1) follows",
    ),
    "a step not begun by a compaction": (
        FULL + "compacted compacting streaming 1 1 1 boundary:compaction=1 message=m4",
        "(1, 2, 0) follows",
    ),
    "a failed compaction in a refused step that begins none": (
        FULL + "compaction_failed compacting streaming 1 1 1",
        "(1, 2, 0) follows",
    ),
    "a creation that cuts": ("create - waiting 0 0 0 profile= message=m1 cut=m1", "cut belongs to another trigger"),
    "a creation that starts a call": ("create - waiting 0 0 0 profile= call:started=a", "belongs to another trigger"),
    "a creation without a profile": ("create - waiting 0 0 0", "0 writes profile"),
    "a creation with two": ("create - waiting 0 0 0 profile= profile=", "2 writes profile"),
    "a boundary by a message": (
        NEW + "send_message waiting pending 1 0 0 message=m1 boundary:clear=0",
        "another trigger",
    ),
    "a profile by a message": (NEW + "send_message waiting pending 1 0 0 message=m1 profile=", "another trigger"),
    "an erasure by a message": (ANSWERED + "send_message waiting pending 2 1 1 message=m3 erase=m1", "another trigger"),
    "an erasure that says something": (ERASED + "message=m9", "message belongs to another trigger"),
    "an erasure that cuts": (ERASED + "cut=m1", "cut belongs to another trigger"),
    "work without a lease": (SENT + "claimed pending streaming 1 1 1", "no worker holds the chat"),
    "rest with a lease": (STARTED + "step_finished streaming waiting 1 1 1 message=m2", "allows no lease"),
    "a settled stop with a lease": (STOPPED + "settled interrupted interrupted 1 1 1", "allows no lease"),
    "a queue at rest": (NEW + "renamed waiting waiting 0 0 0 profile= enqueue=m9", "empty queue"),
    "no local call": (
        STARTED + "step_finished streaming executing_tools 1 1 1 message=m2 call:planned:client=c",
        "planned no local call",
    ),
    "no client call": (
        STARTED + "step_finished streaming requires_action 1 1 1 message=m2 lease:dropped=1",
        "no call of the client or of a subagent is open",
    ),
    "a client that answers for a subagent": (
        DELEGATED + "submit_tool_results requires_action pending 1 1 1 call:succeeded=h message=m3",
        "the client answers call 'h', which is for the chat",
    ),
    "a subagent that answers for the client": (
        ASKED + "submit_tool_results requires_action pending 1 1 1 subagent=x:3 call:succeeded=c message=m3",
        "a subagent answers call 'c', which is for the client",
    ),
    "a subagent that answers two calls": (
        DELEGATED.replace("call:planned:chat=h", "call:planned:chat=h call:planned:chat=i")
        + "submit_tool_results requires_action pending 1 1 1 subagent=x:3 call:succeeded=h message=m3 call:succeeded=i "
        "message=m4",
        "who answers one call",
    ),
    "a subagent that answers nothing": (
        DELEGATED + "submit_tool_results requires_action requires_action 1 1 1 subagent=x:3",
        "who answers one call",
    ),
    "a subagent that answers while a tool runs": (
        ACTING + "call_finished executing_tools executing_tools 1 1 1 subagent=x:3 call:succeeded=a message=m3",
        "who answers one call",
    ),
    "a subagent's call that is started": (
        STARTED + "step_finished streaming executing_tools 1 1 1 message=m2 call:planned:at_most_once=a "
        "call:planned:chat=h\ncall_started executing_tools executing_tools 1 1 1 call:started=h",
        "answered by the chat",
    ),
    "a subagent's call owed": (
        DELEGATED + "submit_tool_results requires_action pending 1 1 1",
        "the chat call 'h' has no result",
    ),
    "a local call owed": (ACTING + "tools_finished executing_tools streaming 1 2 1", "local call 'a' has no result"),
    "a call that is allowed and left while another is awaited": (
        DELEGATED.replace("call:planned:chat=h", "call:planned:client=c call:planned:chat=h")
        + "submit_tool_results requires_action requires_action 1 1 1 call:approved:at_most_once=c",
        "the local call 'c' has no result, but requires_action demands one",
    ),
    "a client's call owed": (
        ASKED + "submit_tool_results requires_action pending 1 1 1",
        "client call 'c' has no result",
    ),
    "a started call handed back": (
        ACTING + "call_started executing_tools executing_tools 1 1 1 call:started=a\n"
        "lease_expired executing_tools pending 1 1 1 lease:dropped=1",
        "must end `unknown`",
    ),
    "a call that started with its reply handed back": (
        ACTING.replace("planned", "started") + "lease_expired executing_tools pending 1 1 1 lease:dropped=1",
        "must end `unknown`",
    ),
    "a call that started with its reply started again": (
        ACTING.replace("planned", "started") + "call_started executing_tools executing_tools 1 1 1 call:started=a",
        "was started before",
    ),
    "a second compaction of a step": (
        REFUSED + "compacted compacting streaming 1 1 1 boundary:compaction=1 message=m2\n"
        "attempt_started streaming streaming 1 1 2\nattempt_discarded streaming compacting 1 1 2",
        "had its compaction",
    ),
    "a call owed by a chat that failed": (
        ACTING + "released executing_tools pending 1 1 1 lease:dropped=1\nfailed pending error 1 1 1",
        "local call 'a' has no result",
    ),
    "a call owed when the next turn begins": (
        ACTING + "send_message executing_tools executing_tools 1 1 1 enqueue=m9\n"
        "released executing_tools pending 1 1 1 lease:dropped=1\n"
        "claimed pending pending 2 1 1 dequeue:taken=m9 message=m9",
        "local call 'a' has no result",
    ),
    "a settled call owed": (
        ACTING + "interrupt executing_tools interrupted 1 1 1\nsettled interrupted interrupted 1 1 1 lease:dropped=1",
        "local call 'a' has no result",
    ),
}
"""Logs whose last record cannot follow, each with words of the reason."""


@pytest.mark.parametrize("name", SOUND)
def test_possible_log_passes(name: str) -> None:
    assert refusal_of(SOUND[name]) is None


@pytest.mark.parametrize("name", FORGED)
def test_impossible_record_is_refused(name: str) -> None:
    log, words = FORGED[name]
    refusal = refusal_of(log)
    assert refusal[0] == len(log.strip().splitlines())
    assert words in refusal[1]


# Who may have fired what


SENT_BY_ANN: Final = (
    "ann>create - waiting 0 0 0 profile= facts=0\nann>send_message waiting pending 1 0 0 message=m1 facts=1\n"
)
CLAIM_BY_W: Final = "worker:w>claimed pending streaming 1 1 1 lease=1~w\n"
CLAIMED_BY_W: Final = SENT_BY_ANN + CLAIM_BY_W
STARTED_BY_W: Final = SENT_BY_ANN + CLAIM_BY_W.replace("~w", "~w facts=2")
ANSWER: Final = "step_finished streaming waiting 1 1 1 message=m2 lease:dropped=1 facts=3\n"
STOPPED_BY_ANN: Final = SENT_BY_ANN + "ann>interrupt pending interrupted 1 0 0\n"

HONEST_ACTORS: Final = {
    "a worker answers": STARTED_BY_W + "worker:w>" + ANSWER,
    "whoever stops a chat that nobody holds settles it": STOPPED_BY_ANN
    + "bob>settled interrupted interrupted 1 0 0 facts=2",
    "a worker settles what it claims": STOPPED_BY_ANN
    + "worker:w>claimed interrupted interrupted 1 0 0 lease=1~w facts=2\n"
    "worker:w>settled interrupted interrupted 1 0 0 lease:dropped=1 facts=3",
    "another worker ends a lease": STARTED_BY_W
    + "worker:v>lease_expired streaming pending 1 1 1 lease:dropped=1 facts=3",
    "whoever imports a chat ends its lease": STARTED_BY_W + "ann>imported streaming streaming 1 1 1\n"
    "ann>lease_expired streaming pending 1 1 1 lease:dropped=1 facts=3",
    "a worker repairs": STARTED_BY_W + "worker:v>repaired streaming error 1 1 1 facts=3",
    "an operator repairs": STARTED_BY_W + "operator>repaired streaming error 1 1 1 facts=3",
    "turnwise makes a title": STARTED_BY_W + "system>renamed streaming streaming 1 1 1 profile= facts=3",
    "nobody is named": STARTED_BY_W.replace("worker:w>", "system>") + "system>" + ANSWER,
    "a claim that finds nothing to do": SENT_BY_ANN + "worker:w>claimed pending waiting 1 0 0 facts=2",
}
FORGED_ACTORS: Final = {
    "a client that claims": (
        3, SENT_BY_ANN + CLAIM_BY_W.replace("worker:w>", "ann>") + "ann>renamed streaming streaming 1 1 1 "
        "profile= facts=2", "it is by 'ann', but token 1 was granted to another, a worker"),
    "a claim in the name of another worker": (
        3, SENT_BY_ANN + CLAIM_BY_W.replace("worker:w", "worker:v") + "ann>renamed streaming "
        "streaming 1 1 1 profile= facts=2", "it is by 'worker:v', but token 1 was granted to another"),
    "an answer of another worker": (
        4, STARTED_BY_W + "worker:v>" + ANSWER, "it is by 'worker:v', but token 1 was granted"),
    "an answer of a client": (4, STARTED_BY_W + "ann>" + ANSWER, "it is by 'ann', but token 1 was granted to another"),
    "an answer of a client called like the worker": (4, STARTED_BY_W + "w>" + ANSWER, "it is by 'w', but token 1 was"),
    "a chat without a name for its worker": (4, STARTED_BY_W + ">" + ANSWER, "it is by '', but token 1 was granted"),
    "a client that ends a turn by a claim": (3, SENT_BY_ANN + "ann>claimed pending waiting 1 0 0 facts=2",
        "it is by 'ann', but only a worker may claim a chat"),
    "a worker that speaks for the client": (2, SENT_BY_ANN.replace("ann>send", "worker:w>send"),
        "it is by 'worker:w', but a worker fires nothing that is for the client"),
    "a worker that labels": (4, STARTED_BY_W + "worker:w>renamed streaming streaming 1 1 1 profile= facts=3",
        "a worker fires nothing that is for the administrator"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST_ACTORS)
def test_actor_of_the_right_party_passes(name: str) -> None:
    assert refusal_of(HONEST_ACTORS[name]) is None


@pytest.mark.parametrize("name", FORGED_ACTORS)
def test_actor_of_another_party_is_refused(name: str) -> None:
    version, log, words = FORGED_ACTORS[name]
    refusal = refusal_of(log)
    assert refusal[0] == version
    assert words in refusal[1]


async def test_rehashed_record_of_another_actor_is_refused(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model="demo") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        claim = next(record for record in await engine.audit(chat.id) if record.trigger == "claimed")
        rewrite(tmp_path / "chats.db", chat.id, claim.version, actor="client")
        verdict = await engine.verify(chat.id)
    assert verdict.position == claim.version
    assert "it is by 'client', but token 1 was granted to another" in str(verdict.problem)
