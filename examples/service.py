"""A service: `turnwise serve examples.service:engine`. Another process may serve, or work on, the same file."""

from turnwise import Engine, tool


@tool(crash="at_least_once")
async def lookup(order: str) -> dict[str, str]:
    """Look up where a parcel is.

    Args:
        order: number of the order, as printed on the invoice.
    """
    return {"order": order, "status": "in Lyon since this morning"}


engine = Engine("sqlite:///chats.db", model="demo", tools=[lookup])
