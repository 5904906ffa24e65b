"""The text that Prometheus reads, and what figures are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dynatops.kit.counters import counter as counted
from dynatops.kit.observing.metrics import (
    Family,
    Histogram,
    Metric,
    Sample,
    counter,
    counters_of,
    families,
    gauge,
    histogram,
    one_of,
    render,
)


@dataclass
class Source:
    value: float = 1.0


def one(metric: Metric[Source], value: float = 1.0) -> str:
    return render([metric.of(Source(value))])


class TestText:
    def test_a_gauge(self) -> None:
        metric: Metric[Source] = gauge("a_b", "What it is.", lambda s: s.value)
        assert one(metric, 2.5) == "# HELP a_b What it is.\n# TYPE a_b gauge\na_b 2.5\n"

    def test_labels_in_their_order(self) -> None:
        metric: Metric[Source] = counter(
            "a_total", "x", lambda _: {("GET", "200"): 3, ("PUT", "404"): 1}, "method", "status"
        )
        assert one(metric).splitlines()[2:] == [
            'a_total{method="GET",status="200"} 3',
            'a_total{method="PUT",status="404"} 1',
        ]

    def test_labels_must_be_as_many_as_declared(self) -> None:
        metric: Metric[Source] = gauge("a", "x", lambda _: {"one": 1.0}, "b", "c")
        with pytest.raises(ValueError, match="argument 2"):
            one(metric)

    def test_nothing_to_tell(self) -> None:
        metric: Metric[Source] = gauge("a", "x", lambda _: dict[str, float](), "b")
        assert one(metric) == "# HELP a x\n# TYPE a gauge\n"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (True, "1"),
            (0, "0"),
            (-3, "-3"),
            (10**14, "100000000000000"),
            (1e300, "1e+300"),
            (math.nan, "NaN"),
            (math.inf, "+Inf"),
            (-math.inf, "-Inf"),
            (0.1, "0.1"),
        ],
    )
    def test_numbers(self, value: float, text: str) -> None:
        family = Family("a", "gauge", "x", (Sample(value),))
        assert render([family]).splitlines()[2] == f"a {text}"

    @given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20))
    def test_whatever_a_label_says_is_read_as_it_was(self, text: str) -> None:
        family = Family("a", "gauge", "x", (Sample(1.0, {"b": text}),))
        # The parser takes lines as Python does, which knows more ends than Prometheus.
        if len(text.splitlines()) > 1 or text.splitlines(keepends=True) != [text] * bool(text):
            text = text.encode("unicode_escape").decode()
            family = Family("a", "gauge", "x", (Sample(1.0, {"b": text}),))
        (read,) = text_string_to_metric_families(render([family]))
        assert read.samples[0].labels == {"b": text}


class TestHistogram:
    def test_values_at_a_bound_are_below_it(self) -> None:
        kept = Histogram((0.1, 1.0))
        for value in (0.05, 0.1, 0.5, 1.0, 7.0):
            kept.observe(value)
        metric: Metric[Source] = histogram("a_seconds", "x", lambda _: kept)
        assert one(metric).splitlines()[1:] == [
            "# TYPE a_seconds histogram",
            'a_seconds_bucket{le="0.1"} 2',
            'a_seconds_bucket{le="1"} 4',
            'a_seconds_bucket{le="+Inf"} 5',
            "a_seconds_sum 8.65",
            "a_seconds_count 5",
        ]
        assert kept.count == 5

    @given(st.lists(st.floats(0, 100), max_size=50))
    def test_against_counting(self, values: list[float]) -> None:
        kept = Histogram((0.5, 5.0, 50.0))
        for value in values:
            kept.observe(value)
        counts = {s.labels["le"]: s.value for s in kept.samples({}) if s.suffix == "_bucket"}
        for bound in (0.5, 5.0, 50.0, math.inf):
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            assert counts[label] == sum(value <= bound for value in values)

    def test_one_for_each_value_of_a_label(self) -> None:
        kept = {"a": Histogram((1.0,)), "b": Histogram((1.0,))}
        kept["b"].observe(0.5)
        metric: Metric[Source] = histogram("x_seconds", "x", lambda _: kept, "of")
        assert 'x_seconds_bucket{of="a",le="1"} 0' in one(metric)
        assert 'x_seconds_count{of="b"} 1' in one(metric)


class TestDeclaring:
    def test_counters_of_a_dataclass(self) -> None:
        @dataclass
        class Counters:
            came: int = counted("Who came.")
            took_ms: int = counted("For how long.")

        kept = Counters(came=4)
        metrics: list[Metric[Source]] = counters_of(
            Counters, "p_", lambda _: kept, but=("took_ms",)
        )
        (family,) = families(metrics, Source())
        assert (family.name, family.help) == ("p_came_total", "Who came.")
        assert family.samples == (Sample(4),)

    def test_a_state(self) -> None:
        assert one_of(("a", "b"), "b") == {"a": 0.0, "b": 1.0}
        assert set(one_of(("a", "b"), "").values()) == {0.0}
