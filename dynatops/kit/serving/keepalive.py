"""How a connection notices that nobody is at its other end any more: gRPC's options for it.

A host that vanished acknowledges nothing; a process that hangs has a kernel that goes on
acknowledging, and only pings find out. gRPC has two clocks for those: how long a ping that keeps
the connection alive waits for any sign of life, and how long a ping waits for its answer, 60 s
unless said otherwise. The longer one rules, so both are set.
"""

from __future__ import annotations


def keepalive_options(period_s: float) -> list[tuple[str, int]]:
    """Of a quiet connection: asked after this, and given up after as much again."""
    period_ms = round(period_s * 1000)
    return [
        ("grpc.keepalive_time_ms", period_ms),
        ("grpc.keepalive_timeout_ms", period_ms),
        ("grpc.http2.ping_timeout_ms", period_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]
