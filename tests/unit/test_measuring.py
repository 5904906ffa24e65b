"""What was gained and spent, beside what was predicted; and what is learnt from it."""

from __future__ import annotations

import pytest

from reconfig_manager.model.core_settings import MeasuringSettings
from reconfig_manager.model.plan import CostRate, Plan, PlanState, StepMessages
from reconfig_manager.model.policy import Mode, Policy, SolverOptions
from reconfig_manager.monitor.measuring import (
    MESSAGES_ABOVE_BOUND,
    NOT_MEASURED,
    PREDICTION_OFF,
    SAMPLES_MAX,
    Meter,
    calibrated,
    measure,
)
from reconfig_manager.ports import Constants
from tests.support.managing import World
from tests.support.workday import Workday

SETTINGS = MeasuringSettings(events_min=10)
QUICK = SolverOptions(iterations_max=40, budget_s=60.0)


def counters(stamped: int, relayed: int, hops: int, way_ms: float = 0.0) -> dict[str, int]:
    return {
        "stamped_events": stamped,
        "relayed_events": relayed,
        "tree_delivered_hops": hops,
        "tree_delivered_way_us": round(1_000 * way_ms),
    }


class TestMeter:
    def test_of_each_event(self) -> None:
        meter = Meter(100.0)
        for i in range(4):
            meter.report("b0", counters(10 * i, 5 * i, 0), 10.0 * i)
            # Reports at its own times, and only relays.
            meter.report("b1", counters(0, 15 * i, 40 * i), 10.0 * i + 3.0)
        rate = meter.between(0.0, 100.0, 0.5)
        assert rate is not None
        assert rate.relays_per_event == pytest.approx(2.0)
        assert rate.hops_per_event == pytest.approx(4.0)
        assert rate.cost_per_event == pytest.approx(4.0)
        assert (rate.events, rate.seconds) == (30.0, 30.0)

    def test_delays_in_round_trips_are_on_the_scale_of_messages(self) -> None:
        """Three hops of 40 ms and one relay an event, where the mean round trip is 60 ms."""
        meter = Meter(100.0)
        for i in range(4):
            meter.report("b0", counters(10 * i, 10 * i, 30 * i, 1_200.0 * i), 10.0 * i)
        rate = meter.between(0.0, 100.0, 0.5, rtt_mean_ms=60.0)
        assert rate is not None
        assert (rate.hops_per_event, rate.way_ms_per_event) == (3.0, 120.0)
        assert rate.cost_per_event == pytest.approx(1.0 + 0.5 * 120.0 / 60.0)

    def test_between_times(self) -> None:
        meter = Meter(100.0)
        for i in range(10):
            meter.report("b0", counters(10 * i, 10 * i if i < 5 else 50, 0), 10.0 * i)
        early, late = meter.between(0.0, 50.0, 1.0), meter.between(50.0, 100.0, 1.0)
        assert early is not None
        assert late is not None
        assert (early.relays_per_event, late.relays_per_event) == (1.0, 0.0)

    def test_a_restarted_broker_counts_from_nothing(self) -> None:
        meter = Meter(100.0)
        for i, (stamped, relayed) in enumerate(((100, 100), (110, 110), (5, 5), (15, 15))):
            meter.report("b0", counters(stamped, relayed, 0), 10.0 * i)
        rate = meter.between(0.0, 100.0, 1.0)
        assert rate is not None
        assert (rate.events, rate.relays_per_event) == (25.0, 1.0)

    def test_nothing_to_go_by(self) -> None:
        meter = Meter(100.0)
        assert meter.between(0.0, 100.0, 1.0) is None
        meter.report("b0", counters(10, 0, 0), 1.0)
        assert meter.between(0.0, 100.0, 1.0) is None
        meter.report("b0", counters(10, 0, 0), 2.0)
        assert meter.between(0.0, 100.0, 1.0) is None

    def test_is_bounded(self) -> None:
        meter = Meter(100.0)
        for i in range(10_000):
            meter.report("b0", counters(i, i, i), 0.1 * i)
        samples = meter._brokers["b0"].samples
        assert len(samples) <= SAMPLES_MAX + 2
        rate = meter.between(950.0, 1000.0, 1.0)
        assert rate is not None
        assert rate.seconds > 45.0


def executed(**messages: int) -> Plan:
    world = World(8)
    plan = world.begin(4)
    world.run(5.0)
    plan = world.stored(plan)
    assert plan.state is PlanState.COMMITTED
    assert plan.execution is not None
    counted = {name: StepMessages(manager=n, brokers=n) for name, n in messages.items()}
    return plan.model_copy(
        update={"execution": plan.execution.model_copy(update={"messages": counted})}
        if messages
        else {}
    )


