"""Which broker a client turns to next: what it was told, against what it found out itself.

    lost --> next: whichever address did not fail lately --welcome--> connected
    connected --redirect--> next: the target --welcome--> connected
                                 `--fails--> next: back to the broker that sent it --fails--> lost

An address that failed is avoided for a while, and brokers are told so in Hello: what a client has
seen weighs more than what brokers say of each other, who may notice a death seconds later. If every
address failed, the one that failed longest ago is next. Pure: time and chance come in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

# Longer than a dead broker's last word counts among the others (`selection.stale_after_s`).
AVOIDED_FOR_S = 30.0
# Addresses named in a hello, the latest failures first; brokers take no more.
AVOIDED_MAX = 16
# Addresses remembered, of seeds and of what brokers name.
KNOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class Destination:
    address: str
    # A broker sent the client there; or it is to be left in peace where it comes back to.
    redirected: bool = False


class FailedLately:
    """Addresses where connections failed or broke, and when."""

    def __init__(self) -> None:
        self._failed_s: dict[str, float] = {}

    def note_failure(self, address: str, now_s: float) -> None:
        self._failed_s.pop(address, None)
        self._failed_s[address] = now_s
        if len(self._failed_s) > KNOWN_MAX:
            del self._failed_s[next(iter(self._failed_s))]

    def forget_failure(self, address: str) -> None:
        self._failed_s.pop(address, None)

    def when_s(self, address: str, now_s: float) -> float | None:
        failed_s = self._failed_s.get(address)
        return failed_s if failed_s is not None and failed_s > now_s - AVOIDED_FOR_S else None

    def latest(self, now_s: float) -> list[str]:
        """As a hello names them, the latest first."""
        lately = [a for a in reversed(self._failed_s) if self.when_s(a, now_s) is not None]
        return lately[:AVOIDED_MAX]


class Destinations:
    def __init__(self, seeds: Iterable[str], rng: Random) -> None:
        self.failed = FailedLately()
        self._seeds = list(dict.fromkeys(seeds))
        self._rng = rng
        # The first is anyone of those given (DYNATOPS Algorithm 1, step 1): clients that are all
        # told the same do not all come to the same.
        self._known = rng.sample(self._seeds, len(self._seeds))
        # The broker that the client is connected to, or was last; where that sent it; and whether
        # it is on its way back from there.
        self._here = ""
        self._target = ""
        self._turned_back = False
        # It was sent where it cannot go, although it had said so.
        self._wants_peace = False

    def learn(self, alternatives: Iterable[str]) -> None:
        """Brokers of the network, as one of them knows them."""
        self._known = list(dict.fromkeys([*self._seeds, *alternatives]))[:KNOWN_MAX]
        self._rng.shuffle(self._known)

    # ---- whereto --------------------------------------------------------------------------------

    @property
    def is_sent(self) -> bool:
        """Whether a broker has sent the client on, or it is on its way back to that broker."""
        return bool(self._target) or self._turned_back

    def next(self, now_s: float) -> Destination:
        if self._target:
            return Destination(self._target, redirected=True)
        if self._turned_back:
            return Destination(self._here, redirected=self._wants_peace)
        return Destination(min(self._known, key=lambda address: self._failed_s(address, now_s)))

    def _failed_s(self, address: str, now_s: float) -> float:
        failed_s = self.failed.when_s(address, now_s)
        return float("-inf") if failed_s is None else failed_s

    # ---- what came of it ------------------------------------------------------------------------

    def send_to(self, address: str, now_s: float) -> None:
        """The broker here will have the client at this address."""
        if self.failed.when_s(address, now_s) is None:
            self._target = address
        else:
            self._turned_back = self._wants_peace = True

    def reached(self, address: str) -> None:
        """A broker there has said welcome."""
        self.failed.forget_failure(address)
        self._here = address
        self._target = ""
        self._turned_back = self._wants_peace = False

    def failed_at(self, address: str, now_s: float) -> None:
        """No connection there, or it broke."""
        self.failed.note_failure(address, now_s)
        if self._target and address != self._target:
            # The broker that sent the client on has gone meanwhile: the way is known all the same.
            return
        was_sent, self._target = bool(self._target), ""
        self._turned_back = was_sent and self.failed.when_s(self._here, now_s) is None
