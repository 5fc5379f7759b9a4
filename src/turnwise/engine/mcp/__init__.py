"""Tools of MCP servers: each becomes a tool like any other, run by its server.

Source: https://modelcontextprotocol.io/specification
"""

from turnwise.extras import needing

with needing("mcp", __name__):
    from turnwise.engine.mcp.connection import MCPAnswerLost, MCPUnreachable
    from turnwise.engine.mcp.offered import MCPToolFailed
    from turnwise.engine.mcp.tools import MCPTools

__all__ = ["MCPAnswerLost", "MCPToolFailed", "MCPTools", "MCPUnreachable"]