def rate(cost: float, events: float = 1000.0) -> CostRate:
    return CostRate(
        events=events, seconds=60.0, relays_per_event=cost, hops_per_event=0.0, cost_per_event=cost
    )


class TestMeasurement:
    # The plan predicts a benefit of a million messages.
    def plan(self) -> Plan:
        plan = executed()
        assert plan.prediction is not None
        prediction = plan.prediction.model_copy(update={"events": 1e6})
        return plan.model_copy(update={"prediction": prediction})

    @pytest.mark.parametrize(
        ("after", "ratio", "off"), [(2.0, 1.0, False), (2.1, 0.9, False), (1.8, 1.2, True)]
    )
    def test_beside_the_prediction(self, after: float, ratio: float, off: bool) -> None:
        plan = measure(self.plan(), rate(3.0), rate(after), SETTINGS, 9.0)
        assert plan.measurement is not None
        assert plan.measurement.benefit_ratio == pytest.approx(ratio)
        assert plan.measurement.measured_benefit == pytest.approx(1e6 * ratio)
        assert (PREDICTION_OFF in plan.flags) is off

    def test_a_plan_by_round_trips_is_measured_as_it_was_predicted(self) -> None:
        """Delays are in what is measured: the prediction has them, too."""
        made = self.plan()
        facts = made.model.model_copy(update={"delay_in": "rtt", "rtt_mean_ms": 60.0})
        plan = measure(
            made.model_copy(update={"model": facts}), rate(3.0), rate(2.0), SETTINGS, 9.0
        )
        assert plan.measurement is not None
        assert made.prediction is not None
        assert plan.measurement.predicted_benefit == made.prediction.benefit
        assert plan.measurement.benefit_ratio == pytest.approx(1.0)

    def test_too_little_to_say_anything(self) -> None:
        for before, after in ((None, rate(1.0)), (rate(3.0, events=5.0), rate(1.0))):
            plan = measure(self.plan(), before, after, SETTINGS, 9.0)
            assert plan.measurement is None
            assert plan.flags == (NOT_MEASURED,)

    def test_messages_above_what_eq_11_allows(self) -> None:
        plan = executed(RCFG_INIT=600)
        measured = measure(plan, None, None, SETTINGS, 9.0)
        assert MESSAGES_ABOVE_BOUND in measured.flags

    def test_of_a_day(self) -> None:
        """The real solver, noisy counts, what brokers count: within the tolerance."""
        day = Workday(Policy(mode=Mode.AUTO, hysteresis_periods=1, solver=QUICK), events_per_s=0.05)
        day.begin()
        day.run(2 * 3600.0)
        (plan,) = day.of(PlanState.COMMITTED)
        assert plan.measurement is not None
        assert plan.measurement.benefit_ratio == pytest.approx(1.0, abs=0.1)
        assert 0 < plan.measurement.messages_ratio < 1
        assert plan.flags == ()


class TestCalibration:
    def test_leans_on_what_was_counted(self) -> None:
        plan = executed()
        first = calibrated(Constants(), plan, MeasuringSettings())
        assert first.a == 6.0
        # 4 movers, 8 brokers: 2 commands with answers, 2 messages of their own for the state.
        assert first.b == pytest.approx(1.25 * 4 * (2 + 2 + 2) / (9 * 4))
        # All 8 repaired trees, for 4 movers among 5 topics.
        assert first.c == pytest.approx(1.25 * 8 * 3 / (5 * 3 * 4))
        assert first.plans == 1

    def test_up_at_once_and_down_slowly(self) -> None:
        settings = MeasuringSettings(constants_from_plans=4)
        constants = Constants(a=6.0, b=2.0, c=0.01, plans=10)
        after = calibrated(constants, executed(), settings)
        assert 0.75 * 2.0 < after.b < 2.0
        assert after.c == pytest.approx(1.25 * 8 * 3 / 60)

    def test_within_bounds(self) -> None:
        constants = calibrated(Constants(), executed(RCFG_INIT=10**6), MeasuringSettings())
        assert (constants.a, constants.b, constants.c) == (60.0, 0.01, 0.01)

    def test_a_plan_that_left_somebody_behind_teaches_nothing(self) -> None:
        plan = executed()
        assert plan.execution is not None
        odd = plan.execution.model_copy(update={"stragglers": ("b1",)})
        changed = plan.model_copy(update={"execution": odd})
        assert calibrated(Constants(), changed, MeasuringSettings()) == Constants()

    def test_is_kept(self) -> None:
        world = World(8)
        world.begin(4)
        world.run(5.0)
        assert world.store.kept.constants.plans == 1
        world.elect()
        assert world.manager.leader_state.constants.plans == 1
