"""`turnwise keygen`: a pair of keys is made once."""

from __future__ import annotations

import stat

from support.terminal import Terminal
from turnwise import SigningKey


def test_keygen_writes_private_key_once(terminal: Terminal, key: SigningKey) -> None:
    private, public = terminal.folder / "audit.pem", terminal.folder / "audit.pem.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.read_bytes() == key.public_pem
    for name in ("audit.pem", "none/audit.pem", "a\0b", "/", ".", "..", "", "x" * 300, "x" * 253):
        refused = terminal.run("keygen", name)
        assert refused.code == 2, refused.out + refused.err
    assert sorted(terminal.folder.iterdir()) == [private, public], "no half of a pair is left"
    public.unlink()
    assert terminal.run("keygen", "audit.pem").code == 2
    assert SigningKey.from_file(private).key_id == key.key_id
