"""The readers of L: streams of chats, held open by one process that does as little as it can with what comes.

`stream_readers.py ADDRESS STREAMS SECONDS` reads lines of an owner's token and a chat from its input, opens them all,
prints `open`, and after so many seconds JSON: how old the model's parts were when they came.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import statistics
import sys
import time
from typing import Final

import anyio

_SENT: Final = re.compile(rb"(\d+)~")
"""When the model's part was due, in ns, as the text of its delta says."""
_NUMBER: Final = re.compile(rb"\nid: (\d+)\n")
_END: Final = b"\n\n"
CALM: Final = float(os.environ.get("TURNWISE_BENCH_CALM", "2"))
"""Seconds after the last stream was opened that are not measured."""

Figures = dict[str, float]


class Reader(asyncio.Protocol):
    """One stream."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = b""
        self._numbers: list[int] = []
        self.opened = asyncio.Event()
        self.ages: list[float] = []
        """Ms from when a part was due until it was read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        transport.write(self._request)  # type: ignore[attr-defined] # of a stream it is a transport that writes

    def data_received(self, data: bytes) -> None:
        """Note how old it is."""
        now = time.monotonic_ns()
        whole, end, self._rest = (self._rest + data).rpartition(_END)
        if not end:
            return
        self._numbers += map(int, _NUMBER.findall(whole + b"\n"))
        self.ages += [(now - int(due)) / 1e6 for due in _SENT.findall(whole)]
        if self._numbers:
            self.opened.set()

    @property
    def missed(self) -> int:
        """How many events did not come, or came twice."""
        numbers = self._numbers
        return len(numbers) - len(set(numbers)) + numbers[-1] + 1 - numbers[0] - len(set(numbers))


async def read(address: str, wanted: list[tuple[str, str]], streams: int, seconds: float) -> Figures:
    """Open the streams, and return how old the parts were."""
    host, _, port = address.removeprefix("http://").partition(":")
    loop, readers = asyncio.get_running_loop(), []
    for place in range(streams):
        token, chat = wanted[place % len(wanted)]
        head = f"GET /chats/{chat}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        _, reader = await loop.create_connection(lambda head=head: Reader(head.encode()), host, int(port))  # type: ignore[misc]
        readers.append(reader)
        await reader.opened.wait()
    await asyncio.sleep(CALM)
    print("open", flush=True)
    for reader in readers:
        reader.ages.clear()
    began, used = time.perf_counter(), _cpu()
    await asyncio.sleep(seconds)
    took, used = time.perf_counter() - began, _cpu() - used
    ages = sorted(age for reader in readers for age in reader.ages)
    missed = sum(reader.missed for reader in readers)
    if missed or any(not reader.ages for reader in readers):
        raise RuntimeError(
            f"{missed} events are missing, {sum(not reader.ages for reader in readers)} streams said nothing"
        )
    hundredths = statistics.quantiles(ages, n=100, method="inclusive")
    return {
        "median_ms": hundredths[49],
        "p99_ms": hundredths[98],
        "worst_ms": ages[-1],
        "read_per_second": len(ages) / took,
        "readers_cores": used / took,
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Read as the command line says."""
    address, streams, seconds = sys.argv[1:]
    wanted = [(token, chat) for token, chat in map(str.split, sys.stdin)]
    print(json.dumps(anyio.run(read, address, wanted, int(streams), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
