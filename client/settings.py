"""The constants of the client."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.states.checked import checked
from turnwise.states.limits import Seconds


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How long the client waits, and how it comes back to a service that does not answer.

    Raises:
        InvalidArgument: a value is no number of seconds.
    """

    timeout: Seconds = 60
    """Seconds within which a request has to be answered."""
    silence: Seconds = 45
    """Seconds of silence after which a stream is taken for dead; a service says something every 15."""
    first_delay: Seconds = 0.1
    """Seconds before the second try. Each further one waits twice as long."""
    max_delay: Seconds = 5
    """The longest time between two tries, in seconds."""
    patience: Seconds = 60
    """Seconds without any answer after which the client gives up; 0 tries once."""
