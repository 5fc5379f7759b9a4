"""Authentication: who sends a request, and what they may do."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, SkipValidation
from starlette.requests import Request

from turnwise.states.errors import SettingsError
from turnwise.states.values.checked import checked, configuration
from turnwise.states.values.limits import Count, at_most, not_blank
from turnwise.states.values.plain import Misfit, shown

Role = Literal["owner", "operator", "auditor"]
"""An `owner` has chats of their own; an `operator` may do everything to all; an `auditor` may read all."""

_CALENDAR_END: Final = datetime.max.replace(tzinfo=UTC).timestamp()
_NotBlank = Annotated[str, AfterValidator(not_blank)]


def _require_zone(time: datetime) -> datetime:
    if time.utcoffset() is None:
        raise Misfit(f"must be a time with its zone; it was {shown(time)}")
    return time


@configuration(kw_only=False)
class Principal:
    """The sender of a request. The audit log names it as `role:name`.

    Raises:
        SettingsError: the name is blank or too long, there is no such role, or the time has no zone.
    """

    name: Annotated[str, AfterValidator(not_blank), AfterValidator(at_most(512))]
    """Of an owner: the `owner` of their chats."""
    role: Role = "owner"
    until: Annotated[datetime, AfterValidator(_require_zone)] | None = field(default=None, compare=False)
    """When what names them expires: from then on no request is taken, and open streams end. `None` for never."""

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return f"user:{self.name}" if self.role == "owner" else f"{self.role}:{self.name}"

    @property
    def sees_all(self) -> bool:
        """Whether chats of every owner are shown."""
        return self.role != "owner"


_LOOKED_FOR: Final = "turnwise.bearer"
"""Where a request's scope says that a token was looked for."""
Authenticator = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""Returns who sends a request, or `None` if it does not know the sender. `StaticTokens` and `JWTs` are two."""


def bearer_token(request: Request) -> str | None:
    """Return the token in a request's `Authorization` header, and remember that it was looked for."""
    request.scope[_LOOKED_FOR] = True
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def is_known_by_token(request: Request) -> bool:
    """Whether a token was looked for in a request; an application may know its users by cookies alone."""
    return _LOOKED_FOR in request.scope


@checked
class StaticTokens:
    """Identifies each principal by a token that does not change.

    Only digests of the tokens are held, and all of them are compared, so that the time reveals nothing.

    Args:
        tokens: principals by token, which is one word of printable ASCII, or by its SHA-256 as `sha256:` and 64
            hexadecimal digits.
    """

    def __init__(self, tokens: Annotated[Mapping[str, Principal], SkipValidation]) -> None:
        self._principals = [(_token_digest(token), principal) for token, principal in _entries(tokens)]
        if not self._principals:
            raise SettingsError("tokens", "must name at least one token; there was none")
        if len({digest for digest, _ in self._principals}) < len(self._principals):
            raise SettingsError("tokens", "must name each token once, as itself or as its digest")

    @classmethod
    def from_file(cls, path: str | Path) -> StaticTokens:
        """Read tokens from a TOML file with a table `[[tokens]]` for each: `token` or `sha256`, `name`, and `role`.

        Raises:
            SettingsError: the file cannot be read, or an entry is wrong. The text never holds a token.
        """
        try:
            entries = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tokens")
        except (OSError, ValueError) as error:
            raise SettingsError("tokens", f"{str(path)!r} cannot be read: {type(error).__name__}") from None
        if not isinstance(entries, list):
            raise SettingsError("tokens", f"{str(path)!r} must hold tables named [[tokens]]")
        principals: dict[str, Principal] = {}
        for number, entry in enumerate(entries, 1):
            token, principal = _entry(number, entry)
            if token in principals:
                raise SettingsError("tokens", f"entry {number} has the token of an entry before it")
            principals[token] = principal
        return cls(principals)

    def __call__(self, request: Request) -> Principal | None:
        """Return the principal of the token in the request."""
        token = bearer_token(request)
        if token is None:
            return None
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        matches = [principal for own_digest, principal in self._principals if hmac.compare_digest(own_digest, digest)]
        return matches[0] if matches else None


def _entries(tokens: Mapping[str, Principal]) -> list[tuple[str, Principal]]:
    if not isinstance(tokens, Mapping):
        raise SettingsError("tokens", f"must be a mapping of principals by token; it was {shown(tokens)}")
    entries = [*tokens.items()]
    if not all(isinstance(token, str) and isinstance(principal, Principal) for token, principal in entries):
        raise SettingsError("tokens", "must hold text, and a Principal for each")  # never a token itself
    return [(str.__str__(token), principal) for token, principal in entries]


def _token_digest(token: str) -> bytes:
    if token.startswith("sha256:"):
        try:
            digest = bytes.fromhex(token.removeprefix("sha256:"))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise SettingsError("tokens", "a digest must be 'sha256:' and 64 hexadecimal digits")
        return digest
    if not token or not token.isascii() or not token.isprintable() or " " in token:  # as a header of HTTP can hold it
        raise SettingsError("tokens", "a token must be one word of printable ASCII")
    return hashlib.sha256(token.encode()).digest()


