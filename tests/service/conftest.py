"""Fixtures of the service's tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.browser import Chromium
from tests.service.pages import Pages, installed

from support.served import TOKENS, Served, served
from turnwise import Engine
from turnwise.service import create_app


@pytest.fixture
async def demo() -> AsyncIterator[Served]:
    async with served(Engine("sqlite://", model="demo")) as service:
        yield service


@pytest.fixture
async def ada(demo: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with demo.client("ada") as client:
        yield client


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Engine("sqlite://", model="demo"), auth=TOKENS).openapi()


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    with Pages.running() as running:
        yield running


@pytest.fixture(scope="session")
def npm_modules() -> Path:
    return installed()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with Chromium.running() as browser:
        yield browser
