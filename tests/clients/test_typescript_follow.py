"""TypeScript's `follow` and `watch`, in Node, with time stopped: pending waits never end."""

import json
import subprocess
from string import Template
from typing import Final

import pytest

from support.node import CLIENT, NODE, needs_node
from turnwise.service.problems import build_problem
from turnwise.states.errors import ChatUnreadable

pytestmark = needs_node


READING: Final = Template("""
import { follow } from "$client";
globalThis.setTimeout = (callback, ms) => { if (ms < 45000) queueMicrotask(callback); return 0; };
const answers = $answers;
const headers = { "Content-Type": "text/event-stream" };
const asked = [];
const fetch = async (url) => {
  asked.push(new URL(url).pathname);
  const { status = 200, body, type = headers["Content-Type"] } = answers[Math.min(asked.length, answers.length) - 1];
  return new Response(body, { status, headers: { "Content-Type": type } });
};
const seen = [];
try {
  for await (const event of follow("http://localhost$path", { fetch, untilRest: true })) seen.push(event.seq);
  console.log(JSON.stringify([seen, asked]));
} catch (error) {
  console.log(JSON.stringify([error.name, error.status, asked.length]));
}
""")
END: Final = ": end\n\n"
CHAT: Final = "/chats/c"
EVENTS: Final = "/chats/c/events"


def status(seq: int) -> str:
    return f'event: status\ndata: {{"kind": "status", "seq": {seq}}}\nid: {seq}\n\n'


def chat_at(seq: int, state: str, **more: object) -> dict[str, object]:
    return {"body": json.dumps({"state": state, "last_seq": seq, **more}), "type": "application/json"}


def read(*answers: dict[str, object], path: str = EVENTS) -> list[object]:
    """Return the events and requests of a reader of these answers."""
    script = READING.substitute(client=(CLIENT / "index.js").as_uri(), answers=json.dumps(answers), path=path)
    node = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=False)
    reported: list[object] = json.loads(node.stdout or json.dumps([node.stderr]))
    return reported


SILENT_END: Final[dict[str, object]] = {"body": ": turnwise\n\n"}
LAST: Final[dict[str, object]] = {"body": status(2) + END}


@pytest.mark.parametrize(
    "chat",
    [
        chat_at(1, "streaming"),
        chat_at(1, "interrupted", settled=False),
        chat_at(1, "requires_action", settled=True, awaits="subagents"),
        chat_at(1, "error", settled=True, unreadable="chats.facts is no JSON"),
        {"body": "", "status": 404, "type": "application/json"},
        {"body": "null", "type": "application/json"},
    ],
    ids=["working", "settling", "helped", "unreadable", "nowhere", "nothing"],
)
def test_cut_stream_is_read_on(chat: dict[str, object]) -> None:
    """A proxy ends a dead service's body cleanly, and a service may be replaced twice during a turn."""
    cut_off = ({"body": status(1)}, chat, SILENT_END, chat)
    assert read(*cut_off, LAST) == [[1, 2], [EVENTS, CHAT, EVENTS, CHAT, EVENTS]]


@pytest.mark.parametrize(
    "chat",
    [
        chat_at(2, "waiting", settled=True, awaits=None, unreadable=None),
        chat_at(1, "interrupted", settled=True),
        chat_at(2, "requires_action", settled=True, awaits="both"),
    ],
    ids=["waiting", "interrupted", "asked"],
)
def test_stream_without_end_mark_ends_at_rest(chat: dict[str, object]) -> None:
    """A proxy may drop comments."""
    assert read({"body": status(1) + status(2)}, chat) == [[1, 2], [EVENTS, CHAT]]


def test_custom_address_needs_the_end_mark() -> None:
    assert read({"body": status(1)}, SILENT_END, LAST, path="/stream") == [[1, 2], ["/stream"] * 3]


@pytest.mark.parametrize("reported", ["as an answer", "in the stream"])
def test_unreadable_chat_ends_the_stream(reported: str) -> None:
    """Otherwise it would reconnect for ever: no retry repairs the chat."""
    unreadable = build_problem(ChatUnreadable("chats.facts", "is no JSON", chat_id="c1"))
    answer = {"status": 500, "body": json.dumps(unreadable), "type": "application/problem+json"}
    event = {"body": f"event: problem\ndata: {json.dumps(unreadable)}\n\n"}
    assert read(answer if reported == "as an answer" else event) == ["Problem", 500, 1]


