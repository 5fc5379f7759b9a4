"""A batch: 1,000 letters to a town are answered by four worker processes, and one of them is killed on the way.

Give it `--store postgresql://user@host/database`; the default is a SQLite file. Whatever else is killed, this process
included: started again it goes on, no letter is answered twice, and no desk acts twice. All is kept in `batch/`.
"""

import argparse
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from turnwise import Agent, Chat, Engine, Settings, ToolContext, TurnResult, Usage, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

FOLDER = Path("batch")
BOOK, KILLED = FOLDER / "handed-on.txt", FOLDER / "killed"
DESKS = ("lamp", "bin", "hydrant", "bench")
WORKERS, AT_ONCE, KILL_AT = 4, 100, 20
SPAWN = multiprocessing.get_context("spawn")


@tool(crash="at_least_once")
def hand_on(ctx: ToolContext, desk: str) -> str:
    """Hand the letter on to a desk: lamp, bin, hydrant or bench. A desk drops what has a key that it has seen."""
    time.sleep(0.05)
    with BOOK.open("a") as book:
        book.write(f"{ctx.key} {desk}\n")
    if len(BOOK.read_text().splitlines()) >= KILL_AT:
        with suppress(FileExistsError):
            KILLED.touch(exist_ok=False)  # one worker can
            os.kill(os.getpid(), signal.SIGKILL)
    return f"The desk for the {desk} has it."


def clerk(request: ModelRequest) -> Reply:
    """Answer as a model might, after a while and for a price."""
    number, _, text = request.messages[0].text.partition(": ")
    delay = 0.1 + int(number.split()[1]) % 20 / 40
    usage = Usage(input_tokens=200, output_tokens=40, cost=Decimal("0.0004"))
    for result in filter(None, (message.result for message in request.messages)):
        return Reply(f"Thank you for {number}. {result.output}", usage=usage, first_delay=delay)
    calls = [Call("hand_on", {"desk": desk}) for desk in DESKS if desk in text]
    return Reply(calls=calls, usage=usage, first_delay=delay)


def agent(model: str | None) -> Agent:
    system = "You answer letters to a town. Hand each on to a desk once, then thank for it; repeat its number."
    return Agent("clerk", model or ScriptedModel(clerk, context_limit=100_000), system=system, tools=[hand_on])


def work(options: argparse.Namespace, boss: Connection) -> None:
    """Run chats until the other end of the connection is closed: on purpose, or because its process is gone."""
    logging.getLogger("turnwise").setLevel(logging.ERROR)  # that a worker was killed is no news here
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def run() -> None:
        share = Settings(max_running=max(1, min(AT_ONCE, options.letters) // WORKERS))
        async with Engine(options.store, agents=[agent(options.model)], settings=share):
            boss.send("ready")
            await anyio.wait_readable(boss)

    anyio.run(run)


@contextmanager
def workers(options: argparse.Namespace) -> Iterator[list[SpawnProcess]]:
    """Give workers that stop with the block. A service has `turnwise worker module:agent` on each of its machines."""
    pipes = [SPAWN.Pipe() for _ in range(WORKERS)]
    started = [SPAWN.Process(target=work, args=(options, theirs)) for _, theirs in pipes]
    for process, (_, theirs) in zip(started, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        for ours, _ in pipes:
            ours.recv()
        yield started
    finally:
        for process, (ours, _) in zip(started, pipes, strict=True):
            ours.close()
            process.join()


def report(results: dict[int, TurnResult], chats: Sequence[Chat]) -> bool:
    """Write the answers down, tell what they cost, and return whether each letter has exactly one."""
    answers = ({"letter": number, "answer": results[number].text} for number in sorted(results))
    (FOLDER / "answers.jsonl").write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    begun = Counter(chat.metadata["letter"] for chat in chats)
    right = [n for n, it in results.items() if begun[n] == it.chat.turn == 1 and str(n) in re.findall(r"\d+", it.text)]
    runs = [line.split()[0] for line in BOOK.read_text().splitlines()]
    usage = sum((result.usage for result in results.values()), Usage())
    table = Table(show_header=False)
    table.add_row("letters that have one answer, their own", f"{len(right)} of {len(results)}")
    table.add_row("letters that their desks have got", f"{len(set(runs))}, {len(runs) - len(set(runs))} of them again")
    table.add_row("turns that asked again, for a killed worker", str(sum(it.usage.partial for it in results.values())))
    table.add_row("tokens in and out", f"{usage.input_tokens:,} and {usage.output_tokens:,}")
    table.add_row("dollars", f"{'at least ' if usage.cost_partial else ''}{usage.cost}")
    Console().print(table)
    return len(right) == len(results)


async def main(options: argparse.Namespace) -> bool:
    results, free = dict[int, TurnResult](), anyio.CapacityLimiter(AT_ONCE)
    with Progress() as progress, workers(options) as crew:
        bar = progress.add_task(f"{options.letters:,} letters", total=options.letters)
        async with Engine(options.store, agents=[agent(options.model)], settings=Settings(run_worker=False)) as engine:
            chats = {it.metadata["letter"]: it for it in (await engine.list_chats(owner="batch", limit=10_000)).items}

            async def answer(number: int) -> None:
                text = f"letter {number}: The {DESKS[number % len(DESKS)]} in our street is broken!"
                async with free:
                    chat = chats.get(number) or await engine.create_chat(owner="batch", metadata={"letter": number})
                    if chat.state == "error":
                        await engine.resume(chat.id)
                    results[number] = await engine.ask(chat.id, text, client_id="letter")
                progress.update(bar, completed=len(results))

            async with anyio.create_task_group() as group:
                for number in range(options.letters):
                    group.start_soon(answer, number)
            for worker in crew:
                if worker.exitcode == -signal.SIGKILL:
                    progress.console.print(f"kill -9 {worker.pid}, a worker that was handing a letter on")
            return report(results, (await engine.list_chats(owner="batch", limit=10_000)).items)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite:///batch/chats.db", help="such as postgresql://user@host/database")
    parser.add_argument("--model", help="whom to ask, such as anthropic:claude-haiku-4-5")
    parser.add_argument("--letters", type=int, default=1000)
    FOLDER.mkdir(exist_ok=True)
    BOOK.touch()
    sys.exit(not anyio.run(main, parser.parse_args()))
