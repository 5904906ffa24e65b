"""Addresses of processes, as people write them."""

from __future__ import annotations

import ipaddress

_NETWORK_BITS = 64


def split_address(address: str) -> tuple[str, int]:
    """host:port, or [ipv6]:port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no address; write host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """What `split_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def counted_as(host: str) -> str:
    """The host of an address, where each may have so much: one with IPv6 has a whole network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
