"""Ends the process of an application whose engine has failed, so that its supervisor starts it anew."""

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
_LEFT_TO_CLOSE_S: Final = 5.0
"""What the application gets to end in, once the server has waited for open requests."""

_failed: Final = threading.Event()


def end_process_with(engine: Engine, settings: ServiceSettings) -> None:
    """Have the process end with `EXIT_CODE` if the engine ends by an error."""
    engine.add_failure_callback(partial(_end_process, settings.shutdown_seconds + _LEFT_TO_CLOSE_S))


def _end_process(patience: float) -> None:
    """Ask the server to stop, as a supervisor does; if it has not ended in time, end the process."""
    if _failed.is_set():
        return
    _failed.set()
    logger.error("process_ends", problem="its engine ended by an error", code=EXIT_CODE)
    threading.Thread(target=_exit_after, args=(patience,), name="turnwise exit", daemon=True).start()
    if (server := running_server()) is not None:
        server.should_exit = True  # after a signal it would end as if nothing were wrong
    else:
        signal.raise_signal(signal.SIGTERM)


def _exit_after(patience: float) -> None:
    time.sleep(patience)
    _exit()


@atexit.register
def _exit() -> None:
    """End the process with the code that a server would not give it. Registered early, this runs late."""
    if _failed.is_set():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(EXIT_CODE)
