"""What operators are told of subscription tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from dynatops.cli.brokers.tables import describe
from dynatops.kit.filters import Filter
from dynatops.v1.inspection_pb2 import FilterList, FilterRelation, TablesReport
from overlay.forwarding.forwarder import Forwarder
from overlay.forwarding.forwarding_settings import ForwardingSettings
from overlay.forwarding.held_filters import HERE
from overlay.forwarding.table_reports import describe_tables, relation_of
from overlay.forwarding.tables import TableChange
from overlay.forwarding.topology import Topology

SAME, COVERS, COVERED, MEETS, APART = (
    FilterRelation.FILTER_RELATION_SAME,
    FilterRelation.FILTER_RELATION_COVERS,
    FilterRelation.FILTER_RELATION_COVERED,
    FilterRelation.FILTER_RELATION_MEETS,
    FilterRelation.FILTER_RELATION_UNSPECIFIED,
)


def filters(texts: Iterable[str]) -> list[Filter]:
    parts = (text.partition(" where ") for text in texts)
    return [Filter.parse(pattern, where) for pattern, _, where in parts]


def forwarder(
    wanted: Mapping[str, list[str]], advertised: Mapping[str, list[str]] | None = None, **more: Any
) -> Forwarder:
    """Of a broker `b` between `a` and `c`, with these in its tables; `HERE` are its clients."""
    names = ["a", "b", "c"]
    topology = Topology.from_mapping(
        {
            "brokers": {name: f"h:{name}" for name in names},
            "links": [["a", "b"], ["b", "c"]],
            "root": "a",
            **more,
        }
    )
    node = Forwarder("b", "h:b", 1, topology, ForwardingSettings(), 0.0)
    node.start(0.0)
    for holder in (HERE, "a", "c"):
        ads = filters((advertised or {}).get(holder, ()))
        change = TableChange(tuple(filters(wanted.get(holder, ()))), advertise=tuple(ads))
        node.tables.change(holder, change)
    node.tables.changes()
    return node


def report_on(node: Forwarder, about: str = "", limit: int = 100) -> TablesReport:
    asked = filters([about])[0] if about else None
    return describe_tables(node.table_entries(), asked, limit)


def texts(listed: FilterList) -> list[str]:
    return [str(Filter.from_wire(each.filter)) for each in listed.filters]


class TestReport:
    def test_by_neighbour(self) -> None:
        node = forwarder({HERE: ["x/#", "y"], "a": ["x/1", "z"], "c": ["x/2"]})
        report = report_on(node)
        assert texts(report.own) == ["x/#", "y"]
        a, c = report.holders
        assert (a.broker_id, c.broker_id, report.parent) == ("a", "c", "a")
        assert texts(a.wanted) == ["x/1", "z"]
        assert texts(a.told) == ["x/#", "y"]
        assert texts(a.kept_back) == ["x/2"]
        assert str(Filter.from_wire(a.kept_back.filters[0].covered_by)) == "x/#"
        assert texts(c.told) == ["x/#", "y", "z"]
        assert texts(c.kept_back) == ["x/1"]

    def test_what_covers_by_its_condition(self) -> None:
        node = forwarder({HERE: ["x where p > 1", "x where p > 5"]})
        (kept_back,) = report_on(node).holders[0].kept_back.filters
        assert kept_back.filter.where == "p > 5"
        assert (kept_back.covered_by.pattern, kept_back.covered_by.where) == ("x", "p > 1")

    def test_without_covering_nothing_is_kept_back(self) -> None:
        report = report_on(forwarder({HERE: ["x/#", "x/1"]}, covering=False))
        assert [holder.kept_back.count for holder in report.holders] == [0, 0]
        assert texts(report.holders[0].told) == ["x/#", "x/1"]

    def test_what_nobody_advertises_is_kept_back(self) -> None:
        node = forwarder({HERE: ["x", "y"]}, {"a": ["x"], HERE: ["z"]}, advertisements=True)
        a, c = report_on(node).holders
        assert (texts(a.told), texts(a.kept_back)) == (["x"], ["y"])
        assert not a.kept_back.filters[0].HasField("covered_by")
        assert texts(c.kept_back) == ["x", "y"]
        assert (a.advertisements_told, c.advertisements_told) == (1, 2)

    def test_children_are_not_asked(self) -> None:
        report = report_on(forwarder({HERE: ["x"], "c": ["y"]}, mode="hierarchical"))
        a, c = report.holders
        assert texts(a.wanted) == ["#"]
        assert texts(a.told) == ["x", "y"]
        assert a.is_asked
        assert not c.is_asked
        assert c.kept_back.count == 0

    def test_lists_end_and_the_rest_is_counted(self) -> None:
        node = forwarder({HERE: [f"t/{i:03}" for i in range(100)]})
        own = report_on(node, limit=3).own
        assert texts(own) == ["t/000", "t/001", "t/002"]
        assert (own.count, own.chosen) == (100, 100)

    def test_what_a_filter_is_about(self) -> None:
        node = forwarder({HERE: ["t/+ where p > 3", "t/#", "u", "t/1", "t/2"]})
        own = report_on(node, "t/1 where p > 2").own
        assert texts(own) == ["t/#", "t/+ where p > 3", "t/1"]
        assert [each.relation for each in own.filters] == [COVERS, MEETS, COVERS]
        assert (own.count, own.chosen) == (5, 3)

    @pytest.mark.parametrize(
        ("one", "other", "relation"),
        [
            ("x", "x", SAME),
            ("x/#", "x/1", COVERS),
            ("x/1", "x/#", COVERED),
            ("x/+/1", "x/2/+", MEETS),
            ("x", "y", APART),
            ("x where p > 1", "x where p < 1", APART),
            ("x where p > 1", "x where p > 2", COVERS),
        ],
    )
    def test_relations(self, one: str, other: str, relation: int) -> None:
        assert relation_of(*filters([one]), *filters([other])) == relation


class TestText:
    def test_everything(self) -> None:
        node = forwarder({HERE: ["x/#"], "a": ["z"], "c": ["x/2", "x/3", "x/4"]})
        report = report_on(node, limit=2)
        report.broker_id = "b"
        assert describe(report, "h:1", "") == [
            "b at h:1, peer, with covering",
            "",
            "wanted here: 1 filter",
            "  x/#",
            "",
            "a, towards the root",
            "  wants 1 filter",
            "    z",
            "  was told 1 filter",
            "    x/#",
            "  was not told 3 filters",
            "    x/2    (covered by x/#)",
            "    x/3    (covered by x/#)",
            "    … and 1 more",
            "",
            "c",
            "  wants 3 filters",
            "    x/2",
            "    x/3",
            "    … and 1 more",
            "  was told 2 filters",
            "    x/#",
            "    z",
        ]

    def test_about_a_filter(self) -> None:
        node = forwarder({HERE: ["x/#"], "c": ["x/2"]}, mode="hierarchical", advertisements=True)
        report = report_on(node, "x/2")
        report.broker_id = "b"
        assert describe(report, "h:1", "x/2") == [
            "b at h:1, hierarchical, with covering and advertisements",
            "only what meets x/2",
            "",
            "wanted here: 1 of 1 filter",
            "  x/#    (covers it)",
            "",
            "a, towards the root",
            "  wants nothing",
            "  was told 1 of 1 filter",
            "    x/#    (covers it)",
            "  was not told 1 of 1 filter",
            "    x/2    (the same; covered by x/#)",
            "  was told 0 advertisements",
            "",
            "c",
            "  wants 1 of 1 filter",
            "    x/2    (the same)",
            "  was told nothing",
            "  was not told 1 of 1 filter",
            "    x/#    (covers it; nobody there advertises what meets it)",
            "  was told 0 advertisements",
        ]
