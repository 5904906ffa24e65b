"""Addresses that are free, for those who must know them before anyone listens there."""

from __future__ import annotations

import contextlib
import socket


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Of this machine; nobody else is given them at the same time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind((host, 0))
        return [f"{host}:{taken.getsockname()[1]}" for taken in sockets]
