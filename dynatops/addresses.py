"""Addresses of processes, as people write them."""

from __future__ import annotations

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """host:port, or [ipv6]:port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no address; write host:port")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
