"""For every k: a reader that leaves after event k and returns to any worker has the same transcript."""

from collections.abc import Callable
from contextlib import aclosing

import anyio
import pytest

from support.processes.service_process import TOKEN
from support.processes.talkative_service import ServiceProcess
from turnwise import ClientTool, Event, fold
from turnwise.client import Client, ClientSettings, ServiceUnreachable

pytestmark = pytest.mark.deep

PICK = ClientTool("pick_date", "Ask for a date.", {"type": "object"})
LEAVING = (*range(1, 60), 10_000)
"""The numbers of events after which readers leave; the last one never leaves."""
MANY = 15
"""The number of events after which a reader leaves, before the service is killed."""


class Reader:
    """Reads a running chat at one service for `leaves_after` events, or until it is cut off; then at another."""

    def __init__(self, leaves_after: int, seen_many: anyio.Event) -> None:
        self.leaves_after = leaves_after
        self.seen_many = seen_many
        self.events: list[Event] = []
        self.was_cut_off = False

    async def read(self, first: Client, second: Client, chat_id: str) -> None:
        try:
            async with aclosing(first.events(chat_id)) as events:
                async for event in events:
                    self.events.append(event)
                    if len(self.events) == self.leaves_after:
                        if self.leaves_after == MANY:
                            self.seen_many.set()
                        break
        except ServiceUnreachable:
            self.was_cut_off = True
        after = self.events[-1].seq if self.events else 0
        async with aclosing(second.events(chat_id, after=after, until_rest=True)) as events:
            self.events.extend([event async for event in events])


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_reader_resumes_after_any_event(store: str, new_store: Callable[[str, str], str]) -> None:
    url = new_store(store, "every_event")
    seen_many = anyio.Event()
    readers = [Reader(count, seen_many) for count in LEAVING]
    with ServiceProcess.running(url) as first, ServiceProcess.running(url) as second:
        once = ClientSettings(retry_timeout=0)
        async with (
            Client(second.url, token=TOKEN) as client,
            Client(first.url, token=TOKEN, settings=once) as doomed,
        ):
            chat = await client.create_chat(client_tools=[PICK])
            await client.ask(chat.id, "Hello")
            async with anyio.create_task_group() as tasks:
                for content in ("slow", "slow again", "call"):
                    await client.send_message(chat.id, content)
                for reader in readers:
                    tasks.start_soon(reader.read, doomed, client, chat.id)
                await seen_many.wait()
                await anyio.to_thread.run_sync(first.kill)
            whole = [event async for event in client.events(chat.id, follow=False)]
            later = [
                [event async for event in client.events(chat.id, after=event.seq, follow=False)] for event in whole
            ]
            messages, transcript = await client.messages(chat.id), await client.transcript(chat.id)

    assert fold(whole) == transcript
    assert transcript.messages == messages
    assert {reader.was_cut_off for reader in readers} == {True, False}, "some left, and some were cut off"
    for reader in readers:
        assert fold(reader.events) == transcript, reader.leaves_after
        assert [event.seq for event in reader.events] == [event.seq for event in whole], reader.leaves_after
    for count, rest in enumerate(later, 1):
        assert fold(rest, fold(whole[:count])) == transcript, count
