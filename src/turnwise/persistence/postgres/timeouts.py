"""How long connections to PostgreSQL wait, and for what: the table in docs/postgresql.md says the same."""

from __future__ import annotations

from typing import Final

RETRY_S: Final = 10.0
"""Seconds for which a call is tried again after its connection broke, and for which opening waits for a server."""
CONNECT_S: Final = 4.0
"""Seconds that each server has to accept a connection; several servers share `RETRY_S`."""
SUSPECT_AFTER_S: Final = 5.0
"""Seconds without an answer to a statement after which a second connection shows whether the server is still there."""
AVOID_S: Final = 60.0
"""Seconds for which a server that did not answer is tried after the others."""
CHECK_EVERY_S: Final = 5.0
"""Seconds between two checks of the session that listens."""
ANSWER_S: Final = 5.0
"""Seconds in which that session has to answer a check."""
GONE_AFTER_S: Final = 11
"""Seconds after which the kernels of both sides end a connection whose packets vanish."""
LISTEN_AGAIN_S: Final = 1.0
"""The longest pause, in seconds, between two tries to listen."""
RENEW_S: Final = 3.0
"""Seconds in which a renewal of leases must be answered; then it is sent again on another connection."""
IDLE_IN_TRANSACTION_S: Final = 5.0
"""Seconds for which the server keeps the locks of a session that says nothing within a transaction."""
LOCK_S: Final = 5.0
"""Seconds for which a statement waits for a lock of another session; then it is tried again, for `RETRY_S` seconds."""
CLOSE_S: Final = 3.0
"""Seconds for which closing waits for calls under way; then their connections end."""
