"""The inspector's page, opened with a user's token."""

from playwright.async_api import Page, expect

from support.served import Served
from turnwise import tool


@tool(policy="ask", approver="owner")
async def pay(cents: int, to: str) -> str:
    """Pay money."""
    return f"paid {cents} to {to}"


async def look(page: Page, service: Served, where: str = "/", who: str = "ada") -> None:
    """Open the page with a user's token in its address, and then the given view."""
    await page.goto(f"{service.url}/inspector#token={who}-token")
    await expect(page.get_by_role("button", name="Leave")).to_be_visible()
    await go(page, where)


async def go(page: Page, where: str) -> None:
    """Navigate to a view of the page, as a link would."""
    await page.evaluate("where => { location.hash = where }", where)
