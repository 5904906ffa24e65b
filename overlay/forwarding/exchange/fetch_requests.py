"""Who asks for the past: sessions here, and neighbours.

A neighbour has one part under way; the next goes out once it says that it has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dynatops.kit.filters import Filter, FilterError
from dynatops.v1.overlay_pb2 import TreeFetch, TreeFetched, TreeFetchEnd, TreeFetchMore
from overlay.forwarding.exchange.table_exchange import TableExchange, from_wire
from overlay.forwarding.forwarding_effects import FetchedPart, LossRange
from overlay.forwarding.keeping.fetches import Fetches, OpenFetch, portions_in
from overlay.forwarding.links.neighbours import TreeNeighbour
from overlay.forwarding.streams.portions import size_of
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tree_context import TreeContext


@dataclass(slots=True)
class _Credit:
    """How many parts a neighbour may have, and which fetch here they are of."""

    parts: int = 1
    fetch_id: int = 0


class FetchRequests:
    def __init__(self, context: TreeContext, exchange: TableExchange, fetches: Fetches) -> None:
        self._context = context
        self._exchange = exchange
        self._fetches = fetches
        # By neighbour, and its number for the fetch.
        self._credits: dict[tuple[str, int], _Credit] = {}
        # What sessions here asked for: their number for a fetch, and ours.
        self._of_sessions: dict[int, int] = {}

    def closed(self, broker_id: str) -> None:
        """The neighbour's session has ended."""
        self._fetches.cancel_of(broker_id)
        for key in [key for key in self._credits if key[0] == broker_id]:
            del self._credits[key]

    # ---- sessions here --------------------------------------------------------------------------

    def begin(
        self, fetch_id: int, filters: Sequence[Filter], positions: Mapping[int, int], now_s: float
    ) -> None:
        self._exchange.tell_tables()
        places = {s: (number, self._holder_of(s)) for s, number in positions.items()}
        fetch = OpenFetch(
            HERE,
            filters,
            places,
            partial(self._take_for_session, fetch_id),
            lambda: True,
            unnamed=True,
        )
        begun = self._fetches.begin(fetch, now_s)
        if begun is not None:
            self._of_sessions[fetch_id] = begun
        else:
            losses = [LossRange(s, number, None) for s, number in positions.items()]
            self._context.effects.append(FetchedPart(fetch_id, (), losses, {}, True))

    def give_up(self, fetch_id: int) -> None:
        begun = self._of_sessions.pop(fetch_id, None)
        if begun is not None:
            self._fetches.cancel(begun)

    def _holder_of(self, stream: int) -> str:
        known = self._context.streams.get(stream)
        return known.holder if known is not None else ""

    def _take_for_session(self, fetch_id: int, part: TreeFetched) -> None:
        if part.done:
            self._of_sessions.pop(fetch_id, None)
        self._context.effects.append(
            FetchedPart(
                fetch_id,
                portions_in(part),
                [LossRange(each.stream, each.after, each.upto or None) for each in part.losses],
                {each.stream: each.number for each in part.ends},
                part.done,
            )
        )

    # ---- neighbours -----------------------------------------------------------------------------

    def on_fetch(self, neighbour: TreeNeighbour, message: TreeFetch, now_s: float) -> None:
        try:
            filters = from_wire(message.filters)
        except FilterError:
            self._context.counters.link_frames_strange += 1
            return
        self._exchange.tell_tables()
        credit = _Credit()
        fetch = OpenFetch(
            neighbour.broker_id,
            filters,
            {p.stream: (p.number, p.holder) for p in message.places},
            partial(self._take_for_neighbour, neighbour, message.id, credit),
            lambda: credit.parts > 0,
            unnamed=message.unnamed,
            also=partial(self._asked_since, neighbour.broker_id),
        )
        begun = self._fetches.begin(fetch, now_s)
        if begun is None:
            # Who asks tells what it knows of as lost.
            answer = neighbour.link.message().tree_fetched
            answer.id, answer.done = message.id, True
            return
        credit.fetch_id = begun
        self._credits[neighbour.broker_id, message.id] = credit

    def _asked_since(self, broker_id: str) -> Iterable[Filter]:
        """With advertisements, filters may have come after the fetch that they concern."""
        if not self._context.topology.advertisements:
            return ()
        return self._context.tables.sent_to(broker_id)

    def on_more(self, neighbour: TreeNeighbour, message: TreeFetchMore, now_s: float) -> None:
        credit = self._credits.get((neighbour.broker_id, message.id))
        if credit is not None:
            credit.parts += 1

    def on_end(self, neighbour: TreeNeighbour, message: TreeFetchEnd, now_s: float) -> None:
        credit = self._credits.pop((neighbour.broker_id, message.id), None)
        if credit is not None:
            self._fetches.cancel(credit.fetch_id)

    def _take_for_neighbour(
        self, neighbour: TreeNeighbour, number: int, credit: _Credit, part: TreeFetched
    ) -> None:
        credit.parts -= 1
        part.id = number
        nbytes = sum(size_of(portion) for portion in portions_in(part))
        neighbour.link.message(nbytes).tree_fetched.CopyFrom(part)
        if part.done:
            self._credits.pop((neighbour.broker_id, number), None)
