"""A network between brokers that delays, loses, doubles and reorders frames, and falls apart.

All its randomness comes from one seeded generator. Connections of clients to their brokers are not
here: those are reliable and ordered until one end dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

from simulator.scheduler import Scheduler, Trace

Receiver = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How badly the network behaves. Probabilities are per frame."""

    delay_min_s: float = 0.001
    delay_max_s: float = 0.010
    loss: float = 0.0
    duplication: float = 0.0
    # A reordered frame is held back for up to `reorder_max_s` while others pass.
    reordering: float = 0.0
    reorder_max_s: float = 0.2


class Network:
    def __init__(self, scheduler: Scheduler, trace: Trace, rng: Random, weather: Weather) -> None:
        self.weather = weather
        self.frames = 0
        self.lost = 0
        self._scheduler = scheduler
        self._trace = trace
        self._rng = rng
        self._receivers: dict[str, Receiver] = {}
        # Address -> side; frames pass only within one side. Empty: the network is whole.
        self._sides: dict[str, int] = {}
        self._cut_links: set[tuple[str, str]] = set()

    def attach(self, address: str, receiver: Receiver) -> None:
        self._receivers[address] = receiver

    def detach(self, address: str) -> None:
        self._receivers.pop(address, None)

    def is_attached(self, address: str) -> bool:
        return address in self._receivers

    @property
    def is_whole(self) -> bool:
        return not self._sides and not self._cut_links

    def split(self, sides: Iterable[Iterable[str]]) -> None:
        self._sides = {address: i for i, side in enumerate(sides) for address in side}

    def cut(self, one: str, other: str) -> None:
        """Break one link, both ways."""
        self._cut_links |= {(one, other), (other, one)}

    def heal(self) -> None:
        self._sides = {}
        self._cut_links = set()

    def send(self, source: str, destination: str, frame: bytes, label: str) -> None:
        self.frames += 1
        weather, rng = self.weather, self._rng
        blocked = not self.is_whole and self.is_blocked(source, destination)
        if blocked or (weather.loss and rng.random() < weather.loss):
            self.lost += 1
            self._trace.note(f"{source}->{destination} LOST {label}")
            return
        arrive = partial(self._arrive, source, destination, frame, label)
        self._scheduler.after(self._delay_s(), arrive)
        if weather.duplication and rng.random() < weather.duplication:
            self._scheduler.after(self._delay_s(), arrive)

    def is_blocked(self, source: str, destination: str) -> bool:
        if (source, destination) in self._cut_links:
            return True
        return self._sides.get(source, 0) != self._sides.get(destination, 0)

    def _delay_s(self) -> float:
        weather = self.weather
        delay_s = self._rng.uniform(weather.delay_min_s, weather.delay_max_s)
        if weather.reordering and self._rng.random() < weather.reordering:
            delay_s += self._rng.uniform(0.0, weather.reorder_max_s)
        return delay_s

    def _arrive(self, source: str, destination: str, frame: bytes, label: str) -> None:
        receiver = self._receivers.get(destination)
        if receiver is None:
            self._trace.note(f"{source}->{destination} DEAD {label}")
        else:
            self._trace.note(f"{source}->{destination} {label}")
            receiver(frame)
