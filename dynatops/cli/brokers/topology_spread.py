"""How far a topology has come: who has it, which links are up, from what brokers say of themselves.

A link is up if both of its ends say so; where one of them does not answer, the other's word counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynatops.v1.inspection_pb2 import BrokerReport
from overlay.forwarding.topology import Topology

_CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class TopologySpread:
    # By name: the version that a broker has which has not this topology, or that it is a broker of
    # another name, or on a ring.
    behind: Mapping[str, str]
    # Brokers that do not answer.
    silent: tuple[str, ...]
    # Pairs of names: links of which nobody says anything, and those that an end says are down.
    links_unknown: tuple[tuple[str, str], ...]
    links_down: tuple[tuple[str, str], ...]
    # Who asks others for what it published before it was restarted.
    starting: tuple[str, ...]

    def missing(self) -> list[str]:
        """What is not as it is to be, of brokers that answer."""
        silent = set(self.silent)
        lines = [f"{name} {why}" for name, why in self.behind.items()]
        lines += [f"{name} is still starting" for name in self.starting]
        lines += [
            f"the link {one}-{other} is down"
            for one, other in self.links_down
            if not {one, other} & (silent | set(self.behind))
        ]
        return lines


def spread_of(topology: Topology, reports: Mapping[str, BrokerReport | None]) -> TopologySpread:
    """`reports` by the addresses of the topology's brokers."""
    named = {name: reports.get(address) for name, address in topology.addresses.items()}
    behind = {
        name: why
        for name, report in named.items()
        if report is not None and (why := _why_behind(name, report, topology))
    }
    unknown, down = [], []
    for link in topology.links:
        words = [
            word
            for one, other in ((link.one, link.other), (link.other, link.one))
            if (word := _word_on(named[one], other, one in behind)) is not None
        ]
        if not words:
            unknown.append((link.one, link.other))
        elif not all(words):
            down.append((link.one, link.other))
    return TopologySpread(
        behind=behind,
        silent=tuple(sorted(name for name, report in named.items() if report is None)),
        links_unknown=tuple(unknown),
        links_down=tuple(down),
        starting=tuple(
            sorted(
                name
                for name, report in named.items()
                if report is not None and name not in behind and not report.forwarder.ready
            )
        ),
    )


def _why_behind(name: str, report: BrokerReport, topology: Topology) -> str:
    if report.broker_id != name:
        return f"is not at {topology.addresses[name]}: {report.broker_id} is"
    if not report.HasField("forwarder"):
        return "is on a ring: start it with --topology"
    forwarder = report.forwarder
    if forwarder.topology_digest == topology.digest:
        return ""
    if forwarder.topology_version == topology.version:
        return f"has another topology of version {topology.version}"
    return f"has version {forwarder.topology_version}"


def _word_on(report: BrokerReport | None, other: str, is_behind: bool) -> bool | None:
    """Whether a broker says that its link to the other is up; None if it does not say."""
    if report is None:
        return None
    if is_behind:
        return False
    states = {link.neighbour.broker_id: link.state for link in report.forwarder.links}
    return states.get(other, _CLOSED) != _CLOSED
