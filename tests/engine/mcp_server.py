"""A real MCP server for tests: over stdio, or over streamable HTTP if started with `http` and a port."""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("numbers", log_level="INFO" if "http" in sys.argv else "ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def add(first: int, second: int) -> str:
    """Add two whole numbers."""
    return str(first + second)


@server.tool(structured_output=False)
def environment(name: str) -> str:
    """Tell an environment variable."""
    return os.environ.get(name, "unset")


@server.tool(structured_output=False)
def folder() -> str:
    """Tell the folder in which it runs."""
    return str(Path.cwd().resolve())


@server.tool(structured_output=False)
def header(name: str, context: Context) -> str:
    """Tell a header of the request."""
    return str((context.headers or {}).get(name, "unset"))


@server.tool(structured_output=False)
async def count(context: Context) -> str:
    """Count, and say how far it came."""
    await context.report_progress(1, 2, "half way")
    return "counted"


@server.tool()
async def wait_for_ever(context: Context) -> None:
    """Say that it began, and never end."""
    await context.report_progress(0)
    await anyio.sleep_forever()


@server.tool()
def die() -> None:
    """Die at once."""
    os._exit(1)


if __name__ == "__main__":
    if "http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run()
