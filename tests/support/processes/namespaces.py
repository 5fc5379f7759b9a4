"""A network of namespaces, in which a machine's packets can be dropped silently."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

_IP: Final = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin")
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or _IP is None, reason="network namespaces need root and iproute2"
)
_NAME: Final = f"turnwise{os.getpid() % 10_000}"


class Machine(NamedTuple):
    """A machine beside this one, behind a router."""

    address: str
    here: str
    """The address of this machine as seen from there."""

    def command(self, *words: str) -> list[str]:
        return [str(_IP), "netns", "exec", f"{_NAME}m", *words]

    def cut_off(self) -> None:
        for direction in ("from", "to"):
            _ip("-n", f"{_NAME}r", "rule", "add", direction, self.address, "blackhole")


@contextmanager
def machine() -> Iterator[Machine]:
    network = os.getpid() % 250
    here, router, gateway, there = (f"198.{a}.{network}.{b}" for a, b in ((18, 1), (18, 2), (19, 1), (19, 2)))
    router_name, machine_name = f"{_NAME}r", f"{_NAME}m"
    try:
        for name in (router_name, machine_name):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", _NAME, "type", "veth", "peer", "name", "up0", "netns", router_name)
        _ip("-n", router_name, "link", "add", "down0", "type", "veth", "peer", "name", "up0", "netns", machine_name)
        for where, link, address in (
            ([], _NAME, here),
            (["-n", router_name], "up0", router),
            (["-n", router_name], "down0", gateway),
            (["-n", machine_name], "up0", there),
        ):
            _ip(*where, "address", "add", f"{address}/24", "dev", link)
            _ip(*where, "link", "set", link, "up")
        _ip("netns", "exec", router_name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        _ip("-n", machine_name, "route", "add", "default", "via", gateway)
        _ip("route", "add", f"198.19.{network}.0/24", "via", router)
        yield Machine(there, here)
    finally:
        for words in (["link", "del", _NAME], ["netns", "del", router_name], ["netns", "del", machine_name]):
            _ip(*words, check=False)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run([str(_IP), *words], capture_output=True, check=check)
