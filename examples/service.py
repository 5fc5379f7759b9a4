"""The agents of a service: for processes that serve their chats, and for processes that run them.

`turnwise serve examples.service:agents --create` does both. `turnwise serve ... --no-worker` and `turnwise worker ...`
on the same store do one each, as often as you like.
"""

from turnwise import Agent, tool


@tool(crash="at_least_once")
async def lookup(order: str) -> dict[str, str]:
    """Look up where a parcel is.

    Args:
        order: number of the order, as printed on the invoice.
    """
    return {"order": order, "status": "in Lyon since this morning"}


agents = [Agent("support", "demo", system="You help the customers of a parcel service.", tools=[lookup])]
