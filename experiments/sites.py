"""Where brokers and topics are, and how far from each other: what workloads and systems share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sites:
    """Where brokers are, and how far from each other."""

    # [broker] -> row and column, in degrees or in whatever unit the workload has.
    places: Floats
    # [from, to]; the diagonal is 0. Brokers on one spot still have a delay above 0 between them.
    rtt_ms: Floats

    def __len__(self) -> int:
        return len(self.rtt_ms)

    @classmethod
    def equal(cls, brokers: int) -> Sites:
        """A delay of 1 between any two (the Poisson workload): delays are hops."""
        rtt = np.ones((brokers, brokers))
        np.fill_diagonal(rtt, 0.0)
        return cls(np.zeros((brokers, 2)), rtt)

    def delays(self, start: Ints | int, end: Ints | int) -> Floats:
        found: Floats = np.asarray(self.rtt_ms[start, end], dtype=np.float64)
        return found


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a network: how many, and where each belongs if the workload has places."""

    names: tuple[str, ...]
    # [topic] -> row and column, in the unit of `Sites.places`; None: topics have no places.
    places: Floats | None = None

    def __len__(self) -> int:
        return len(self.names)
