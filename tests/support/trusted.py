"""Whom the HTTP clients of the tests trust, read once: a client that is not given this reads it anew, for 20 ms."""

from __future__ import annotations

from typing import Final

import httpx

TRUSTED: Final = httpx.create_ssl_context()
