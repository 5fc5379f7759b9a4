"""Ed25519 keys: openssl and turnwise read each other's; invalid keys are refused, and no key is shown."""

import base64
import builtins
import copy
import hashlib
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.logged_life import LOG, TEXT
from turnwise import SettingsError, SigningKey, verify_export
from turnwise.persistence.audit.record import export
from turnwise.persistence.audit.signing import PublicKeys

KEY = SigningKey.generate()
OPENSSL = shutil.which("openssl") or ""
needs_openssl = pytest.mark.skipif(not OPENSSL, reason="there is no `openssl` on the PATH")


def openssl(*arguments: object, **options: Any) -> bytes:
    return subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, **options).stdout


@needs_openssl
def test_openssl_keys_sign_and_verify(tmp_path: Path) -> None:
    private = tmp_path / "key.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", private)
    public = openssl("pkey", "-in", private, "-pubout")
    key = SigningKey.from_file(private)
    assert key.public_pem == public
    log = export("chat-1", LOG, signer=key)
    assert verify_export(log, public_key=public).ok
    assert not verify_export(log, public_key=KEY.public_pem).ok


@needs_openssl
def test_openssl_verifies_our_signature(tmp_path: Path) -> None:
    public, content, signature = tmp_path / "key.pub", tmp_path / "content", tmp_path / "signature"
    public.write_bytes(KEY.public_pem)
    content.write_bytes(b"content")
    signature.write_bytes(bytes.fromhex(KEY.signature_of(b"content")))
    output = openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", content, "-sigfile", signature)
    assert b"Success" in output


def test_key_id_follows_the_documented_format() -> None:
    raw = base64.b64decode(KEY.public_pem.decode().splitlines()[1])[-32:]
    assert KEY.key_id == hashlib.sha256(raw).hexdigest()[:16]


def test_any_of_several_public_keys_verifies(tmp_path: Path) -> None:
    """After a change of keys the old one still verifies its signatures."""
    other = SigningKey.generate()
    both = other.public_pem + b"\n# a note\n" + KEY.public_pem
    assert verify_export(export("chat-1", LOG, signer=KEY), public_key=both).ok
    assert verify_export(export("chat-1", LOG, signer=other), public_key=both).ok
    assert not verify_export(export("chat-1", LOG, signer=SigningKey.generate()), public_key=both).ok


def test_public_key_requires_a_signature() -> None:
    verdict = verify_export(TEXT, public_key=KEY.public_pem)
    assert (verdict.ok, verdict.position) == (False, len(LOG) + 1)
    assert "no Ed25519 signature" in str(verdict.problem)


def test_wrong_key_kind_names_the_right_option() -> None:
    verdict = verify_export(export("chat-1", LOG, signer=KEY), key=b"secret")
    assert (verdict.ok, "check it by --public-key, public_key=" in str(verdict.problem)) == (False, True)
    verdict = verify_export(export("chat-1", LOG, key=b"secret"), public_key=KEY.public_pem)
    assert (verdict.ok, "check it by --key, key=" in str(verdict.problem)) == (False, True)


@pytest.mark.parametrize(
    "signature",
    [5, None, ["ab"], "", "ab", "zz" * 64, KEY.signature_of(b"content").upper()],
    ids=["a number", "nothing", "a list", "empty", "short", "no digits", "capitals"],
)
def test_invalid_signature_never_verifies(signature: object) -> None:
    assert not PublicKeys(KEY.public_pem).bear_out(b"content", signature)


def rsa() -> bytes:
    from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - for one case
    from cryptography.hazmat.primitives.asymmetric import rsa as keys  # noqa: PLC0415 - as above

    key = keys.generate_private_key(65537, 2048)
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return private + key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


def encrypted() -> bytes:
    from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415 - for one case

    return KEY._key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        (b"", "must be an Ed25519 private key"),
        (b"secret words", "must be an Ed25519 private key"),
        (KEY.public_pem, "it was a public key"),
        (KEY.private_pem[:80], "must be an Ed25519 private key"),
        (rsa(), "must be of Ed25519"),
        (encrypted(), "is encrypted"),
        ("text", "must be bytes"),
        (None, "must be bytes"),
    ],
    ids=["nothing", "words", "a public key", "half a key", "of RSA", "encrypted", "text", "none"],
)
def test_invalid_private_key_is_refused_and_hidden(tmp_path: Path, pem: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        SigningKey(pem)
    assert "secret words" not in str(refused.value)
    if isinstance(pem, bytes):
        (tmp_path / "key.pem").write_bytes(pem)
        with pytest.raises(SettingsError, match=words):
            SigningKey.from_file(tmp_path / "key.pem")


@pytest.mark.parametrize(
    ("pem", "words"),
    [
        (b"", "it held none"),
        (KEY.private_pem, "a private key, which belongs elsewhere"),
        (rsa(), "must be of Ed25519"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot be read"),
    ],
    ids=["nothing", "private", "RSA", "broken"],
)
def test_invalid_public_key_is_refused(pem: bytes, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        verify_export(TEXT, public_key=pem)


def test_key_is_neither_shown_nor_copied() -> None:
    for shown in (repr(KEY), str(KEY), f"{KEY}"):
        assert shown == f"SigningKey(key_id='{KEY.key_id}')"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="give them its file"):
            copied(KEY)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return known(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for use in (SigningKey.generate, lambda: SigningKey(b""), lambda: PublicKeys(b"")):
        with pytest.raises(SettingsError, match=r"turnwise\[audit\]"):
            use()
    assert verify_export(TEXT).ok
