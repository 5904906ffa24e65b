"""What brokers report, and the model that comes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random

import numpy as np
import pytest

from dynatops.v1.manager_pb2 import LoadReport, Registration, RoundTrip, TopicCount
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.identifiers import key_of
from overlay.chord.round_trips import FLOOR_MS
from reconfig_manager.model.core_settings import MonitorSettings
from reconfig_manager.model.network import Model
from reconfig_manager.model.plan import Move
from reconfig_manager.model.policy import DelayIn, Policy, RatesFrom, SolverOptions
from reconfig_manager.model.rates import TopicNumbers
from reconfig_manager.model.refusals import ModelTooThin
from reconfig_manager.monitor.members import Members
from reconfig_manager.monitor.monitor import Monitor, RateAdvice, round_trip_matrix
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.ports import AgentId

SETTINGS = MonitorSettings(report_period_s=10.0, period_s=10.0, periods_min=1, window_s=25.0)
NOW_S = 1000.0


class Network:
    """Brokers that report whenever the test says."""

    def __init__(self, brokers: int = 2, settings: MonitorSettings = SETTINGS) -> None:
        self.now_s = NOW_S
        self.members = Members(gone_s=3.0, brokers_max=100)
        self.monitor = Monitor(settings, NOW_S)
        self.agents = [AgentId(f"b{i}", 1, i) for i in range(brokers)]
        for agent in self.agents:
            self.members.register(agent, registration(agent), NOW_S)

    def report(
        self,
        broker: int,
        published: Mapping[str, int] | None = None,
        seconds: float = 10.0,
        subscribed: Iterable[str] = (),
        unsubscribed: Iterable[str] = (),
        round_trips: Mapping[str, float] | None = None,
    ) -> None:
        report = LoadReport(
            window_s=seconds,
            publications=[TopicCount(topic=t, events=n) for t, n in (published or {}).items()],
            subscribed=list(subscribed),
            unsubscribed=list(unsubscribed),
            round_trips=[RoundTrip(broker_id=b, ms=ms) for b, ms in (round_trips or {}).items()],
        )
        self.monitor.report(self.agents[broker], report, self.now_s)

    def period(self) -> None:
        self.now_s += 10.0
        self.monitor.tick(self.now_s)

    def model(self, policy: Policy | None = None) -> Model:
        return self.monitor.snapshot(
            self.members, policy or Policy(), self.members.base(0), self.now_s
        )


def registration(agent: AgentId) -> Registration:
    return Registration(
        node=NodeRef(
            node_id=key_of(agent.broker_id),
            broker_id=agent.broker_id,
            incarnation=agent.incarnation,
        )
    )


class TestRates:
    def test_the_first_period_is_the_first_estimate(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.period()
        assert network.monitor.rates() == {"a": 5.0}

    def test_later_ones_lean_on_it(self) -> None:
        """eq. 12, alpha 0.3"""
        network = Network()
        for events in (50, 100, 0):
            network.report(0, {"a": events})
            network.period()
        after_two = 0.7 * 5.0 + 0.3 * 10.0
        assert network.monitor.rates() == {"a": pytest.approx(0.7 * after_two)}

    def test_brokers_add_up(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.report(1, {"a": 20}, seconds=5.0)
        network.period()
        assert network.monitor.rates() == {"a": pytest.approx(9.0)}

    def test_two_reports_in_a_period_are_of_twice_the_time(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.report(0, {"a": 30})
        network.period()
        assert network.monitor.rates() == {"a": pytest.approx(4.0)}

    def test_a_late_report_is_no_silence(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.report(1, {"b": 10})
        network.period()
        network.report(1, {"b": 10})
        network.period()
        assert network.monitor.rates() == {"a": 5.0, "b": 1.0}

    def test_a_silent_network_teaches_nothing(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.period()
        network.period()
        assert network.monitor.periods == 1

    def test_a_broker_that_is_gone_publishes_nothing(self) -> None:
        network = Network()
        network.report(0, {"a": 50})
        network.report(1, {"b": 10})
        network.period()
        network.monitor.forget_broker("b0")
        network.report(1, {"b": 10})
        network.period()
        assert network.monitor.rates()["a"] == pytest.approx(3.5)

    def test_a_topic_that_changes_hosts_keeps_its_rate(self) -> None:
        network = Network()
        for host in (0, 1):
            network.report(0, {"a": 50} if host == 0 else {})
            network.report(1, {"a": 50} if host == 1 else {})
            network.period()
        assert network.monitor.rates() == {"a": pytest.approx(5.0)}

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
    def test_counts_of_no_time_are_ignored(self, seconds: float) -> None:
        network = Network()
        network.report(0, {"a": 50}, seconds=seconds)
        network.period()
        assert network.monitor.rates() == {}

    def test_the_next_leader_goes_on_from_what_was_kept(self) -> None:
        network = Network()
        network.monitor.restore({"a": 10.0, "bad": float("nan"), "worse": -1.0})
        network.report(0, {"a": 0})
        network.period()
        assert network.monitor.rates() == {"a": pytest.approx(7.0)}


class TestSubscriptions:
    def test_differences_add_up(self) -> None:
        network = Network()
        network.report(0, subscribed=["a", "b", "c"])
        network.report(0, subscribed=["d"], unsubscribed=["b", "never"])
        assert network.monitor.topics_of("b0") == ["a", "c", "d"]
        network.report(1, subscribed=["d"])
        assert network.monitor.subscribers("d") == ["b0", "b1"]
        assert network.monitor.subscribers("b") == []
        assert network.monitor.subscribers("never") == []
        assert network.monitor.subscriptions_by_topic() == {"a": 1, "c": 1, "d": 2}

    def test_a_new_stream_begins_again(self) -> None:
        network = Network()
        network.report(0, subscribed=["a", "b"])
        network.agents[0] = AgentId("b0", 1, 7)
        network.report(0, subscribed=["c"])
        assert network.monitor.topics_of("b0") == ["c"]

    def test_past_the_limit_the_model_says_so(self) -> None:
        settings = SETTINGS.model_copy(update={"subscriptions_max": 3, "topics_max": 3})
        network = Network(settings=settings)
        network.report(0, {"a": 10, "x": 5, "y": 1, "z": 1}, subscribed=["a", "x", "y", "z"])
        network.report(1)
        network.period()
        model = network.model()
        assert len(model.facts.notes) == 2
        assert network.monitor.topics_of("b0") == ["a", "x", "y"]

    def test_room_is_made_again(self) -> None:
        network = Network(settings=SETTINGS.model_copy(update={"subscriptions_max": 2}))
        network.report(0, subscribed=["a", "b"])
        network.report(0, unsubscribed=["a"])
        network.report(1, subscribed=["c"])
        assert network.monitor.topics_of("b1") == ["c"]


class TestForgetting:
    def test_idle_topics_that_nobody_wants(self) -> None:
        settings = SETTINGS.model_copy(update={"topic_idle_periods": 2, "topics_max": 2})
        network = Network(settings=settings)
        network.report(0, {"old": 5}, subscribed=["kept"])
        network.period()
        for _ in range(4):
            network.report(0)
            network.period()
        network.report(0, {"new": 5})
        network.period()
        assert network.monitor.rates() == {"new": 0.5}
        assert network.monitor.topics_of("b0") == ["kept"]

    def test_numbers_are_given_out_again(self) -> None:
        numbers = TopicNumbers(2)
        assert [numbers.number(name) for name in ("a", "b", "c", "a")] == [0, 1, None, 0]
        numbers.forget_topic(0)
        assert numbers.number("c") == 0
        assert (numbers.known("a"), numbers.name(0), numbers.refused) == (None, "c", 1)


class TestTooThin:
    def test_nobody_there(self) -> None:
        with pytest.raises(ModelTooThin, match="two at least"):
            Network(brokers=1).model()

    def test_too_few_heard(self) -> None:
        network = Network(brokers=4)
        for broker in range(3):
            network.report(broker, {"a": 1}, subscribed=["a"])
        network.period()
        assert network.monitor.completeness(network.members, network.now_s) == 0.75
        with pytest.raises(ModelTooThin, match="3 of 4 brokers reported"):
            network.model()
        assert network.model(Policy(completeness_min=0.75)).facts.completeness == 0.75

    def test_those_heard_long_ago_do_not_count(self) -> None:
        network = Network()
        network.report(0, {"a": 1})
        network.report(1)
        network.period()
        network.now_s += 30.0
        with pytest.raises(ModelTooThin, match="0 of 2"):
            network.model()

    def test_too_few_periods(self) -> None:
        network = Network()
        network.report(0, {"a": 1})
        network.report(1)
        with pytest.raises(ModelTooThin, match=r"0 period\(s\)"):
            network.model()

    def test_nothing_published(self) -> None:
        network = Network()
        network.report(0, subscribed=["a"])
        network.report(1)
        network.period()
        with pytest.raises(ModelTooThin, match="no publications"):
            network.model()


class TestModel:
    def network(self, settings: MonitorSettings = SETTINGS) -> Network:
        network = Network(3, settings)
        network.report(0, {"a": 100, "lonely": 10}, subscribed=["a", "quiet"])
        network.report(1, {"b": 20}, subscribed=["a", "b"])
        network.report(2, subscribed=["quiet"])
        network.period()
        return network

    def test_only_what_costs_anything_has_a_price(self) -> None:
        model = self.network().model()
        assert model.topics == 4
        assert model.facts.topics_published == 3
        assert model.facts.subscriptions == 5
        assert sorted(model.rates.tolist()) == [2.0, 10.0]
        assert model.events_per_s == 13.0

    def test_publications_are_for_t_free(self) -> None:
        model = self.network().model()
        hour = model.problem(3600.0, 1.0, MovingCost())
        minute = model.problem(60.0, 1.0, MovingCost())
        assert hour.topics == 4
        cost, less = (p.model.evaluate(p.place).total for p in (hour, minute))
        assert cost == pytest.approx(60 * less)
        assert less > 0

    def test_brokers_stand_where_they_say(self) -> None:
        network = self.network()
        model = network.model()
        problem = model.problem(60.0, 1.0, MovingCost())
        ids = problem.model.geometry.node_ids[problem.place].tolist()
        assert ids == [key_of(name) for name in ("b0", "b1", "b2")]

    def test_moves_and_back(self) -> None:
        model = self.network().model()
        problem = model.problem(60.0, 1.0, MovingCost())
        place = problem.place[[1, 0, 2]]
        moves = model.moves(problem, place)
        assert [move.broker_id for move in moves] == ["b0", "b1"]
        assert moves[0] == Move(
            broker_id="b0", from_node=f"{key_of('b0'):016x}", to_node=f"{key_of('b1'):016x}"
        )
        assert np.array_equal(model.place_after(problem, moves), place)

    def test_does_not_depend_on_who_reported_first(self) -> None:
        models = []
        for order in ((0, 1), (1, 0)):
            network = Network()
            for broker in order:
                network.report(
                    broker, {f"t{broker}": 10, "x": 3}, subscribed=["t0", "t1", "x"][broker:]
                )
            network.period()
            models.append(network.model())
        assert models[0].keys == models[1].keys
        assert np.array_equal(models[0].rates, models[1].rates)
        for mine, yours in zip(models[0].subscriptions, models[1].subscriptions, strict=True):
            assert np.array_equal(mine, yours)

    def test_advice_while_it_is_fresh_and_nobody_has_to_ask_for_it(self) -> None:
        network = self.network()
        assert network.model().facts.rates_from is RatesFrom.REPORTS
        assert network.model().facts.notes == ()
        advised = {**dict.fromkeys(network.monitor.rates(), 0.0), "a": 7.0}
        network.monitor.advise(RateAdvice(advised, network.now_s - 90.0, math.inf))
        facts = network.model().facts
        assert (facts.rates_from, facts.rates_age_s) == (RatesFrom.ADVICE, 90.0)
        assert facts.events_per_s == 7.0
        assert network.model(Policy(rates_from=RatesFrom.REPORTS)).events_per_s == 13.0

    def test_stale_advice_is_not_used_and_the_plan_says_so(self) -> None:
        network = self.network()
        network.monitor.advise(RateAdvice({"a": 7.0}, network.now_s - 8000, network.now_s - 800))
        facts = network.model().facts
        assert (facts.rates_from, facts.rates_age_s) == (RatesFrom.REPORTS, None)
        assert facts.events_per_s == 13.0
        assert "computed 8,000 s ago" in facts.notes[0]

    def test_topics_that_advice_does_not_know_are_as_reported(self) -> None:
        """It is as old as the last run of its job: what began since is in reports alone."""
        network = self.network()
        network.monitor.advise(RateAdvice({"a": 7.0}, network.now_s, math.inf))
        reported = network.monitor.rates()
        assert network.model().events_per_s == 7.0 + sum(reported.values()) - reported["a"]

    def test_a_policy_may_insist_on_advice(self) -> None:
        network, policy = self.network(), Policy(rates_from=RatesFrom.ADVICE)
        for advice in (None, RateAdvice({"a": 7.0}, network.now_s - 8000, network.now_s - 800)):
            if advice is not None:
                network.monitor.advise(advice)
            with pytest.raises(ModelTooThin, match="rates_from=advice"):
                network.model(policy)
        network.monitor.advise(RateAdvice({"a": 7.0}, network.now_s, math.inf))
        assert network.model(policy).facts.rates_from is RatesFrom.ADVICE


class TestRoundTrips:
    POLICY = Policy(solver=SolverOptions(delay_in=DelayIn.RTT))

    def test_only_with_every_pair(self) -> None:
        network = TestModel().network()
        network.report(0, {"a": 1}, round_trips={"b1": 5.0, "b2": 8.0})
        model = network.model(self.POLICY)
        assert model.round_trips is None
        assert "not every round trip time is known" in model.facts.notes[0]
        network.report(1, round_trips={"b2": 2.0, "b0": 6.0})
        model = network.model(self.POLICY)
        assert model.facts.delay_in == "rtt"
        assert model.round_trips is not None
        mean_ms = (5 + 8 + 6 + 2 + 8 + 2) / 6
        assert model.facts.rtt_mean_ms == pytest.approx(mean_ms)
        in_ms = model.round_trips * mean_ms
        assert in_ms == pytest.approx(np.array([[0, 5, 8], [6, 0, 2], [8, 2, 0]]))
        assert network.model().round_trips is None
        assert network.model().facts.rtt_mean_ms is None

    @pytest.mark.parametrize("factor", [0.5, 10.0, 250.0])
    def test_delays_are_on_the_scale_of_messages(self, factor: float) -> None:
        """A network that is slower all over is no other problem: messages count as much."""
        trips = ((5.0, 8.0), (6.0, 3.0), (9.0, 4.0))
        costs = []
        for times in (1.0, factor):
            network = TestModel().network()
            for broker, ms in enumerate(trips):
                others = [f"b{i}" for i in range(3) if i != broker]
                told = {name: times * value for name, value in zip(others, ms, strict=True)}
                network.report(broker, round_trips=told)
            problem = network.model(self.POLICY).problem(3600.0, 1.0, MovingCost())
            costs.append(problem.model.evaluate(problem.place))
        assert costs[0].overhead == costs[1].overhead
        assert costs[0].total == pytest.approx(costs[1].total)

    def test_what_differs_by_noise_alone_is_hops(self) -> None:
        """On one floor brokers answer when they come to it: nothing to be gained from that."""
        rng = Random(1)
        network = TestModel().network()
        by_hops = network.model()
        for broker in range(3):
            noise = {f"b{i}": rng.uniform(0.1, FLOOR_MS) for i in range(3) if i != broker}
            network.report(broker, round_trips=noise)
        model = network.model(self.POLICY)
        assert (model.facts.delay_in, model.facts.rtt_mean_ms) == ("rtt", FLOOR_MS)
        costs = []
        for known in (by_hops, model):
            problem = known.problem(3600.0, 1.0, MovingCost())
            costs.append(problem.model.evaluate(problem.place))
        assert costs[0] == costs[1]

    def test_of_a_network_that_is_too_large_delays_are_in_hops(self) -> None:
        network = TestModel().network(SETTINGS.model_copy(update={"round_trip_brokers_max": 2}))
        for broker in range(3):
            network.report(broker, round_trips={f"b{i}": 5.0 for i in range(3) if i != broker})
        model = network.model(self.POLICY)
        assert (model.round_trips, model.facts.delay_in) == (None, "hops")
        assert model.facts.notes == ("round trips are kept of up to 2 brokers: delays are in hops",)

    def test_what_is_known_stays_up_to_date_at_the_limit(self) -> None:
        network = TestModel().network(SETTINGS.model_copy(update={"round_trip_brokers_max": 3}))
        for ms in (5.0, 50.0):
            for broker in range(3):
                trips = {f"gone{i}": 1.0 for i in range(2)} if ms == 5.0 else {}
                trips |= {f"b{i}": ms for i in range(3) if i != broker}
                network.report(broker, round_trips=dict(sorted(trips.items())))
        assert network.model(self.POLICY).facts.rtt_mean_ms == 50.0

    @pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), float("inf")])
    def test_none_is_no_time(self, ms: float) -> None:
        network = TestModel().network()
        network.report(0, {"a": 1}, round_trips={"b1": ms, "b2": 8.0})
        network.report(1, round_trips={"b2": 2.0})
        assert network.model(self.POLICY).round_trips is None

    def test_the_matrix(self) -> None:
        assert round_trip_matrix(["a", "b"], [{}, {}]) is None
        matrix = round_trip_matrix(["a", "b"], [{}, {"a": 3.0}])
        assert matrix is not None
        assert matrix.tolist() == [[0, 3], [3, 0]]


class TestMembers:
    def test_who_is_let_in(self) -> None:
        members = Members(gone_s=3.0, brokers_max=1)
        first = AgentId("b0", 5, 1)
        assert members.register(first, registration(first), 0.0).new
        problems = [
            members.register(AgentId(name, incarnation, 2), registration(agent), 0.0).problem
            for name, incarnation, agent in (
                ("b1", 5, first),
                ("b0", 4, AgentId("b0", 4, 2)),
                ("b0", 6, first),
                ("b2", 1, AgentId("b2", 1, 1)),
            )
        ]
        assert ["of broker" in problems[0], "newer stream" in problems[1]] == [True, True]
        assert ["another incarnation" in problems[2], "1 brokers" in problems[3]] == [True, True]

    def test_a_new_stream_takes_the_place_of_the_old(self) -> None:
        members = Members(gone_s=3.0, brokers_max=9)
        first, second = AgentId("b0", 5, 1), AgentId("b0", 5, 2)
        members.register(first, registration(first), 0.0)
        admission = members.register(second, registration(second), 1.0)
        assert (admission.replaced, admission.new, admission.on_new_stream) == (first, False, True)
        members.ended(first, 2.0)
        assert members.sweep(100.0) == []
        members.ended(second, 2.0)
        assert members.sweep(4.9) == []
        assert [member.broker_id for member in members.sweep(5.0)] == ["b0"]

    def test_two_hosts_of_one_node_are_no_ground_to_plan_on(self) -> None:
        members = Members(gone_s=3.0, brokers_max=9)
        for name in ("b0", "b1"):
            agent = AgentId(name, 1, 1)
            frame = registration(agent)
            frame.node.node_id = 7
            members.register(agent, frame, 0.0)
        assert members.unready() == "b0 and b1 both say that they host node 0000000000000007"
