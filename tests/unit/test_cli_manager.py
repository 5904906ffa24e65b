"""What the manager's commands print, and how they read a policy's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.managers.manager_client import ManagerClient
from dynatops.cli.managers.network import describe_cluster, describe_cost
from dynatops.cli.managers.plan_text import change, describe_plan, headline
from dynatops.cli.managers.policy import changed, flat
from dynatops.cli.managers.reconfigure import follow
from dynatops.cli.managers.watch import describe_event
from reconfig_manager.model import policy
from reconfig_manager.model.plan import (
    Base,
    CostFigures,
    CostRate,
    Execution,
    Measurement,
    ModelFacts,
    Move,
    Paused,
    Phase,
    Plan,
    PlanState,
    Prediction,
    StepMessages,
)
from reconfig_manager.model.policy import Policy, SolverOptions
from reconfig_manager.rest.resources.cluster import ClusterView, ExecutingView, ModelView
from reconfig_manager.rest.resources.cost import ConstantsView, CostView
from reconfig_manager.rest.resources.reconfigurations import PlanView

FACTS = ModelFacts(
    completeness=1.0, brokers=32, topics=1_200, topics_published=1_000, subscriptions=9_000,
    events_per_s=250.0, periods=9,
)  # fmt: skip
PREDICTION = Prediction(
    algorithm="refine",
    cost_before=CostFigures(overhead=100_000, delay=500_000, total=600_000),
    cost_after=CostFigures(overhead=50_000, delay=400_000, total=450_000),
    benefit=150_000,
    moving_cost=977,
    threshold=100,
    t_free_s=3_600,
    accept=True,
    reason="benefit_above_cost",
    explanation="accept: it saves 150,000 and costs 977 to get there",
    seconds=0.254,
)
EXECUTION = Execution(
    epoch=4,
    fence=2,
    manager="m1",
    started_s=1_760_000_000.0,
    messages={"RCFG_INIT": StepMessages(manager=64), "RCFG_FINISH": StepMessages(brokers=10)},
    paused=Paused(brokers=32, mean_s=0.1, p99_s=0.2, max_s=0.25),
    ended_s=1_760_000_001.5,
)
MEASUREMENT = Measurement(
    before=CostRate(
        events=9_000, seconds=30, relays_per_event=2.0, hops_per_event=5.0, cost_per_event=7.0
    ),
    after=CostRate(
        events=9_000, seconds=30, relays_per_event=1.0, hops_per_event=4.0, cost_per_event=5.0
    ),
    predicted_benefit=150_000,
    measured_benefit=141_000,
    benefit_ratio=0.94,
    predicted_messages=977,
    measured_messages=74,
    messages_ratio=0.08,
    at_s=1_760_000_100.0,
)


def plan(**values: Any) -> dict[str, Any]:
    given = Plan(
        id="p2-7",
        created_s=1_760_000_000.0,
        changed_s=1_760_000_000.0,
        expires_s=1_760_001_000.0,
        actor="ann",
        reason="mornings are slow",
        options=SolverOptions(),
        base=Base(epoch=3, membership="m", brokers=32),
        model=FACTS,
    ).model_copy(update=values)
    document: dict[str, Any] = PlanView.of(given).model_dump(mode="json")
    return document


def moves(count: int) -> tuple[Move, ...]:
    return tuple(
        Move(broker_id=f"b{i}", from_node="a" * 16, to_node="b" * 16) for i in range(count)
    )


class TestPlans:
    def test_a_proposal(self) -> None:
        text = "\n".join(
            describe_plan(
                plan(
                    prediction=PREDICTION,
                    moves=moves(12),
                    note=f"{PREDICTION.explanation}; to be approved",
                )
            )
        )
        for part in (
            "plan p2-7: PROPOSED\n",
            "by ann",
            "mornings are slow",
            "state        to be approved\n",
            "accept: it saves 150,000 and costs 977 to get there",
            "refine in 0.25 s",
            "100% of 32 brokers heard, 1,200 topics, 250.0 events/s",
            "cost in 1h 0m    before    after\n",
            "relay messages  100,000   50,000  -50.0%",
            "benefit 150,000 messages in 1h 0m, price 977",
            "12 of 32 brokers to move",
            f"  b9: {'a' * 16} -> {'b' * 16}\n  and 2 more; --json has them all",
        ):
            assert part in text
        assert text.count("150,000 and costs") == 1

    def test_one_that_was_executed_and_measured(self) -> None:
        text = "\n".join(
            describe_plan(
                plan(
                    state=PlanState.COMMITTED,
                    phase=Phase.FINISHING,
                    prediction=PREDICTION,
                    moves=moves(2),
                    approved_by="bob",
                    execution=EXECUTION,
                    measurement=MEASUREMENT,
                    flags=("prediction_off",),
                )
            )
        )
        for part in (
            "approved     by bob",
            "2 of 32 brokers moved",
            "epoch 4, led by m1; took 1.50 s",
            "32 brokers, mean 100 ms, 99% 200 ms, longest 250 ms",
            "74: RCFG_INIT 64, RCFG_FINISH 10",
            "benefit     150,000   141,000   0.94",
            "relays              2.000  1.000  -50.0%",
            "look at: prediction off",
        ):
            assert part in text

    def test_one_that_was_rolled_back(self) -> None:
        execution = EXECUTION.model_copy(
            update={"failure": "b3 is gone", "stragglers": ("b3",), "paused": Paused()}
        )
        text = "\n".join(
            describe_plan(
                plan(
                    state=PlanState.ROLLED_BACK,
                    phase=Phase.ROLLING_BACK,
                    prediction=PREDICTION,
                    execution=execution,
                )
            )
        )
        assert "rolled back  b3 is gone" in text
        assert "stragglers   b3" in text
        assert "paused" not in text

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({}, "PROPOSED, being computed"),
            ({"prediction": PREDICTION}, "PROPOSED"),
            (
                {"state": PlanState.EXECUTING, "phase": Phase.ROLLING_BACK},
                "EXECUTING, rolling back",
            ),
            ({"state": PlanState.CANCELLED}, "CANCELLED"),
        ],
    )
    def test_headlines(self, values: dict[str, Any], expected: str) -> None:
        assert headline(plan(**values)) == expected

    def test_changes(self) -> None:
        assert change(200.0, 150.0) == "-25.0%"
        assert change(0.0, 1.0) == ""


class TestFollowing:
    class Client(ManagerClient):
        """Answers one version after the other."""

        def __init__(self, *answers: dict[str, Any] | CommandError) -> None:
            super().__init__("http://127.0.0.1:1")
            self.answers = list(answers)

        def get(self, path: str, **query: str | int) -> Any:
            assert path == "/v1/reconfigurations/p2-7"
            answer = self.answers.pop(0)
            if isinstance(answer, CommandError):
                raise answer
            return answer

    def test_a_dry_run_is_followed_until_it_is_computed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        client = self.Client(plan(), plan(prediction=PREDICTION))
        assert follow(client, plan(), to_its_end=False)["prediction"] is not None
        assert capsys.readouterr().err == "PROPOSED, being computed\n"

    def test_an_execution_is_followed_to_its_end(self, capsys: pytest.CaptureFixture[str]) -> None:
        going = {"state": PlanState.EXECUTING, "prediction": PREDICTION}
        client = self.Client(
            plan(phase=Phase.FREEZING, **going),
            plan(phase=Phase.MOVING, **going),
            plan(phase=Phase.MOVING, **going),
            plan(state=PlanState.COMMITTED),
        )
        first = plan(prediction=PREDICTION)
        assert follow(client, first, to_its_end=True)["state"] == "COMMITTED"
        assert capsys.readouterr().err.splitlines() == [
            "PROPOSED", "EXECUTING, freezing", "EXECUTING, moving",
        ]  # fmt: skip

    def test_it_does_not_wait_for_ever(self) -> None:
        client = self.Client(*[plan()] * 5)
        with pytest.raises(CommandError, match="still PROPOSED, being computed"):
            follow(client, plan(), to_its_end=True, wait_s=0.0)


class TestViews:
    CLUSTER = ClusterView(
        version="1.0", manager="m1", fence=3, epoch=2, mode=policy.Mode.AUTO, brokers=32,
        brokers_attached=31, topics=1_200, subscriptions=9_000, sessions=640, events_per_s=250.0,
        model=ModelView(ready=False, problem="nobody has reported", completeness=0.0, periods=0),
        executing=ExecutingView(plan_id="p3-1", phase=Phase.MOVING, since_s=0),
        proposals=2,
    )  # fmt: skip

    def test_the_cluster(self) -> None:
        text = "\n".join(describe_cluster(self.CLUSTER.model_dump(mode="json")))
        for part in (
            "m1 (fence 3)",
            "32, 1 not connected; 640 sessions",
            "1,200, 9,000 subscriptions of brokers, 250.0 events/s",
            "epoch 2",
            "auto",
            "too thin to plan: nobody has reported",
            "plan p3-1 is being executed: moving; 2 proposals wait for approval",
        ):
            assert part in text

    @pytest.mark.parametrize(
        ("reconfigurable", "expected"),
        [(True, "worth looking for a better placement"), (False, "too little to save")],
    )
    def test_the_cost(self, reconfigurable: bool, expected: str) -> None:
        cost = CostView(
            t_free_s=1_800,
            delay_weight=1,
            cost=CostFigures(overhead=100_000, delay=500_000, total=600_000),
            relays_per_event=1.25,
            threshold=5_000,
            reconfigurable=reconfigurable,
            moving_cost_max=50_000,
            constants=ConstantsView(a=6, b=0.5, c=1, plans=2),
            model=FACTS,
        )
        text = "\n".join(describe_cost(cost.model_dump(mode="json")))
        for part in (
            "cost in 30m 0s", "600,000", "1.250 relay messages an event", expected,
            "calibrated by 2 plan(s)",
        ):  # fmt: skip
            assert part in text


class TestEvents:
    @pytest.mark.parametrize(
        ("kind", "data", "expected"),
        [
            (
                "plan",
                {"plan": "p1", "state": "EXECUTING", "phase": "FREEZING", "note": "go"},
                "plan p1: EXECUTING, freezing: go",
            ),
            (
                "plan",
                {"plan": "p1", "state": "COMMITTED", "phase": "FINISHING", "note": "",
                 "benefit": 900.0, "measured_benefit": 1_000.0, "flags": ["prediction_off"]},
                "plan p1: saves 1,000 messages, 900 predicted, prediction off",
            ),
            ("broker", {"broker": "b1", "state": "gone"}, "broker b1: gone"),
            ("policy", {"policy": {"mode": "off"}, "version": 3}, "policy: off, version 3"),
            ("leader", {"manager": "m2", "fence": 4}, "m2 leads (fence 4)"),
            ("deposed", {"manager": "m2"}, "m2 leads no more"),
            ("overflow", {"message": "too slow"}, "! too slow"),
            ("weather", {"sky": "blue"}, "weather: sky blue"),
            ("plan", {"plan": "p1"}, "plan: plan p1"),
        ],
    )  # fmt: skip
    def test_each_is_a_line(self, kind: str, data: Mapping[str, Any], expected: str) -> None:
        assert describe_event(kind, data) == expected


class TestPolicies:
    POLICY = Policy().model_dump(mode="json")

    def test_parts_are_changed_and_the_rest_stays(self) -> None:
        result = changed(
            self.POLICY,
            ["mode=auto", "t_free_s=1800", "solver.max_moves=10", 'windows=[{"days": ["sat"]}]'],
        )
        expected = Policy.model_validate(
            {
                "mode": "auto",
                "t_free_s": 1800,
                "solver": {"max_moves": 10},
                "windows": [{"days": ["sat"]}],
            }
        )
        assert Policy.model_validate(result) == expected
        assert changed(result, ["solver.max_moves=null"])["solver"]["max_moves"] is None
        assert Policy().model_dump(mode="json") == self.POLICY

    @pytest.mark.parametrize(
        "assignment", ["mode", "moods=auto", "solver=refine", "solver.speed=9", "mode.x=1", "=1"]
    )
    def test_names_that_are_none(self, assignment: str) -> None:
        with pytest.raises(UsageError):
            changed(self.POLICY, [assignment])

    def test_names_are_those_that_are_shown(self) -> None:
        names = [name for name, _ in flat(self.POLICY)]
        assert "solver.algorithm" in names
        assert "mode" in names
        assert "solver" not in names


class TestClient:
    @pytest.mark.parametrize("urls", ["", " , ", "127.0.0.1:7480", "ftp://host", "http://"])
    def test_what_is_no_url(self, urls: str) -> None:
        with pytest.raises(UsageError):
            ManagerClient(urls)
