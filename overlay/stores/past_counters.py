"""What a broker counts of finding the past. Names and meanings here are shown to operators."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class PastCounters:
    offers_closer: int = counter(
        "Advertised units whose store is closer than any known: noted, and told further on."
    )
    offers_equal: int = counter(
        "Advertised units whose store is as far as the closest: noted beside it, told to nobody."
    )
    offers_farther: int = counter(
        "Advertised units whose store is farther: set aside until what is closer has gone."
    )
    offers_withdrawn: int = counter("Advertised units that a neighbour has withdrawn.")
    offers_expired: int = counter(
        "Advertised units that a neighbour told, and then was gone, or renewed no more."
    )
    units_refused: int = counter("Units of stores not noted, for lack of room.")
    offers_malformed: int = counter(
        "Offers not taken: a way that is too long, or leads through here, or a unit that is none."
    )
    advertisements_sent: int = counter("Messages with something new of stores, to neighbours.")
    advertisements_renewed: int = counter("Messages that say that what was told still holds.")
    advertisements_missed: int = counter(
        "Times something was missing of what a neighbour told of stores, and was asked for again."
    )
    advertising_brokers_dropped: int = counter(
        "Brokers that had told of stores, forgotten with that for others."
    )

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
