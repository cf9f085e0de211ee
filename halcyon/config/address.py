"""Listen addresses: `127.0.0.1:8765`, `localhost:0`, `[::1]:80`, `0.0.0.0:8080`. Names are never resolved here."""

from __future__ import annotations

import ipaddress
import re

LISTEN_EXPECTED = 'HOST:PORT with a port from 0 to 65535, such as "127.0.0.1:8765" or "[::1]:8765"'

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[^\s:\[\]/@]{1,253})):(?P<port>[0-9]{1,5})\Z")
_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\Z")


def parse_listen(text: str) -> tuple[str, int]:
    """(host, port) of `text`; the host of an IPv6 address comes without its brackets. Port 0 takes a free one.

    Raises:
        ValueError: not an address; the message says what was expected.
    """
    if re.fullmatch(r":[0-9]{1,5}", text):
        raise ValueError(f'expected a host too: "127.0.0.1{text}" for this machine alone, "0.0.0.0{text}" for every interface')
    match = _ADDRESS.match(text)
    if match is None or int(match["port"]) > 65535 or not _is_host(match["host"], match["v6"]):
        raise ValueError(f"expected {LISTEN_EXPECTED}")
    return match["v6"] or match["host"], int(match["port"])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost is taken to be reachable from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_host(host: str | None, v6: str | None) -> bool:
    if host is not None and not re.fullmatch(r"[0-9.]+", host):
        return all(_HOST_LABEL.match(label) for label in host.split("."))
    try:
        return ipaddress.ip_address(v6 or host or "").version == (6 if v6 else 4)
    except ValueError:
        return False
