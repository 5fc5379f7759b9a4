"""Tools of MCP servers: each becomes a tool like any other, run by its server.

Source: https://modelcontextprotocol.io/specification
"""

from turnwise.states.errors import SettingsError

try:
    from turnwise.engine.mcp.connection import MCPUnreachable
    from turnwise.engine.mcp.tools import MCPToolFailed, MCPTools
except ImportError as error:
    raise SettingsError("tools", "of MCP servers need the extra `mcp`: pip install 'turnwise[mcp]'") from error

__all__ = ["MCPToolFailed", "MCPTools", "MCPUnreachable"]
