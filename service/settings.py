"""The constants of the service."""

from __future__ import annotations

from dataclasses import dataclass, fields

from turnwise.states.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What clients of the service may do. Limits are those of one process.

    Raises:
        SettingsError: a value is out of its range.
    """

    body_limit_bytes: int = 4_194_304
    """The longest body of a request; front ends, files and imported chats have limits of their own."""
    history_limit_bytes: int = 16_777_216
    """The longest body of a front end's request: most send all that was said, with its pictures, in each."""
    upload_limit_bytes: int = 1_073_741_824
    """The longest body of a file or an imported chat."""
    requests_per_second: float = 50
    """Requests that each principal may send, on average."""
    burst: int = 200
    """Requests that each principal may send at once."""
    streams_per_owner: int = 100
    """Event streams that each principal may have open."""
    reader_patience: float = 30
    """Seconds in which a reader has to take what it is sent; a slower one is cut off, and may come back."""
    upload_patience: float = 30
    """Seconds within which the next piece of a body has to come; a body that trickles may waste as many in all."""
    shutdown_seconds: float = 10
    """Seconds from the signal to stop until connections are closed and running jobs are released."""
    not_found_seconds: float = 0.02
    """How long a 404 takes, or a multiple of it, so that its time does not tell another owner's chat from none."""
    allow_origins: tuple[str, ...] = ()
    """Origins whose pages may call the service; `*` for all."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "allow_origins":
                if isinstance(value, str) or not all(isinstance(origin, str) for origin in value):
                    raise SettingsError(field.name, f"must be a sequence of origins; it was {value!r:.100}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise SettingsError(field.name, f"must be a number of at least 0; it was {value!r:.100}")