ASKING: Final = Template("""
import { follow } from "$client";
const timers = [];
globalThis.setTimeout = (callback, ms) => { if (ms < 45000 || $silent) queueMicrotask(callback); return 0; };
const leaving = new AbortController();
const tokens = $tokens;
const sent = [];
const drops = [];
const fetch = async (url, { headers }) => {
  sent.push(headers.get("Authorization"));
  return new Response(": end\\n\\n", { headers: { "Content-Type": "text/event-stream" } });
};
const onDrop = ({ message, cause }) => drops.push(message === "the network failed" ? cause.message : message);
const token = () => tokens.shift()();
if ($leaves) queueMicrotask(() => queueMicrotask(() => leaving.abort(new Error("enough"))));
try {
  const options = { token, fetch, onDrop, signal: leaving.signal, untilRest: true };
  for await (const event of follow("http://localhost/chats/c/events", options)) sent.push(event);
} catch (error) {
  sent.push(error.message);
}
console.log(JSON.stringify([sent, drops]));
""")
NEVER: Final = "() => new Promise(() => {})"
LEAVING: Final = {"silent": "false", "leaves": "true"}
SILENT: Final = {"silent": "true", "leaves": "false"}
PATIENT: Final = {"silent": "false", "leaves": "false"}


@pytest.mark.parametrize(
    ("tokens", "page", "reported"),
    [
        (NEVER, LEAVING, [["enough"], []]),
        (f"{NEVER}, () => 't2'", SILENT, [["Bearer t2"], ["nothing was heard for 45000 ms"]]),
        ("async () => { throw new Error('away'); }, async () => 't2'", PATIENT, [["Bearer t2"], ["away"]]),
    ],
    ids=["left", "silent", "failed"],
)
def test_token_function_may_fail_or_hang(tokens: str, page: dict[str, str], reported: list[object]) -> None:
    """A function that fetches a fresh token fails just when the network does."""
    script = ASKING.substitute(page, client=(CLIENT / "index.js").as_uri(), tokens=f"[{tokens}]")
    node = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=False)
    assert json.loads(node.stdout or "null") == reported, node.stderr


WAITING: Final = Template("""
import { watch } from "$client";
Math.random = () => 1;
globalThis.setTimeout = (callback, ms) => { if (ms < 45000 || ms === 60000) queueMicrotask(callback); return 0; };
const answers = $answers;
const sent = [];
const delays = [];
const fetch = async (url, { headers }) => {
  sent.push([new URL(url).search, headers.get("Last-Event-ID")]);
  const { status = 200, body, wait } = answers.shift();
  const type = { "Content-Type": "text/event-stream" };
  return new Response(body, { status, headers: { ...type, ...(wait && { "Retry-After": wait }) } });
};
const seen = [];
const parse = (text) => JSON.parse(text).chat_id;
const options = { fetch, parse, owner: "ada", onDrop: (_, delay) => delays.push(delay) };
for await (const change of watch("http://localhost/events", options)) seen.push(change);
console.log(JSON.stringify({ seen, sent, delays }));
""")


def test_watch_resumes_and_waits_three_seconds_at_most() -> None:
    """It continues after the last number, from 0 after a reset; a server may ask for a pause of up to a minute."""
    changes = "".join(f'event: chat\ndata: {{"chat_id": "c{n}"}}\nid: {n}\n\n' for n in (4, 7))
    reset = 'event: reset\ndata: {"chat_id": ""}\nid: 0\n\n'
    away: list[dict[str, object]] = [{"status": 503, "body": ""}] * 4
    asked = [{"status": 429, "body": "", "wait": wait} for wait in ("20", "3600")]
    answers = [{"body": changes}, *away, *asked, {"body": reset}, {"body": ": end\n\n"}]
    script = WAITING.substitute(client=(CLIENT / "index.js").as_uri(), answers=json.dumps(answers))
    node = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=False)
    assert node.stdout, node.stderr
    result = json.loads(node.stdout)
    assert result["seen"] == ["c4", "c7", ""]
    assert result["sent"] == [["?owner=ada", number] for number in ["0", *["7"] * 7, "0"]]
    assert result["delays"] == [1000, 2000, 3000, 3000, 3000, 20000, 60000, 1000]
