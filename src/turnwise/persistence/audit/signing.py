"""Ed25519 keys: a private one signs where logs stand, and the public one checks that."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, cast

from pydantic import SkipValidation

from turnwise.states.errors import InvalidArgument, SettingsError
from turnwise.states.files import path_text
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE: Final = re.compile(r"[0-9a-f]{128}")
"""How a signature is spelled."""
_PUBLIC: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


@checked
class SigningKey:
    """A private Ed25519 key. It signs exported logs and `Checkpoints`, and is never printed, logged or stored.

    Args:
        pem: the key as PEM (PKCS #8), as `turnwise keygen` and `openssl genpkey -algorithm ed25519` write it.

    Raises:
        SettingsError: that is no such key, or the extra `audit` is not installed.
    """

    def __init__(self, pem: Annotated[bytes, SkipValidation]) -> None:
        self._key: Ed25519PrivateKey = _private_key(pem)
        self.key_id: str = _build_id(self._key.public_key())
        """The first 16 hex digits of the SHA-256 of the public key's 32 bytes."""

    @classmethod
    def generate(cls) -> Self:
        """Return a new key."""
        key = _library("signing_key").ed25519.Ed25519PrivateKey.generate()
        return cls(_private_pem(key))

    @classmethod
    def from_file(cls, path: Annotated[str | os.PathLike[str], SkipValidation]) -> Self:
        """Return the key that a file holds.

        Raises:
            SettingsError: the file cannot be read, or holds no such key.
        """
        return cls(_content("signing_key", path))

    @property
    def public_pem(self) -> bytes:
        """The public key as PEM: what `verify_export` and `Engine.verify` take as `public_key`."""
        formats, public = _library("signing_key").serialization, self._key.public_key()
        pem: bytes = public.public_bytes(formats.Encoding.PEM, formats.PublicFormat.SubjectPublicKeyInfo)
        return pem

    @property
    def private_pem(self) -> bytes:
        """The private key as PEM, not encrypted, to be stored as a secret."""
        return _private_pem(self._key)

    def signature_of(self, content: bytes) -> str:
        """Return the signature over `content`, in hex."""
        return self._key.sign(content).hex()

    def __repr__(self) -> str:
        return f"SigningKey(key_id={self.key_id!r})"

    def __reduce__(self) -> str:
        raise TypeError("a private key is not copied into other processes: give them its file")


class PublicKeys:
    """Public Ed25519 keys, by their ids.

    Args:
        pem: one or more keys as PEM, one after another: after a change of keys, the new one and the old ones.

    Raises:
        SettingsError: there is no such key in it, or the extra `audit` is not installed.
    """

    def __init__(self, pem: bytes) -> None:
        library = _library("public_key")
        self._keys: dict[str, Ed25519PublicKey] = {}
        for block in _PUBLIC.findall(pem):
            try:
                key = library.serialization.load_pem_public_key(block)
            except (ValueError, library.Unsupported) as error:
                raise SettingsError("public_key", "one of its keys cannot be read") from error
            if not isinstance(key, library.ed25519.Ed25519PublicKey):
                raise SettingsError("public_key", f"must be of Ed25519; it was an {type(key).__name__.strip('_')}")
            self._keys[_build_id(key)] = key
        if not self._keys:
            held = "a private key, which belongs elsewhere" if b"PRIVATE KEY" in pem else "none"
            raise SettingsError("public_key", f"must hold an Ed25519 public key as PEM; it held {held}")

    @property
    def ids(self) -> Mapping[str, object]:
        return self._keys

    def bear_out(self, content: bytes, signature: object, *, key_id: object = None) -> bool:
        """Whether the signature over `content` was made with the key of that id, or without one, with any."""
        if not isinstance(signature, str) or not SIGNATURE.fullmatch(signature):
            return False
        if key_id is None:
            return any(_verifies(key, content, signature) for key in self._keys.values())
        return isinstance(key_id, str) and key_id in self._keys and _verifies(self._keys[key_id], content, signature)


def _verifies(key: Ed25519PublicKey, content: bytes, signature: str) -> bool:
    try:
        key.verify(bytes.fromhex(signature), content)
    except _library("public_key").InvalidSignature:
        return False
    return True


def _build_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _private_key(pem: object) -> Ed25519PrivateKey:
    if not isinstance(pem, bytes):
        raise InvalidArgument("pem", f"must be bytes; it was of the type {type(pem).__name__}")  # never the key itself
    library = _library("signing_key")
    try:
        key = library.serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise SettingsError("signing_key", "is encrypted: turnwise takes one that is not, from a safe place") from error
    except (ValueError, library.Unsupported):
        held = "a public key" if b"PUBLIC KEY" in pem else "something else"
        raise SettingsError("signing_key", f"must be an Ed25519 private key as PEM (PKCS #8); it was {held}") from None
    if not isinstance(key, library.ed25519.Ed25519PrivateKey):
        raise SettingsError("signing_key", f"must be of Ed25519; it was an {type(key).__name__.strip('_')}")
    return cast("Ed25519PrivateKey", key)


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    formats = _library("signing_key").serialization
    pem: bytes = key.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption())
    return pem


def _content(argument: str, path: object) -> bytes:
    place = path_text(path)
    if place is None:
        raise SettingsError(argument, f"must be in a file, whose path is a string or a path; it was {shown(path)}")
    try:
        return Path(place).read_bytes()
    except FileNotFoundError as error:
        raise SettingsError(argument, f"there is no file {place!r}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(argument, f"its file cannot be read: {reason}") from error


class _Library:
    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - as above

        self.InvalidSignature = InvalidSignature
        self.Unsupported = UnsupportedAlgorithm
        self.serialization: Any = serialization
        self.ed25519: Any = ed25519


def _library(argument: str) -> _Library:
    try:
        return _Library()
    except ImportError as error:
        raise SettingsError(argument, "needs the extra `audit`: pip install 'turnwise[audit]'") from error
