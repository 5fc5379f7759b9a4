"""A real Chromium, shared by all tests of a process, and its pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page, async_playwright, expect

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
OPTIONS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--mute-audio", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE: Final = 300.0
_ADDRESS: Final = re.compile(r"DevTools listening on (ws://\S+)")

expect.set_options(timeout=PATIENCE * 1000)


@dataclass(frozen=True, slots=True)
class Chromium:
    """A running browser."""

    address: str

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Chromium]:
        program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
        if program is None:
            pytest.skip("Chromium is not installed: apt-get install chromium")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            log = Path(folder) / "said"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [program, *OPTIONS, f"--user-data-dir={folder}/profile"],
                    env={**os.environ, "CHROMIUM_FLAGS": ""}, stdout=file, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                yield cls(_address(process, log))
            finally:
                process.terminate()
                process.wait()

    @asynccontextmanager
    async def page(self, **options: Any) -> AsyncIterator[Page]:
        """Open an empty page, and assert in the end that no script failed and nothing broke the page's policy.

        Args:
            options: of its context, such as `viewport` and `color_scheme`.
        """
        wrong: list[str] = []
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(self.address)
            context = await browser.new_context(**options)
            page = await context.new_page()
            try:
                page.set_default_timeout(PATIENCE * 1000)
                page.on("pageerror", lambda error: wrong.append(str(error)))
                page.on(
                    "console", lambda message: wrong.append(message.text) if "Security Policy" in message.text else None
                )
                yield page
            except BaseException as error:
                error.add_note(
                    f"the page is at {page.url}, and says {await page.get_by_role('alert').all_inner_texts()}"
                )
                raise
            finally:
                await context.close()
        assert wrong == [], wrong


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends and process.poll() is None:
        found = _ADDRESS.search(log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"Chromium does not start: {log.read_text(errors='replace')}")
