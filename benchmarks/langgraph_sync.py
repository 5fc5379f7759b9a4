"""LangGraph: a graph of model and tools with the SQLite checkpointer, `durability="sync"`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from workload import CALLS, DELTA, DELTAS, TOOL_ARGUMENTS, TOOL_NAME, USER, Contestant, run_tool


class FakeModel(BaseChatModel):
    """Asks for the tool, then answers."""

    deltas: int = DELTAS

    @property
    def _llm_type(self) -> str:
        return "fake"

    def _generate(self, *_args: Any, **_options: Any) -> ChatResult:
        return ChatResult(generations=[])

    async def _astream(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> AsyncIterator[Any]:
        CALLS["model"] += 1
        if isinstance(messages[-1], HumanMessage):
            call = {"name": TOOL_NAME, "args": TOOL_ARGUMENTS, "id": f"call-{len(messages)}", "index": 0}
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
            return
        for _ in range(self.deltas):
            yield ChatGenerationChunk(message=AIMessageChunk(content=DELTA))


@tool
async def lookup(query: str, limit: int, lang: str) -> str:  # noqa: ARG001 - as the model sees it
    """Look something up."""
    return await run_tool()


class LangGraph(Contestant):
    """A thread per chat."""

    title = "LangGraph (sync)"
    keeps = "finished steps"
    distributions = ("langgraph", "langgraph-checkpoint-sqlite", "langchain-core")
    imports = (
        "from langgraph.graph import StateGraph; from langgraph.prebuilt import ToolNode;"
        " from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver"
    )

    async def open(self) -> None:
        """Compile the graph."""
        self._model = model = FakeModel()

        async def call_model(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", call_model)
        graph.add_node("tools", ToolNode([lookup]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        graph.add_edge("tools", "model")
        self._saver = AsyncSqliteSaver.from_conn_string(str(self.directory / "checkpoints.db"))
        self._graph = graph.compile(checkpointer=await self._saver.__aenter__())

    async def close(self) -> None:
        """Close the database."""
        await self._saver.__aexit__(None, None, None)

    async def turn(self, chat: str) -> int:
        """Stream the messages of a run."""
        self._model.deltas = self.deltas
        stream = self._graph.astream(
            {"messages": [HumanMessage(USER)]},
            {"configurable": {"thread_id": chat}},
            stream_mode="messages",
            durability="sync",
        )
        return sum([len(chunk.content) async for chunk, _ in stream if chunk.type == "AIMessageChunk"])

    async def model_alone(self) -> None:
        """Iterate the answer."""
        self._model.deltas = self.deltas
        async for _ in self._model._astream([ToolMessage("", tool_call_id="")]):  # noqa: SLF001 - the fake's own
            pass
