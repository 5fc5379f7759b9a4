"""One chat with rows in every table and values in every column, on any store."""

from turnwise import ClientTool, CompactionPolicy, Engine, Settings, ToolResult, tool
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ASK = ClientTool("ask_user", "Asks the user.", {"type": "object"}, deadline=500)


@tool
async def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


def engine_on(store: ChatStore, *, prefix: str = "") -> Engine:
    """Return an engine on `store` with the model of the life below; every text begins with `prefix`."""
    model = ScriptedModel(
        [
            Reply(f"{prefix}first answer", usage=(90, 1)),
            Reply(f"{prefix}after the summary", usage=(10, 1)),
            Reply(f"{prefix}other answer", usage=(10, 1)),
            Reply(f"{prefix}I look", calls=[Call("look", {"at": f"{prefix}door"}, id="call-1")], usage=(10, 1)),
            Reply(f"{prefix}I ask", calls=[Call("ask_user", {"what": f"{prefix}colour"}, id="call-2")], usage=(10, 1)),
            Reply(f"{prefix}thanks", calls=[Call("ask_user", {"what": f"{prefix}size"}, id="call-3")], usage=(90, 1)),
        ],
        summary=f"{prefix}summary",
    )
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    return Engine(store, model=model, tools=[look], settings=settings)


async def live(engine: Engine, *, prefix: str = "") -> str:
    """Run a rich life that ends in `requires_action` with two queued messages; return the chat's id."""
    chat = await engine.create_chat(
        system=f"{prefix}system",
        owner="ann",
        title=f"{prefix}title",
        metadata={"kind": f"{prefix}metadata"},
        client_tools=[ASK],
    )
    first = await engine.send_message(chat.id, f"{prefix}cut away", client_id="client-1")
    await engine.wait(chat.id)
    await engine.edit_message(chat.id, first.message_id, f"{prefix}edited")
    await engine.wait(chat.id)
    await engine.ask(chat.id, f"{prefix}look and ask")
    await engine.submit_tool_results(chat.id, [ToolResult("call-2", f"{prefix}red")])
    await engine.wait(chat.id)
    await engine.send_message(chat.id, f"{prefix}waits", client_id="client-2")
    await engine.send_message(chat.id, f"{prefix}waits, too")
    return chat.id
