"""A real Chromium, and the inspector's page in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from playwright.async_api import Page, async_playwright, expect

expect.set_options(timeout=30_000)
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")


@asynccontextmanager
async def inspecting(**options: Any) -> AsyncIterator[Page]:
    """Open an empty page in Chromium, and assert in the end that no script failed and nothing broke the page's policy.

    Args:
        options: of the browser's context, such as `viewport` and `color_scheme`.
    """
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, "CHROMIUM_FLAGS": ""}
        )
        try:
            page = await (await browser.new_context(**options)).new_page()
            page.set_default_timeout(20_000)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
            yield page
        finally:
            await browser.close()
    assert wrong == []
