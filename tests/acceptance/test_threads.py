"""Engines in several threads of one process, each with an event loop of its own, from its first moment on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from turnwise import Engine

THREADS = 6
TURNS = 3


async def live(url: str, start: threading.Barrier) -> None:
    start.wait()
    async with Engine(url, model="demo") as engine:
        for _ in range(TURNS):
            chat = await engine.create_chat()
            answer = await engine.ask(chat.id, "What is 2 + 3?")
            assert answer.text
            assert answer.stop_reason == "end_turn"
            assert (await engine.explain(chat.id)).unreadable == ()
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict


def live_in_threads(folder: str) -> None:
    """Let half of the threads share a file. They switch as often as Python can, and the process ends as they end."""
    sys.setswitchinterval(1e-6)
    start, problems = threading.Barrier(THREADS), list[BaseException]()

    def run(number: int) -> None:
        try:
            asyncio.run(live(f"sqlite:///{folder}/{number * (number % 2)}.db", start))
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(len(problems))


def test_engines_live_in_several_threads_of_a_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-4000:])
    assert len([*tmp_path.glob("*.db")]) == THREADS // 2 + 1


if __name__ == "__main__":
    live_in_threads(sys.argv[1])
