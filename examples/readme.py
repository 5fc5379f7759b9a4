import anyio

from turnwise import Engine, tool


@tool(parallel_safe=True)
async def read_file(path: str) -> str:
    """Read a text file of the project."""
    return await anyio.Path(path).read_text()


async def main() -> None:
    async with Engine("sqlite:///chats.db", model="demo", tools=[read_file]) as engine:
        chat = await engine.create_chat(system="You are terse.")
        for question in ("What does README.md promise?", "Thank you."):
            async for event in engine.stream(chat.id, question):
                if event.kind == "part" and event.part.type == "text":
                    print(event.part.delta, end="", flush=True)
                elif event.kind == "status":
                    print(f"\n[{event.state}]")
        print(await engine.verify(chat.id))


anyio.run(main)
