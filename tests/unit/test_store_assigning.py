"""What a manager tells a store to keep: obeyed once it is on disk, refused where it is too old."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import RememberAssignment, ReplyToManager
from broker_agent.core.stores.log.log_requests import AppendStored
from broker_agent.core.stores.store_options import StoreAssignment, StoreOptions
from broker_agent.runtime.disk.assignment_file import AssignmentFile
from dynatops.kit.filters import Filter
from dynatops.v1.manager_pb2 import (
    STEP_PROBLEM_CANNOT_KEEP,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    STORE_ASSIGN,
    Step,
    StepReply,
    StoreReport,
)
from overlay.forwarding.tree.topology import Topology
from overlay.stores.past_settings import PastSettings
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

MB = 1 << 20


class AssignedBroker(LoneBroker):
    """A store, with a log and a disk that are asked by hand."""

    def __init__(
        self,
        *patterns: str,
        capacity: int = 4,
        assigned: StoreAssignment | None = None,
        in_tree: bool = False,
    ) -> None:
        filters = [Filter.parse(pattern) for pattern in patterns]
        super().__init__(
            CoreSettings(stores_needed=1),
            topology=Topology.from_mapping({"brokers": {"b0": "b0"}}) if in_tree else None,
            store=StoreOptions(filters, {}, serves=True, capacity=capacity, assigned=assigned),
        )
        self.run(1.0)
        self.store()
        self.run_until_first()
        self.connect("ann", bundles=True)

    def run_until_first(self) -> None:
        """Other stores would have been heard of by then."""
        self.run(PastSettings().first_patience_s + 0.5)

    def store(self) -> list[str]:
        """The log takes what there is: topics of the events."""
        topics: list[str] = []
        while (append := self.core.take_unstored(MB, 5_000, self.now_s)) is not None:
            self.keep(self.core.log_answered(AppendStored(append.number), self.now_s))
            topics += [row.topic for row in append.rows if row.events]
        return topics

    def step(self, epoch: int, *keep: str, fence: int = 1) -> StepReply | None:
        """What is answered at once."""
        step = Step(fence=fence, plan="p1-1", epoch=epoch, kind=STORE_ASSIGN, keep=keep)
        self.effects = []
        self.keep(self.core.on_step(step, self.now_s))
        return self.answer()

    def answer(self) -> StepReply | None:
        replies = [e.reply for e in self.effects if isinstance(e, ReplyToManager)]
        return replies[-1] if replies else None

    def to_disk(self) -> StoreAssignment:
        (effect,) = [e for e in self.effects if isinstance(e, RememberAssignment)]
        return effect.assignment

    def on_disk(self, epoch: int, problem: str = "") -> StepReply | None:
        self.effects = []
        self.keep(self.core.assignment_remembered(epoch, problem, self.now_s))
        return self.answer()

    def assign(self, epoch: int, *keep: str, fence: int = 1) -> None:
        assert self.step(epoch, *keep, fence=fence) is None
        reply = self.on_disk(epoch)
        assert reply is not None
        assert reply.problem == STEP_PROBLEM_UNSPECIFIED
        self.run(1.0)
        self.store()
        self.run_until_first()

    def publish_each(self, topics: Iterable[str], number: int) -> list[str]:
        for topic in topics:
            self.publish("ann", publication(topic, number))
        self.run(1.0)
        return self.store()

    def advertised(self) -> list[str]:
        return sorted(self.core.storing.past.table.kept_here)

    def report(self) -> StoreReport:
        self.core.begin_reporting(self.now_s)
        return self.core.load_report(self.now_s, full=True).store


class TestObeying:
    def test_it_keeps_what_it_is_told_once_that_is_on_disk(self) -> None:
        broker = AssignedBroker("a", "b")
        assert broker.advertised() == ["a", "b"]
        assert broker.step(3, "b", "c") is None
        assert broker.to_disk() == StoreAssignment(("b", "c"), 3, 1)
        # Nothing has changed yet.
        assert broker.publish_each("abc", 1) == ["a", "b"]
        reply = broker.on_disk(3)
        assert reply == StepReply(fence=1, plan="p1-1", epoch=3, kind=STORE_ASSIGN)
        broker.run(1.0)
        # Of the new one, what the network still has.
        assert broker.store() == ["c"]
        broker.run_until_first()
        assert broker.publish_each("abc", 2) == ["b", "c"]
        assert broker.advertised() == ["b", "c"]

    def test_a_broker_that_keeps_nothing_yet_may_be_told_to(self) -> None:
        broker = AssignedBroker()
        assert not broker.core.status().unready
        assert broker.report() == StoreReport(capacity=4)
        broker.assign(1, "a")
        assert broker.publish_each("ab", 1) == ["a"]
        assert broker.advertised() == ["a"]

    def test_what_was_released_may_come_back(self) -> None:
        broker = AssignedBroker("a")
        broker.publish_each("a", 1)
        broker.assign(1)
        assert broker.publish_each("a", 2) == []
        assert broker.advertised() == []
        # It reads on from where its log stands.
        assert broker.step(2, "a") is None
        broker.on_disk(2)
        broker.run(1.0)
        assert broker.store() == ["a"]
        assert broker.publish_each("a", 3) == ["a"]

    def test_patterns_may_overlap(self) -> None:
        broker = AssignedBroker("a/#")
        broker.assign(1, "a/#", "a/x")
        assert broker.publish_each(["a/x", "a/y"], 1) == ["a/x", "a/y"]
        broker.assign(2, "a/x")
        assert broker.publish_each(["a/x", "a/y"], 2) == ["a/x"]

    def test_the_same_again_is_answered_at_once(self) -> None:
        broker = AssignedBroker("a")
        broker.assign(2, "b")
        reply = broker.step(2, "b", fence=5)
        assert reply is not None
        assert reply.problem == STEP_PROBLEM_UNSPECIFIED

    def test_a_newer_one_takes_the_place_of_one_on_its_way_to_the_disk(self) -> None:
        broker = AssignedBroker("a")
        broker.step(2, "b")
        broker.step(3, "c")
        assert broker.on_disk(2) is None
        reply = broker.on_disk(3)
        assert reply is not None
        assert reply.epoch == 3
        assert [unit.pattern for unit in broker.report().keeps] == ["c"]


class TestRefusing:
    def check_refused(self, reply: StepReply | None, problem: int, why: str) -> None:
        assert reply is not None
        assert (reply.problem, why in reply.message) == (problem, True), reply.message

    def test_an_older_assignment(self) -> None:
        broker = AssignedBroker("a")
        broker.assign(3, "b")
        self.check_refused(broker.step(2, "a"), STEP_PROBLEM_STALE, "assignment 3 is newer")
        assert broker.advertised() == ["b"]

    def test_an_older_manager(self) -> None:
        broker = AssignedBroker("a")
        version = broker.core.registration_version
        broker.assign(3, "b", fence=7)
        assert broker.core.registration().fence == 7
        assert broker.core.registration_version > version
        self.check_refused(broker.step(4, "a", fence=6), STEP_PROBLEM_STALE, "7 has been obeyed")

    def test_more_than_its_capacity_and_what_is_no_pattern(self) -> None:
        broker = AssignedBroker("a", capacity=2)
        refused = broker.step(1, "a", "b", "c")
        self.check_refused(refused, STEP_PROBLEM_CANNOT_KEEP, "3 topics are more than its capacity")
        self.check_refused(broker.step(1, "a/#/b"), STEP_PROBLEM_CANNOT_KEEP, "a/#/b")

    def test_what_the_disk_does_not_take(self) -> None:
        broker = AssignedBroker("a")
        broker.step(2, "b")
        self.check_refused(broker.on_disk(2, "disk full"), STEP_PROBLEM_CANNOT_KEEP, "disk full")
        assert broker.advertised() == ["a"]

    def test_a_store_without_a_capacity_and_one_in_a_tree(self) -> None:
        for broker in (AssignedBroker("a", capacity=0), AssignedBroker("a", in_tree=True)):
            self.check_refused(broker.step(1, "b"), STEP_PROBLEM_CANNOT_KEEP, "store.capacity")
            assert broker.report().capacity == 0


class TestTelling:
    def test_what_is_kept_and_how_far(self) -> None:
        broker = AssignedBroker("a")
        broker.publish_each("a", 1)
        broker.assign(5, "a", "b/#")
        report = broker.report()
        kept = [(unit.pattern, unit.ready, unit.events) for unit in report.keeps]
        assert (report.capacity, report.epoch) == (4, 5)
        assert kept == [("a", True, 1), ("b/#", True, 0)]

    def test_after_a_restart_it_knows_whom_it_has_obeyed(self) -> None:
        broker = AssignedBroker("a", assigned=StoreAssignment(("a",), 9, 4))
        assert broker.report().epoch == 9
        assert broker.core.registration().fence == 4
        reply = broker.step(8, "b", fence=4)
        assert reply is not None
        assert reply.problem == STEP_PROBLEM_STALE


class TestFile:
    def test_what_was_told_is_there_after_a_restart(self, tmp_path: Path) -> None:
        told = StoreAssignment(("a", "b/#"), 3, 2)

        async def remember() -> None:
            file = AssignmentFile(tmp_path)
            assert file.read() is None
            assert await file.remember(told) == ""
            assert "newer" in await file.remember(StoreAssignment(("c",), 2, 2))

        asyncio.run(remember())
        assert AssignmentFile(tmp_path).read() == told
        assert [path.name for path in tmp_path.iterdir()] == ["assignment.json"]

    def test_what_cannot_be_used_counts_for_nothing(self, tmp_path: Path) -> None:
        for text in ("", "{}", '{"keep": ["a/#/b"], "epoch": 1, "fence": 1}'):
            (tmp_path / "assignment.json").write_text(text)
            assert AssignmentFile(tmp_path).read() is None

    def test_a_disk_that_does_not_take_it(self, tmp_path: Path) -> None:
        (tmp_path / "assignment.json").mkdir()
        file = AssignmentFile(tmp_path)
        assert "cannot be written" in _said(file, StoreAssignment(("a",), 1, 1))


def _said(file: AssignmentFile, told: StoreAssignment) -> str:
    said: list[str] = []

    async def remember() -> None:
        said.append(await file.remember(told))

    asyncio.run(remember())
    return said[0]
