"""Users who change what they follow, as data: who gives up and takes up which topics, and when.

Interests are multimodal (DYNATOPS IV-A): topics lie in modes of ten, a user has one mode and
follows some topics of it. Beyond the paper, some topics are strays from anywhere. Changes are a
Poisson process of each user: most replace one topic or a few, some replace the mode and with it
everything ("the user moved"). The same arguments make the same workload.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from experiments.workloads.modes import MODE_TOPICS, modes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSpec:
    users: int = 400
    topics: int = 300
    topics_per_user: int = 5
    seconds: float = 60.0
    # Users come within so long, evenly.
    arrival_s: float = 5.0
    # Mean time between two changes of one user.
    change_every_s: float = 10.0
    # Topics replaced in a change that stays within the mode.
    replaced: int = 1
    # Of all changes, those that replace the mode.
    mode_changes: float = 0.05
    # Of all topics taken up, those from anywhere.
    strays: float = 0.02
    # Modes are drawn with probability in proportion to 1 / rank ** skew.
    skew: float = 0.0

    def __post_init__(self) -> None:
        for name in ("users", "topics", "seconds", "change_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 1 <= self.topics_per_user <= min(MODE_TOPICS, self.topics):
            raise ValueError(f"topics_per_user must be from 1 to {MODE_TOPICS}, and to topics")
        if not 1 <= self.replaced <= self.topics_per_user:
            raise ValueError("replaced must be between 1 and topics_per_user")


@dataclass(frozen=True, slots=True)
class Due:
    """An event to be published."""

    at_s: float
    topic: int


@dataclass(frozen=True, slots=True)
class Change:
    """A user gives up and takes up topics; the first of each user is its arrival."""

    at_s: float
    user: int
    dropped: tuple[int, ...]
    added: tuple[int, ...]
    arrives: bool = False


def publications(spec: ChurnSpec, publisher: int, per_s: float, seed: int) -> Iterator[Due]:
    """What one publisher publishes, whatever the machine can keep up with: a Poisson process over
    all topics alike."""
    rng = Random(f"publisher {seed} {publisher}")
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < spec.seconds:
        yield Due(at_s, rng.randrange(spec.topics))


def changes(spec: ChurnSpec, seed: int) -> Iterator[Change]:
    """All changes in order of time."""
    rng = Random(f"churn {seed}")
    users = _Users(spec, rng)
    due = [(rng.uniform(0.0, spec.arrival_s), user) for user in range(spec.users)]
    heapq.heapify(due)
    while due:
        at_s, user = heapq.heappop(due)
        if at_s > spec.seconds:
            return
        yield users.change(user, at_s)
        heapq.heappush(due, (at_s + rng.expovariate(1.0 / spec.change_every_s), user))


class _Users:
    def __init__(self, spec: ChurnSpec, rng: Random) -> None:
        self._spec = spec
        self._rng = rng
        self._modes = modes_of(spec.topics)
        self._weights = [(i + 1) ** -spec.skew for i in range(len(self._modes))]
        self._mode: dict[int, range] = {}
        self._follows: dict[int, list[int]] = {}

    def change(self, user: int, at_s: float) -> Change:
        """Work out the user's next change, and make it."""
        before = self._follows.get(user)
        if before is None or self._rng.random() < self._spec.mode_changes:
            self._mode[user] = self._rng.choices(self._modes, self._weights)[0]
            kept: list[int] = []
        else:
            kept = list(before)
            for _ in range(min(self._spec.replaced, len(kept))):
                kept.pop(self._rng.randrange(len(kept)))
        now = kept + self._draw(user, kept, before or ())
        self._follows[user] = now
        dropped = tuple(t for t in before or () if t not in now)
        added = tuple(t for t in now if t not in (before or ()))
        return Change(at_s, user, dropped, added, arrives=before is None)

    def _draw(self, user: int, kept: list[int], before: list[int] | tuple[int, ...]) -> list[int]:
        """Topics to fill up with: of the mode while it has others, a few from anywhere."""
        drawn: list[int] = []
        for _ in range(self._spec.topics_per_user - len(kept)):
            held = {*kept, *drawn, *before}
            near = [t for t in self._mode[user] if t not in held]
            strays = self._rng.random() < self._spec.strays
            pool = near if near and not strays else range(self._spec.topics)
            free = [t for t in pool if t not in held] or [
                t for t in range(self._spec.topics) if t not in {*kept, *drawn}
            ]
            drawn.append(self._rng.choice(free))
        return drawn
