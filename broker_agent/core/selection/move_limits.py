"""How many users move, and how soon again: a bucket of moves, and a memory of who moved when."""

from __future__ import annotations

from collections import OrderedDict


class MoveBucket:
    """So many moves a second, and a burst after quiet times."""

    def __init__(self, moves_per_s: float, burst: int) -> None:
        self._rate = moves_per_s
        self._burst = float(burst)
        self._moves = self._burst
        self._at_s: float | None = None

    def may_move(self, now_s: float) -> bool:
        if self._at_s is not None:
            gained = max(0.0, now_s - self._at_s) * self._rate
            self._moves = min(self._burst, self._moves + gained)
        self._at_s = now_s
        if self._moves < 1.0:
            return False
        self._moves -= 1.0
        return True


class MovedLately:
    """Who was moved less than `stay_s` ago.

    Past the bound the one longest ago is forgotten, and from then on whoever is not remembered
    counts as moved when that one was: too many may stay, never too few.
    """

    def __init__(self, stay_s: float, remembered_max: int) -> None:
        self._stay_s = stay_s
        self._remembered_max = remembered_max
        self._at_s: OrderedDict[str, float] = OrderedDict()
        self._floor_s = float("-inf")

    def __len__(self) -> int:
        return len(self._at_s)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._at_s

    def note_moved(self, client_id: str, now_s: float) -> None:
        self._at_s.pop(client_id, None)
        self._at_s[client_id] = now_s
        while self._at_s:
            oldest, moved_s = next(iter(self._at_s.items()))
            if len(self._at_s) <= self._remembered_max and moved_s + self._stay_s > now_s:
                break
            del self._at_s[oldest]
            self._floor_s = max(self._floor_s, moved_s)

    def must_stay(self, client_id: str, now_s: float) -> bool:
        return now_s < self._at_s.get(client_id, self._floor_s) + self._stay_s
