"""What a broker in a tree counts for the lake and the manager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker_agent.core.routing.forwarding.forwarding_context import ForwardingContext
from broker_agent.core.routing.tallies import Tallies
from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import Publication
from overlay.history.reigns import TopicTally


class TreeMeasures:
    def __init__(self, context: ForwardingContext, wanted: Callable[[], set[str]]) -> None:
        self._forwarder = context.forwarder
        self._wanted = wanted
        self._tallies = Tallies(
            context.settings.rendezvous_cache_max,
            context.forwarder.counters,
            "tree_tallies_dropped",
        )
        self._is_counting = False

    def begin_tally(self, taker: str) -> None:
        self._tallies.open(taker)
        self._is_counting = True

    def take_tally(self, taker: str) -> Mapping[str, TopicTally]:
        return self._tallies.take_tally(taker)

    def published(self, publications: Iterable[Publication]) -> None:
        if self._is_counting:
            for each in publications:
                if not each.void:
                    tally = TopicTally(events=each.count, nbytes=len(each.events))
                    self._tallies.add({each.topic: tally})

    def published_bundle(self, bundle: Bundle) -> None:
        if self._is_counting:
            for topic, size in zip(bundle.topics, bundle.sizes, strict=True):
                self._tallies.add({topic: TopicTally(events=1, nbytes=size)})

    def requested(self, topics: Iterable[str]) -> None:
        """Sessions here ask for what they have missed of these."""
        for topic in topics:
            self._tallies.add({topic: TopicTally(requests=1)})

    def wanted(self) -> set[str]:
        return self._wanted()

    def counters(self) -> dict[str, int]:
        return self._forwarder.counters.as_dict()

    def begin_round_trips(self) -> None:
        """Links are the topology's: nothing is measured."""

    def take_round_trips(self, *, everything: bool) -> Mapping[str, float]:
        return {}
