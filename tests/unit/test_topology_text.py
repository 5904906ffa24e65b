"""What changes from one topology to another, how that is shown, and how far it has come."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dynatops.cli.brokers.topology_spread import TopologySpread, spread_of
from dynatops.cli.brokers.topology_text import as_yaml, change_lines, drawn, headline
from dynatops.v1.inspection_pb2 import BrokerReport, ForwarderReport, LinkReport
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.forwarding.topology import Topology
from overlay.forwarding.topology_changes import difference, why_not_after

BROKERS = {"hub": "h:1", "a": "h:2", "b": "h:3"}
STAR: dict[str, Any] = {
    "version": 1,
    "root": "hub",
    "brokers": BROKERS,
    "links": [["hub", "a"], ["hub", "b"]],
}


def topology(**changes: Any) -> Topology:
    return Topology.from_mapping({**STAR, **changes})


def report(name: str, of: Topology, *up: str, ready: bool = True) -> BrokerReport:
    forwarder = ForwarderReport(topology_version=of.version, topology_digest=of.digest, ready=ready)
    for other in of.neighbours(name):
        state = "live" if other in up else "closed"
        forwarder.links.append(LinkReport(neighbour=NodeRef(broker_id=other), state=state))
    return BrokerReport(broker_id=name, forwarder=forwarder)


class TestText:
    def test_drawn(self) -> None:
        chain = topology(links=[["hub", "a"], ["a", "b"]], mode="hierarchical")
        assert headline(chain) == "a tree of 3 brokers, hierarchical, version 1, with covering"
        assert drawn(chain, lambda name: "!" * (name == "a")) == [
            "hub  h:1",
            "└── a  h:2  !",
            "    └── b  h:3",
        ]

    def test_a_long_chain(self) -> None:
        names = [f"b{i:04}" for i in range(3_000)]
        links = [[names[i], names[i + 1]] for i in range(len(names) - 1)]
        chain = Topology.from_mapping({"brokers": {n: f"h:{n}" for n in names}, "links": links})
        assert len(drawn(chain)) == len(names)

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"links": [["hub", "a"], {"between": ["hub", "b"], "weight": 2.5}, ["a", "b"]]},
            {"brokers": {"hub": "h:1"}, "links": []},
            {"brokers": {"yes": "h:1", "1": "[::1]:2"}, "root": "yes", "links": [["1", "yes"]]},
            {"mode": "hierarchical", "advertisements": True, "covering": False},
        ],
    )
    def test_yaml_comes_to_the_same(self, changes: Any) -> None:
        written = topology(**changes)
        read = Topology.from_mapping(yaml.safe_load(as_yaml(written)))
        assert read.digest == written.digest

    def test_yaml_is_as_a_person_writes_it(self) -> None:
        assert as_yaml(topology()).splitlines()[-3:] == ["links:", "- [a, hub]", "- [b, hub]"]


class TestDifference:
    def test_nothing(self) -> None:
        newer = topology(version=2)
        change = difference(topology(), newer)
        assert change.is_empty
        assert change_lines(change, newer) == ["nothing changes but the version"]

    def test_everything(self) -> None:
        newer = topology(
            version=2,
            brokers={"hub": "h:1", "a": "h:9", "c": "h:4", "d": "h:5"},
            links=[["hub", "c"], ["c", "a"], ["c", "d"]],
            covering=False,
        )
        assert change_lines(difference(topology(), newer), newer) == [
            "covering: false, which was true",
            "+ c  h:4",
            "+ d  h:5",
            "- b",
            "~ a is at h:9, and was at h:2",
            "~ a goes from hub to c",
            "+ link a-c",
            "+ link c-d",
            "+ link c-hub",
            "- link a-hub",
            "- link b-hub",
        ]

    def test_another_root_moves_nobody(self) -> None:
        newer = topology(version=2, root="a")
        change = difference(topology(), newer)
        assert change_lines(change, newer) == ["root: a, which was hub"]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"version": 2}, ""),
            ({}, ""),
            ({"covering": False}, "hub has another topology of version 1 already: see"),
            ({"version": 2, "brokers": {"a": "h:2"}, "root": "a", "links": []}, "hub is not in it"),
            ({"version": 2, "brokers": {**BROKERS, "hub": "h:7"}}, "it has hub at h:7, and that"),
        ],
    )
    def test_why_not(self, changes: Any, why: str) -> None:
        found = why_not_after(topology(), topology(**changes), "hub", "h:1")
        assert found.startswith(why)
        assert bool(found) == bool(why)

    def test_an_older_one(self) -> None:
        found = why_not_after(topology(version=9), topology(version=8), "hub", "h:1")
        assert found.startswith("hub has version 9, which is newer than 8")
        assert found.endswith("give yours version 10")


class TestSpread:
    def spread(self, **reports: BrokerReport | None) -> TopologySpread:
        return spread_of(topology(), {BROKERS[name]: said for name, said in reports.items()})

    def test_everywhere(self) -> None:
        star = topology()
        spread = self.spread(
            hub=report("hub", star, "a", "b"),
            a=report("a", star, "hub"),
            b=report("b", star, "hub"),
        )
        assert spread == TopologySpread({}, (), (), (), ())
        assert spread.missing() == []

    def test_one_end_says_that_a_link_is_down(self) -> None:
        star = topology()
        spread = self.spread(
            hub=report("hub", star, "a", "b"), a=report("a", star), b=report("b", star, "hub")
        )
        assert spread.missing() == ["the link a-hub is down"]

    def test_who_does_not_answer_is_not_waited_for(self) -> None:
        star = topology()
        spread = self.spread(hub=report("hub", star, "a"), a=report("a", star, "hub"), b=None)
        assert (spread.silent, spread.links_down) == (("b",), (("b", "hub"),))
        assert spread.missing() == []

    def test_nobody_knows(self) -> None:
        spread = self.spread(hub=None, a=None, b=None)
        assert spread.links_unknown == (("a", "hub"), ("b", "hub"))

    def test_who_has_another_one(self) -> None:
        star, old = topology(), topology(version=1, covering=False)
        spread = self.spread(
            hub=report("hub", star, "a", ready=False),
            a=report("a", old, "hub"),
            b=report("x", star, "hub"),
        )
        assert spread.missing() == [
            "a has another topology of version 1",
            "b is not at h:3: x is",
            "hub is still starting",
        ]
        ring = self.spread(hub=BrokerReport(broker_id="hub"), a=None, b=None)
        assert ring.missing() == ["hub is on a ring: start it with --topology"]
