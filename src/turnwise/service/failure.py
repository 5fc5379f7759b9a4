"""Ends the process when its engine fails, so that a supervisor restarts it."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Final

from turnwise.engine.engine import Engine
from turnwise.logger import logger
from turnwise.service.settings import ServiceSettings
from turnwise.service.shutdown import running_server

EXIT_CODE: Final = 1
_CLOSE_TIMEOUT_S: Final = 5.0
"""The application has this time to close after the server has waited for open requests."""

_failed: Final = threading.Event()


def end_process_with(engine: Engine, settings: ServiceSettings) -> None:
    """End the process with `EXIT_CODE` if the engine ends by an error."""
    engine.add_failure_callback(partial(_end_process, settings.shutdown_seconds + _CLOSE_TIMEOUT_S))


def _end_process(timeout_s: float) -> None:
    """Stop the server gracefully; exit after `timeout_s` in any case."""
    if _failed.is_set():
        return
    _failed.set()
    logger.error("process_ends", problem="its engine ended by an error", code=EXIT_CODE)
    threading.Thread(target=_exit_after, args=(timeout_s,), name="turnwise exit", daemon=True).start()
    if (server := running_server()) is not None:
        server.should_exit = True  # after a signal uvicorn would end with that signal's exit code
    else:
        signal.raise_signal(signal.SIGTERM)


def _exit_after(seconds: float) -> None:
    time.sleep(seconds)
    _exit()


@atexit.register
def _exit() -> None:
    """Exit with `EXIT_CODE`, which a server would not use. It is registered early and so runs late."""
    if _failed.is_set():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(EXIT_CODE)
