"""A store: what its log is given, what it says of that, and how it goes on after a restart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import StoreNow
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    AppendToLog,
    UnitExtent,
)
from broker_agent.core.stores.log.log_rows import LogRow
from broker_agent.core.stores.log.stored_runs import run_of
from broker_agent.core.stores.store_options import StoreOptions
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import AckLevel, Bundle, Publication
from overlay.forwarding.tree.topology import Topology
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication

STORED = AckLevel.ACK_LEVEL_STORED
MB = 1 << 20


class StoreBroker(LoneBroker):
    """A broker that is a store, with a log that is asked by hand."""

    def __init__(
        self, *filters: str, in_tree: bool = False, extents: dict[str, UnitExtent] | None = None
    ) -> None:
        super().__init__(
            CoreSettings(stores_needed=1),
            topology=Topology.from_mapping({"brokers": {"b0": "b0"}}) if in_tree else None,
            store=StoreOptions([Filter.parse(pattern) for pattern in filters], extents or {}),
        )
        self.run(1.0)
        self.connect("ann", bundles=True)
        self.hear("ann")

    def take(self) -> AppendToLog | None:
        self.effects = [e for e in self.effects if not isinstance(e, StoreNow)]
        return self.core.take_unstored(MB, 5_000, self.now_s)

    def take_rows(self) -> list[LogRow]:
        append = self.take()
        return list(append.rows) if append is not None else []

    def store(self) -> int:
        """The log takes what there is: how many events."""
        events = 0
        while (append := self.take()) is not None:
            self.keep(self.core.log_answered(AppendStored(append.number), self.now_s))
            events += sum(row.events for row in append.rows)
        return events

    def is_ready(self) -> bool:
        return StoreNow() in self.effects


@pytest.fixture(params=["ring", "tree"])
def broker(request: pytest.FixtureRequest) -> StoreBroker:
    return StoreBroker("quake/#", in_tree=request.param == "tree")


def _stored(topic: str, number: int, count: int = 1) -> Publication:
    return publication(topic, number, count=count, ack=STORED)


class TestStoring:
    def test_what_it_keeps_goes_to_its_log(self, broker: StoreBroker) -> None:
        broker.publish("ann", publication("quake/ca", 1, count=3), publication("news/ca", 1))
        broker.run(1.0)
        assert broker.is_ready()
        rows = [row for row in broker.take_rows() if row.events]
        assert [(row.topic, row.number, row.events) for row in rows] == [("quake/ca", 1, 3)]
        run = run_of(rows[0])
        assert run is not None
        assert (run.topic, run.count, run.term) == ("quake/ca", 3, rows[0].term)

    def test_publishers_hear_once_it_is_on_the_disk(self, broker: StoreBroker) -> None:
        broker.publish("ann", _stored("quake/ca", 1, count=3))
        broker.run(1.0)
        assert broker.kinds("ann") == []
        assert broker.store() == 3
        (told,) = broker.hear("ann")
        assert list(told.acknowledgements.numbers) == [3]

    def test_bundles_are_stored_too(self, broker: StoreBroker) -> None:
        broker.publish("ann", _stored("quake/ca", 1), _stored("quake/nv", 1))
        broker.run(1.0)
        broker.store()
        broker.hear("ann")
        bundle = Bundle(
            publisher=broker.core.registry.clients["ann"].publisher,
            topics=["quake/ca", "quake/nv"],
            numbers=[2, 2],
            published_us=[1, 2],
            sizes=[1, 1],
            payloads=b"xy",
            ack=STORED,
            pending=[0, 0],
        )
        broker.say("ann", bundle=bundle)
        broker.run(0.5)
        assert broker.store() == 2
        (told,) = broker.hear("ann")
        assert list(told.acknowledgements.topics) == ["quake/ca", "quake/nv"]

    def test_rows_of_a_topic_follow_each_other(self, broker: StoreBroker) -> None:
        uptos = []
        for number in (1, 2, 3):
            broker.publish("ann", publication("quake/ca", number))
            broker.publish("ann", publication("news/ca", number))
            broker.run(0.5)
            uptos += [(row.after, row.upto) for row in broker.take_rows()]
        assert all(before[1] == after[0] for before, after in pairwise(uptos))

    def test_what_the_log_refuses_comes_again(self, broker: StoreBroker) -> None:
        broker.publish("ann", _stored("quake/ca", 1))
        broker.run(1.0)
        append = broker.take()
        assert append is not None
        refused = AppendRefused(append.number, AppendRefusal.FULL, "no room")
        broker.keep(broker.core.log_answered(refused, broker.now_s))
        broker.publish("ann", _stored("quake/ca", 2))
        assert broker.take() is None
        broker.run(1.1)
        assert broker.is_ready()
        assert broker.take() == append
        broker.keep(broker.core.log_answered(AppendStored(append.number), broker.now_s))
        assert broker.store() == 1
        assert [n for m in broker.hear("ann") for n in m.acknowledgements.numbers] == [1, 2]

    def test_a_log_that_failed_is_given_nothing_more(self, broker: StoreBroker) -> None:
        broker.publish("ann", publication("quake/ca", 1))
        broker.run(1.0)
        append = broker.take()
        assert append is not None
        failed = AppendRefused(append.number, AppendRefusal.FAILED, "the disk is gone")
        broker.keep(broker.core.log_answered(failed, broker.now_s))
        broker.publish("ann", publication("quake/ca", 2))
        broker.run(1.0)
        assert broker.take() is None
        assert broker.core.storing.store is not None
        assert broker.core.storing.store.failure == "the disk is gone"

    def test_it_is_nobodys_user(self, broker: StoreBroker) -> None:
        assert broker.core.status().sessions == 1
        assert broker.core.status().subscribed_patterns == 0
