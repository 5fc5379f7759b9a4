"""Canonical JSON and the digests made of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """Return the one JSON spelling of `value`: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(value: Any) -> str:
    """Return the SHA-256, hex, of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_of_answer(output: Any, *, is_error: bool) -> str:
    """Return the digest by which a repeated tool result is recognised."""
    return digest([output, is_error])
