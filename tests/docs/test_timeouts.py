"""The table of timeouts equals the code's. Other tests cover the effects."""

import inspect
import re
from pathlib import Path
from typing import Final

from turnwise import Settings
from turnwise.engine.worker.leases import AGAIN_S
from turnwise.engine.worker.worker import LET_GO_S
from turnwise.persistence.postgres import timeouts
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.store import PostgresStore

PAGE: Final = (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text(encoding="utf-8")
OPTIONS: Final = {name: option.default for name, option in inspect.signature(PostgresStore).parameters.items()}
STATEMENT: Final = OPTIONS["statement_timeout"]
SESSION: Final = Pool("postgresql:///", size=1, schema="s", statement_timeout=STATEMENT)._settings
IDLE: Final = int(SESSION["idle_in_transaction_session_timeout"]) / 1000

WAITS: Final = {
    "a server to accept a connection": (timeouts.CONNECT_S, timeouts.RETRY_S, timeouts.AVOID_S),
    "the answer to a statement": (timeouts.SUSPECT_AFTER_S, timeouts.CONNECT_S),
    "a connection, after one has broken": (timeouts.RETRY_S,),
    "a statement": (STATEMENT,),
    "a transaction whose client says nothing": (IDLE,),
    "a lock of another session": (timeouts.LOCK_S, timeouts.RETRY_S),
    "a renewal of leases": (timeouts.RENEW_S, AGAIN_S),
    "a lease that a worker cannot renew": (Settings().lease + Settings().poll_interval,),
    "packets of a connection that vanish": (timeouts.GONE_AFTER_S,),
    "the chats of a worker that stops": (Settings().shutdown_grace, LET_GO_S),
    "a lease": (Settings().lease,),
}


def test_table_says_how_long_the_code_waits() -> None:
    table = PAGE.partition("## How long it waits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:]
    reported = {what: tuple(map(float, re.findall(r"([\d.]+) s\b", rest))) for what, rest in rows if what.strip("-")}
    assert reported == WAITS
