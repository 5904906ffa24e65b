"""Requests for the past by topic and broker: of reports and of advice, meaning the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconfig_manager.storing.demand import AdvisedDemand, RequestRates, demand_of_advice


def test_reports_and_advice_of_the_same_requests_are_the_same_demand() -> None:
    """In ten seconds six users at `a` and two at `b` ask for fire, three at `b` for flood."""
    rates = RequestRates(alpha=0.3, pairs_max=10)
    rates.count("a", [("fire", 6)], 10.0)
    rates.count("b", [("flood", 3), ("fire", 2)], 10.0)
    rates.close_period()
    reported = rates.demand(["a", "b"])
    advised = demand_of_advice(
        {
            "flood": AdvisedDemand(0.3, {"b": 1.0}),
            "fire": AdvisedDemand(0.8, {"a": 0.75, "b": 0.25}),
        },
        ["a", "b"],
    )
    assert reported.topics == advised.topics == ("fire", "flood")
    assert reported.brokers == advised.brokers
    assert reported.requests == pytest.approx(advised.requests)
    assert reported.requests.tolist() == [[0.6, 0.2], [0.0, 0.3]]


class TestAdvice:
    def test_what_is_left_is_spread_over_those_who_are_not_named(self) -> None:
        found = demand_of_advice({"t": AdvisedDemand(10.0, {"a": 0.6})}, ["a", "b", "c"])
        assert found.requests[0].tolist() == pytest.approx([6.0, 2.0, 2.0])

    def test_users_of_brokers_that_are_gone_are_somewhere(self) -> None:
        found = demand_of_advice({"t": AdvisedDemand(10.0, {"a": 0.6, "gone": 0.4})}, ["a", "b"])
        assert found.requests.tolist() == [[6.0, 4.0]]
        alone = demand_of_advice({"t": AdvisedDemand(10.0, {"a": 0.5, "gone": 0.5})}, ["a"])
        assert alone.requests.tolist() == [[10.0]]

    @given(
        st.floats(0, 1e6),
        st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1 / 6), max_size=6),
        st.lists(st.sampled_from("abcd"), min_size=1, unique=True),
    )
    def test_no_request_is_lost(
        self, rate: float, shares: dict[str, float], brokers: list[str]
    ) -> None:
        found = demand_of_advice({"t": AdvisedDemand(rate, shares)}, brokers)
        assert found.requests.sum() == pytest.approx(rate)
        assert (found.requests >= 0).all()


class TestReports:
    def test_rates_are_filtered(self) -> None:
        """eq. 12: the first observation is the first estimate."""
        rates = RequestRates(alpha=0.3, pairs_max=10)
        rates.count("a", [("t", 10)], 10.0)
        rates.close_period()
        rates.count("a", [("t", 10)], 5.0)
        rates.count("a", [("t", 10)], 5.0)
        rates.close_period()
        assert rates.demand(["a"]).requests.tolist() == [[pytest.approx(1.3)]]

    def test_who_does_not_report_counts_as_before_and_who_reports_nothing_as_none(self) -> None:
        rates = RequestRates(alpha=0.5, pairs_max=10)
        rates.count("a", [("t", 10)], 10.0)
        rates.close_period()
        rates.close_period()
        assert rates.demand(["a"]).requests.tolist() == [[1.0]]
        rates.count("a", [], 10.0)
        rates.close_period()
        assert rates.demand(["a"]).requests.tolist() == [[0.5]]

    def test_what_nobody_asks_for_is_forgotten(self) -> None:
        rates = RequestRates(alpha=0.5, pairs_max=1)
        rates.count("a", [("t", 10)], 10.0)
        for _ in range(30):
            rates.close_period()
            rates.count("a", [], 10.0)
        assert len(rates) == 0
        assert rates.demand(["a"]).topics == ()
        rates.count("a", [("new", 1)], 10.0)
        assert rates.pairs_refused == 0

    def test_pairs_past_the_bound_are_refused_and_counted(self) -> None:
        rates = RequestRates(alpha=0.3, pairs_max=2)
        rates.count("a", [("t", 1), ("u", 1), ("v", 1)], 1.0)
        rates.count("b", [("t", 1)], 1.0)
        assert rates.pairs_refused == 2
        # What is known goes on.
        rates.count("a", [("t", 1)], 1.0)
        rates.close_period()
        assert rates.demand(["a", "b"]).requests.tolist() == [[1.0, 0.0], [0.5, 0.0]]
        rates.forget_broker("a")
        assert len(rates) == 0
        rates.count("b", [("t", 4)], 2.0)
        rates.close_period()
        assert rates.demand(["b"]).requests.tolist() == [[2.0]]

    def test_reports_of_no_time_say_nothing(self) -> None:
        rates = RequestRates(alpha=0.3, pairs_max=2)
        rates.count("a", [("t", 4)], 0.0)
        rates.close_period()
        assert (len(rates), rates.demand(["a"]).topics) == (0, ())
