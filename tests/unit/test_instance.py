"""Instances as files: what is read, what is refused and how, and those that are made up."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from overlay.base.identifiers import key_of
from reconfig_manager.placement.instance import (
    InstanceError,
    dump_instance,
    parse_instance,
    read_instance,
    write_instance,
)

A, B, C = "0000000000000001", "4000000000000000", "8000000000000000"


def good() -> dict[str, Any]:
    return {
        "ring_bits": 64,
        "node_ids": [A, B, C],
        "delay_weight": 1.0,
        "brokers": {"b0": ["x"], "b1": ["x", "y"], "b2": []},
        "publications": {"x": 12.0, "y": 0, "z": 1.5},
        "placement": {"b0": B, "b1": C, "b2": A},
        "rtt_ms": {"brokers": ["b2", "b0", "b1"], "matrix": [[0, 1, 2], [3, 0, 4], [5, 6, 0]]},
    }


def parsed(document: object) -> None:
    parse_instance(json.dumps(document).encode())


def test_a_good_one_becomes_a_problem() -> None:
    problem = parse_instance(json.dumps(good()).encode()).problem()
    assert problem.place.tolist() == [1, 2, 0]
    assert problem.topics == 3
    rtt_ms = problem.model.prices.rtt_ms
    assert rtt_ms is not None
    # In the order of the brokers, whatever the order of the matrix.
    assert rtt_ms[0, 1] == 4
    assert rtt_ms[2, 0] == 1


def test_a_solution_is_named_as_the_instance_names_it() -> None:
    instance = parse_instance(json.dumps(good()).encode())
    assert instance.placement_of(np.array([1, 2, 0], dtype=np.int32)) == instance.placement


@pytest.mark.parametrize(
    ("path", "value", "field", "message"),
    [
        (("placement", "b0"), C, "placement.b1", "taken by 'b0' already"),
        (("placement", "b0"), "00000000000000ff", "placement.b0", "no node"),
        (("placement", "b9"), A, "placement.b9", "unknown broker"),
        (("placement",), {"b0": A, "b1": B}, "placement", "'b2' has no node"),
        (("brokers", "b0"), ["x", "q"], "brokers.b0", "unknown topic 'q'"),
        (("brokers", "b0"), ["x", "x"], "brokers.b0", "'x' is there twice"),
        (("brokers",), {"b0": []}, "brokers", "1 brokers on 3 nodes"),
        (("publications", "x"), -1, "publications.x", "greater than or equal to 0, not -1"),
        (("publications", "x"), float("nan"), "publications.x", "finite"),
        (("publications", "x"), float("inf"), "publications.x", "finite"),
        (("publications", "x"), "many", "publications.x", "valid number"),
        (("delay_weight",), -0.5, "delay_weight", "greater than or equal to 0"),
        (("node_ids",), [A, B, B], "node_ids.2", "is there twice"),
        (("node_ids",), [], "node_ids", "the ring is empty"),
        (("node_ids",), [A, B, "xyz"], "node_ids.2", "not 'xyz'"),
        (("ring_bits",), 65, "ring_bits", "less than or equal to 64"),
        (("ring_bits",), 4, "node_ids.1", "more than 4 bits"),
        (("rtt_ms", "matrix"), [[0, 1], [1, 0]], "rtt_ms.matrix", "2 rows for 3 brokers"),
        (("rtt_ms", "matrix"), [[0] * 3, [0] * 2, [0] * 3], "rtt_ms.matrix.1", "2 columns"),
        (("rtt_ms", "matrix"), [[0] * 3, [0, -1, 0], [0] * 3], "rtt_ms.matrix.1.1", "not -1"),
        (("rtt_ms", "brokers"), ["b0", "b1", "b9"], "rtt_ms.brokers", "unknown broker 'b9'"),
        (("rtt_ms", "brokers"), ["b0", "b1", "b1"], "rtt_ms.brokers", "every broker once"),
        (("rtt",), 1, "rtt", "extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_named(
    path: tuple[str, ...], value: object, field: str, message: str
) -> None:
    document = good()
    *parents, name = path
    part = document
    for parent in parents:
        part = part[parent]
    part[name] = value
    with pytest.raises(InstanceError) as caught:
        parsed(document)
    assert caught.value.field == field
    assert message in caught.value.problem
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["node_ids", "brokers", "publications", "placement"])
def test_what_is_missing_is_named(missing: str) -> None:
    document = good()
    del document[missing]
    with pytest.raises(InstanceError, match=f"{missing}: field required"):
        parsed(document)


def test_a_name_given_twice_is_refused() -> None:
    text = json.dumps(good()).replace('"b1": ["x", "y"]', '"b0": ["x", "y"]')
    with pytest.raises(InstanceError, match="b0: is there twice"):
        parse_instance(text.encode())


def _cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "no valid JSON, or cut off"),
        (_cut(json.dumps(good()).encode()), "no valid JSON, or cut off"),
        (_cut(gzip.compress(json.dumps(good()).encode())), "truncated or damaged gzip"),
        (b"\x1f\x8b garbage", "truncated or damaged gzip"),
        (b"[1, 2]", "instance"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_none(raw: bytes, message: str) -> None:
    with pytest.raises(InstanceError) as caught:
        parse_instance(raw)
    assert message.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_shorter_ring_is_the_beginning_of_a_longer_one() -> None:
    """DYNATOPS Fig. 2: eight nodes on three bits, seven places are three hops."""
    document = {
        "ring_bits": 3,
        "node_ids": [f"{node:016x}" for node in range(8)],
        "brokers": {f"b{i}": ["t"] if i == 0 else [] for i in range(8)},
        "publications": {"t": 1},
    }
    root = key_of("t") >> 61
    nodes = [(root + 7 + i) % 8 for i in range(8)]
    document["placement"] = {f"b{i}": f"{node:016x}" for i, node in enumerate(nodes)}
    problem = parse_instance(json.dumps(document).encode()).problem()
    assert problem.model.evaluate(problem.place).delay == 3


class TestMadeUp:
    @pytest.mark.parametrize("pattern", Pattern)
    def test_survives_a_file(self, pattern: Pattern, tmp_path: Path) -> None:
        instance = make_instance(30, 40, pattern, 1)
        for name in ("i.json", "i.json.gz"):
            write_instance(instance, tmp_path / name)
            assert read_instance(tmp_path / name) == instance
        assert (tmp_path / "i.json.gz").stat().st_size < (tmp_path / "i.json").stat().st_size

    @pytest.mark.parametrize("pattern", Pattern)
    def test_the_same_arguments_make_the_same(self, pattern: Pattern) -> None:
        assert dump_instance(make_instance(20, 30, pattern, 7)) == dump_instance(
            make_instance(20, 30, pattern, 7)
        )
        assert make_instance(20, 30, pattern, 7) != make_instance(20, 30, pattern, 8)

    @pytest.mark.parametrize("pattern", Pattern)
    def test_as_many_topics_as_asked_for(self, pattern: Pattern) -> None:
        instance = make_instance(400, 1000, pattern, 1, topics_per_broker=20)
        counts = [len(topics) for topics in instance.brokers.values()]
        assert 18 < sum(counts) / len(counts) < 22
        assert min(counts) < 10 < 30 < max(counts)

    def test_zipf_prefers_the_first(self) -> None:
        instance = make_instance(400, 100, Pattern.ZIPF, 1)
        followers = [sum(f"t{i}" in ts for ts in instance.brokers.values()) for i in (0, 10, 90)]
        assert followers[0] > 2 * followers[1] > 4 * followers[2]

    @pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
    def test_zipf_is_as_printed(self, sigma: float) -> None:
        """(i + 1) ** -sigma with i from 1 (DYNATOPS IV-A), not 1 / i."""
        brokers, topics = 30_000, 10
        instance = make_instance(brokers, topics, Pattern.ZIPF, 1, 1, sigma)
        drawn = Counter(topic for chosen in instance.brokers.values() for topic in chosen)
        assert drawn.total() == brokers
        weights = [(i + 1) ** -sigma for i in range(1, topics + 1)]
        for number, weight in enumerate(weights):
            assert drawn[f"t{number}"] / brokers == pytest.approx(weight / sum(weights), abs=0.01)

    def test_modes_are_shared(self) -> None:
        instance = make_instance(100, 100, Pattern.MULTIMODAL, 1)
        for topics in instance.brokers.values():
            numbers = [int(topic[1:]) for topic in topics]
            assert len(numbers) == 5 * len({number // 10 for number in numbers})

    @pytest.mark.parametrize("brokers", [1, 2])
    @pytest.mark.parametrize("topics", [1, 3, 11])
    @pytest.mark.parametrize("pattern", Pattern)
    def test_tiny(self, pattern: Pattern, brokers: int, topics: int) -> None:
        problem = make_instance(brokers, topics, pattern, 1, topics_per_broker=50).problem()
        assert problem.brokers == brokers
