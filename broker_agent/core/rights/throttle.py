"""Token buckets: how long to wait so that a rate is kept on average; what may be used at once."""

from __future__ import annotations


class Bucket:
    """Holds what a rate yields in one second, is full at first, and may be overdrawn.

    It is one number: the time at which everything taken out will have flowed in again. Without a
    rate it is never empty.
    """

    __slots__ = ("_full_again_s", "_per_s")

    BURST_S = 1.0

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._full_again_s = float("-inf")

    def spend(self, amount: float, now_s: float) -> None:
        if self._per_s is not None:
            self._full_again_s = max(self._full_again_s, now_s) + amount / self._per_s

    def wait_s(self, now_s: float) -> float:
        """How long until it is no longer overdrawn."""
        return max(0.0, self._full_again_s - self.BURST_S - now_s)


class Allowance:
    """An amount that may be used at once, and flows in again within a time. It may be overdrawn."""

    __slots__ = ("_amount", "_full_again_s", "_refill_s")

    def __init__(self, amount: float, refill_s: float) -> None:
        self._amount = amount
        self._refill_s = refill_s
        self._full_again_s = float("-inf")

    def use(self, amount: float, now_s: float) -> None:
        took_s = amount / self._amount * self._refill_s
        self._full_again_s = max(self._full_again_s, now_s) + took_s

    def is_used_up(self, now_s: float) -> bool:
        return self._full_again_s - now_s >= self._refill_s
