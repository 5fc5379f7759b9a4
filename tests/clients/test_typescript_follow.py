"""TypeScript's `follow`, in Node, while time stands still: what has to wait never comes."""

from __future__ import annotations

import subprocess
from string import Template
from typing import Final

import pytest

from support.node import CLIENT, NODE, needs_node

pytestmark = [needs_node, pytest.mark.timeout(60)]

FOLLOWING: Final = Template("""
import { follow } from "$client";
globalThis.setTimeout = () => 0;
const leaving = new AbortController();
const leave = () => leaving.abort(new Error("enough"));
const offline = async () => { throw new TypeError("offline"); };
const options = { fetch: offline, signal: leaving.signal, onDrop: $on_drop };
const events = follow("http://localhost/chats/c/events", options);
try { await events.next(); } catch (error) { console.log(error.message); }
""")


@pytest.mark.parametrize(
    "on_drop", ["leave", "() => queueMicrotask(() => queueMicrotask(leave))"], ids=["told", "waiting"]
)
def test_whoever_leaves_before_the_next_try_is_gone_at_once(on_drop: str) -> None:
    script = FOLLOWING.substitute(client=(CLIENT / "index.js").as_uri(), on_drop=on_drop)
    node = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=False)
    assert node.stdout == "enough\n", node.stderr