def _entry(number: int, entry: object) -> tuple[str, Principal]:
    if not isinstance(entry, dict) or not entry.keys() <= {"token", "sha256", "name", "role"}:
        raise SettingsError("tokens", f"entry {number} must hold token or sha256, name, and role, and nothing else")
    token, digest = entry.get("token"), entry.get("sha256")
    if (token is None) == (digest is None):
        raise SettingsError("tokens", f"entry {number} must hold either token or sha256")
    token_or_digest = f"sha256:{digest}" if token is None else token
    if not isinstance(token_or_digest, str):
        raise SettingsError("tokens", f"entry {number}: a token must be text")
    try:
        return token_or_digest, Principal(entry.get("name", ""), entry.get("role", "owner"))
    except SettingsError as error:
        raise SettingsError("tokens", f"entry {number}: {error.field} {error.problem}") from None


@configuration()
class JWTs:
    """Identifies principals by signed JSON Web Tokens. Tokens without an expiry are refused.

    Raises:
        SettingsError: the extra `service` is not installed, the key cannot be read, is too short, or fits not each of
            the algorithms, or something else is empty or negative.
    """

    key: Annotated[str | bytes | Mapping[str, Any], SkipValidation] = field(repr=False)
    """A secret, a public key as PEM, or a JWK or a set of them as a mapping."""
    algorithms: Sequence[str] = ("RS256",)
    """Those that are accepted, whichever algorithm a token names."""
    issuer: _NotBlank | None = None
    audience: _NotBlank | None = None
    name_claim: _NotBlank = "sub"
    role_claim: _NotBlank = "role"
    """The claim that holds the role; without it a principal is an owner."""
    leeway: Count = 30
    """Seconds by which the clocks may differ."""
    _key: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", _imported_key(self.key, self.algorithms))

    def __call__(self, request: Request) -> Principal | None:
        """Return the principal of the request's token, if it is signed, current, and meant for this service."""
        from joserfc import jwt  # noqa: PLC0415 - only for those who use it
        from joserfc.errors import JoseError  # noqa: PLC0415 - as above

        token = bearer_token(request)
        if token is None:
            return None
        wanted: dict[str, Any] = {"exp": {"essential": True}}
        if self.issuer is not None:
            wanted["iss"] = {"essential": True, "value": self.issuer}
        if self.audience is not None:
            wanted["aud"] = {"essential": True, "value": self.audience}
        try:
            claims = jwt.decode(token, self._key, algorithms=list(self.algorithms)).claims
            jwt.JWTClaimsRegistry(leeway=self.leeway, **wanted).validate(claims)
            expires = claims["exp"] + self.leeway
            until = None if expires >= _CALENDAR_END else datetime.fromtimestamp(expires, UTC)
            return Principal(claims[self.name_claim], claims.get(self.role_claim, "owner"), until)
        except (JoseError, SettingsError, ValueError, TypeError, KeyError):
            return None


def _imported_key(key: str | bytes | Mapping[str, Any], algorithms: Sequence[str]) -> Any:
    try:
        from joserfc import jws  # noqa: PLC0415 - only for those who use it
    except ImportError:
        raise SettingsError("auth", "needs the extra `service`: pip install 'turnwise[service]'") from None
    if not algorithms or not {*algorithms} <= jws.JWSRegistry.algorithms.keys() - {"none"}:
        raise SettingsError("algorithms", f"must name those that sign; it was {algorithms!r:.100}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short keys, which are refused below
            imported, keys = _read_key(key, algorithms[0])
    except Exception as error:  # noqa: BLE001 - each kind of key has errors of its own
        raise SettingsError("key", f"is none that fits {', '.join(algorithms)}: {type(error).__name__}") from None
    for algorithm in map(jws.JWSRegistry.algorithms.__getitem__, algorithms):
        fitting = [one for one in keys if _is_checked_by(one, algorithm)]
        if not fitting:
            raise SettingsError(
                "key", f"is none that fits {algorithm.name}: no token that is signed so could be checked"
            )
        least, bits = _least_bits(algorithm), min(map(_key_bits, fitting))
        if bits < least:
            raise SettingsError(
                "key", f"must have {least} bits for {algorithm.name}, or it can be guessed; it had {bits}"
            )
    return imported


def _least_bits(algorithm: Any) -> int:
    """Return the minimum key length of the algorithm, by RFC 7518. An HMAC key is as long as its digest."""
    return int(algorithm.name[2:]) if algorithm.key_type == "oct" else 2048 if algorithm.key_type == "RSA" else 0


def _key_bits(key: Any) -> int:
    if key.key_type == "oct":
        return len(key.raw_value) * 8
    return int(key.raw_value.key_size) if key.key_type == "RSA" else 0


def _read_key(key: str | bytes | Mapping[str, Any], algorithm: str) -> tuple[Any, list[Any]]:
    """Return the key or key set as joserfc takes it, and the single keys."""
    from joserfc import jwk  # noqa: PLC0415 - only for those who use it

    if isinstance(key, Mapping) and "keys" in key:
        several = jwk.KeySet.import_key_set({"keys": list(key["keys"])})
        return several, [*several.keys]
    one: Any
    if isinstance(key, Mapping):
        one = jwk.JWKRegistry.import_key(dict(key))
    else:
        data = key.encode() if isinstance(key, str) else key
        kinds: dict[str, Any] = {"RS": jwk.RSAKey, "PS": jwk.RSAKey, "ES": jwk.ECKey, "Ed": jwk.OKPKey}
        kind = kinds[algorithm[:2]] if data.lstrip().startswith(b"-----BEGIN") else jwk.OctKey
        one = kind.import_key(data)
    return one, [one]


def _is_checked_by(key: Any, algorithm: Any) -> bool:
    curve = getattr(algorithm, "curve", None)
    if key.key_type != algorithm.key_type or (curve is not None and key.curve_name != curve):
        return False
    return key.get("use") in (None, "sig") and key.get("alg") in (None, algorithm.name)
