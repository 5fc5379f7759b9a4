"""A coding helper in the terminal: it reads, writes and edits files in `workshop/`, and asks before it runs anything.

Run it as it is, or have a real model do what you want: `--model anthropic:claude-sonnet-4-5 "Write a snake game"`. A
command that you allow sees all that you see; only its time and output are limited. Killed and started again it goes on.
"""

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio
from rich.console import Console

from turnwise import Agent, ChatState, Engine, Event, ToolCall, ToolContext, ToolFailed, ToolResult, delegate, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

FOLDER = Path("workshop").resolve()
SECONDS, BYTES = 10, 4_000
"""How long a command may run, and how much of its output is kept."""
PROGRAM = "def mean(numbers):\n    return sum(numbers) / len(number)\n\n\nprint(mean([2, 3, 7]))\n"
SCRIPT = [
    Reply("What is here?", calls=[Call("read", {"path": "../workshop-chats.db"})]),
    Reply("I write a first version.", calls=[Call("write", {"path": "mean.py", "text": PROGRAM})]),
    Reply("Does it work?", calls=[Call("execute", {"command": "python mean.py"})]),
    Reply("A typo.", calls=[Call("edit", {"path": "mean.py", "old": "len(number)", "new": "len(numbers)"})]),
    Reply("And now?", calls=[Call("execute", {"command": "python mean.py"})]),
    Reply("Somebody else should look at it.", calls=[Call("ask_reviewer", {"task": "Review mean.py."})]),
]
console = Console(highlight=False, markup=False)


def inside(folder: Path, name: str) -> Path:
    """Return where a file is, after every `..` and every link; outside of the folder there is nothing."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder):
        raise ToolFailed(f"{name} is outside of the folder; name a file in it.")
    return path


@tool(parallel_safe=True, crash="at_least_once")
def read(ctx: ToolContext[Path], path: str) -> str:
    """Read a file of the folder."""
    return inside(ctx.deps, path).read_text(errors="replace")


@tool(crash="at_least_once")
def write(ctx: ToolContext[Path], path: str, text: str) -> str:
    """Write a file of the folder, a new one or over what it held."""
    inside(ctx.deps, path).parent.mkdir(parents=True, exist_ok=True)
    return f"{inside(ctx.deps, path).write_text(text)} characters written"


@tool
def edit(ctx: ToolContext[Path], path: str, old: str, new: str) -> str:
    """Replace a piece of a file that occurs in it exactly once."""
    text = inside(ctx.deps, path).read_text()
    if text.count(old) != 1:
        raise ToolFailed(f"That piece occurs {text.count(old)} times in {path}; give one that occurs once.")
    inside(ctx.deps, path).write_text(text.replace(old, new))
    return "replaced"


@tool(policy="ask", timeout=2 * SECONDS)
async def execute(ctx: ToolContext[Path], command: str) -> str:
    """Run a shell command in the folder, without input; long runs and long outputs are cut off."""
    run = ["/bin/sh", "-c", f"ulimit -t {SECONDS}; {command}"]
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}  # and none of your keys
    said, end = b"", f"stopped after {SECONDS} seconds"
    process = await anyio.open_process(run, cwd=ctx.deps, env=env, stdin=DEVNULL, stderr=STDOUT, start_new_session=True)
    async with process:
        try:
            with anyio.move_on_after(SECONDS):
                with suppress(anyio.EndOfStream):
                    while process.stdout and len(said) <= BYTES:
                        said += await process.stdout.receive()
                end = f"stopped after {BYTES} bytes" if len(said) > BYTES else f"exit code {await process.wait()}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # all that it has started, too
    return f"{said[:BYTES].decode(errors='replace')}[{end}]"


def coder(request: ModelRequest) -> Reply | str:
    """Answer as a model might."""
    turn = [message for message in request.messages if message.turn == request.messages[-1].turn]
    results = [message.result for message in turn if message.result]
    if results and results[-1].name == "execute" and results[-1].is_error:
        return "Then I leave it as it is."
    return SCRIPT[len(results)] if len(results) < len(SCRIPT) else f"Done. The reviewer said: {results[-1].output}"


def reviewer(request: ModelRequest) -> Reply | str:
    text = "".join(str(message.result.output) for message in request.messages if message.result)
    return f"{len(text.splitlines())} lines, no typo." if text else Reply(calls=[Call("read", {"path": "mean.py"})])


def show(event: Event) -> None:
    """Print what is said and done, without anything that controls a terminal."""
    lines: list[str] = []
    if event.kind == "message" and event.message.role != "tool":
        lines = [*event.message.text.splitlines(), *(f"  {call.name} {call.arguments}" for call in event.message.calls)]
    elif event.kind == "tool_result":
        lines = [f"    {line}" for line in str(event.output).splitlines()]
    for line in lines:
        console.print("".join(filter(str.isprintable, line)))


def decision(call: ToolCall, *, yes: bool) -> ToolResult:
    ask = input if sys.stdin.isatty() else lambda _: "nobody is at the keyboard"
    said = "y" if yes else ask(f"    Run {call.arguments['command']!r}? [y/N] ")
    return ToolResult(call.call_id, True if said == "y" else {"approved": False, "reason": said})


async def main(options: argparse.Namespace) -> None:
    FOLDER.mkdir(exist_ok=True)
    second = Agent("reviewer", options.model or ScriptedModel(reviewer, context_limit=100_000), tools=[read])
    tools = [read, write, edit, execute, delegate(second)]
    first = Agent("coder", options.model or ScriptedModel(coder, context_limit=100_000), tools=tools)
    async with Engine("sqlite:///workshop-chats.db", agents=[first, second], deps=FOLDER) as engine:
        mine = [chat for chat in (await engine.list_chats(limit=1000)).items if chat.agent == "coder"]
        chat = mine[0] if mine else await engine.create_chat(agent="coder")
        if chat.state is ChatState.error:
            await engine.resume(chat.id)
        elif chat.state is ChatState.waiting:
            await engine.send_message(chat.id, options.task)
        while True:
            async for event in engine.events(chat.id, after=chat.last_seq, until_rest=True):
                show(event)
            chat = await engine.get_chat(chat.id)
            asked = [call for call in chat.open_calls if call.approval == "asked"]
            if not asked:
                break
            yes = options.yes or not (options.model or sys.stdin.isatty())
            await engine.acting("user").submit_tool_results(chat.id, [decision(call, yes=yes) for call in asked])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="Write a program that prints the mean of some numbers.")
    parser.add_argument("--model", help="whom to ask, such as anthropic:claude-sonnet-4-5")
    parser.add_argument("--yes", action="store_true", help="run whatever it wants to run")
    with suppress(KeyboardInterrupt):
        anyio.run(main, parser.parse_args())
