"""Logs of recorded brokers, in memory; and a broker that is told something of every kind."""

from __future__ import annotations

from io import BytesIO

from google.protobuf.message import Message

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.rights.access import Access
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    UnitExtent,
)
from broker_agent.core.stores.store_options import StoreOptions
from broker_agent.core.stores.store_reader import ServedKey, StorePortion
from broker_agent.recording.log_format import StimulusLog, framed
from broker_agent.recording.replaying import ReplayReport, replay
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.kit.security.token_rights import TokenLimits, TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.client_pb2 import Received, SlowPolicy
from dynatops.v1.manager_pb2 import STORE_ASSIGN, Step
from dynatops.v1.overlay_pb2 import PeerFrame
from dynatops.v1.stimulus_pb2 import Stimulus
from overlay.forwarding.tree.topology import Topology
from simulator.disk import SimulatedDisk
from tests.support.brokers import LoneBroker
from tests.support.memory_store import event_run
from tests.support.nodes import publication
from tests.support.routings import chain

TOPIC = "quake/ca"
TOKEN = "ann's token"
OTHER_TOKEN = "the token of somebody else"
RULES = TokenRules(name="ann", sha256=hash_of(TOKEN), publish=("#",), subscribe=("#",))


class MemoryLog:
    """Implements `recorded_broker.LogWriter`."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self.flushes = 0

    def append(self, record: Message) -> None:
        self.raw += framed(record)

    def flush(self) -> None:
        self.flushes += 1

    def read(self) -> StimulusLog:
        return StimulusLog(BytesIO(self.raw))

    def kinds(self) -> list[str]:
        return [str(stimulus.WhichOneof("input")) for stimulus in self.read()]

    def replay(self) -> ReplayReport:
        return replay(self.read())

    def close(self) -> None:
        self.append(Stimulus(ended=Stimulus.LogEnded()))


def told_everything(log: MemoryLog) -> LoneBroker:
    """A broker that was told something of every kind, and left."""
    access = Access(CoreSettings(), [RULES])
    disk = SimulatedDisk()
    before = LoneBroker(disk=disk, access=access)
    before.connect("ann", keep_s=600, token=TOKEN)
    before.subscribe("ann", TOPIC, "news/+")
    before.connect("pub", token=TOKEN)
    before.run(0.5)
    before.flush()
    before.publish("pub", publication(TOPIC, 1), publication(TOPIC, 2))
    before.run(0.5)
    before.flush(everything=True)

    broker = LoneBroker(
        log=log, disk=disk, access=access, life=2, logged_rows_max=1_000,
        selection=SelectionSettings(),
        store=StoreOptions(
            [Filter.parse(TOPIC)], {TOPIC: UnitExtent((0, 0), (1, 1), [])}, capacity=2
        ),
    )  # fmt: skip
    core = broker.core
    broker.run(1.0)
    core.begin_reporting(broker.now_s)
    core.advise(SelectionAdvice("1", 60.0, {"ann": "b7"}, {2**63 + 1: "b8"}), broker.now_s)
    broker.connect("ann", keep_s=600, token=TOKEN)
    broker.subscribe("ann", TOPIC, "news/+")
    broker.connect("mallory", token=OTHER_TOKEN)
    broker.connect("slow", SlowPolicy.SLOW_POLICY_DISCONNECT, token=TOKEN)
    broker.subscribe("slow", "news/today")
    broker.connect("pub", token=TOKEN, publisher_secret=b"a secret of sixteen bytes", bundles=True)
    broker.publish("pub", *(publication(t, n) for n in (1, 2, 3) for t in (TOPIC, "news/today")))
    broker.run(1.0)
    assert broker.runs("ann")
    number = core.registry.connections[ConnectionId("pub")].publisher
    together = Bundle(number, [TOPIC, "news/today"], [4, 4], [1, 1], [b"x", b"y"])
    together.pending = [0, 0]
    broker.say("pub", bundle=together.to_wire())
    unstored = core.take_unstored(1 << 20, 1_000_000, broker.now_s)
    assert unstored is not None
    full = AppendRefused(unstored.number, AppendRefusal.FULL, "no room")
    for outcome in (full, AppendStored(unstored.number)):
        broker.keep(core.log_answered(outcome, broker.now_s))
    read = StorePortion([event_run(TOPIC, 1, b"x", 1)], b"at", is_end=True)
    broker.keep(core.past_read(ServedKey("b9", 1, 1), read, broker.now_s))
    broker.say("ann", received=Received(serial=2))
    broker.flush(fails=True)
    broker.run(0.5)
    broker.flush()
    broker.keep(core.on_refused_frame(ConnectionId("slow"), "that was no frame", broker.now_s))
    broker.keep(core.unreachable("b9", broker.now_s))
    broker.keep(core.on_step(Step(fence=1, plan="p"), broker.now_s))
    assign = Step(fence=1, plan="q", epoch=4, kind=STORE_ASSIGN, keep=["news/today"])
    broker.keep(core.on_step(assign, broker.now_s))
    broker.keep(core.assignment_remembered(4, "", broker.now_s))
    broker.run(0.5)
    broker.keep(core.on_peer_frame(PeerFrame(to=1), broker.now_s))
    broker.keep(core.change_topology(chain(["b0", "b1"]), broker.now_s))
    core.take_logbook_page(broker.now_s)
    core.load_report(broker.now_s, full=True)
    limited = TokenRules(
        name="ann", sha256=hash_of(TOKEN), subscribe=(TOPIC,), limits=TokenLimits(sessions=3)
    )
    broker.keep(core.replace_access(Access(CoreSettings(), [limited]), broker.now_s))
    broker.disconnect("ann")
    broker.hear("slow")
    # Its clock jumps.
    broker.now_s -= 10.0
    broker.run(0.3)
    broker.flush(everything=True)
    broker.keep(core.leave(broker.now_s))
    broker.run(0.3)
    core.end_logbook(broker.now_s)
    return broker


def told_in_a_tree(log: MemoryLog) -> LoneBroker:
    """A broker with a neighbour, and what both say to each other; then the tree is another one."""
    topology = chain(["b0", "b1"])
    recorded = LoneBroker(log=log, broker_id="b0", topology=topology)
    other = LoneBroker(broker_id="b1", topology=topology)
    brokers = {"b0": recorded, "b1": other}
    _let_talk(brokers, 1.0)
    for name, broker in brokers.items():
        broker.connect(f"sub-{name}")
        broker.subscribe(f"sub-{name}", "quake/#", "news")
        broker.connect(f"pub-{name}")
    _let_talk(brokers, 1.0)
    for number in (1, 2, 3):
        for name, broker in brokers.items():
            broker.publish(f"pub-{name}", publication(TOPIC, number), publication("news", number))
        _let_talk(brokers, 0.2)
    assert len(recorded.runs("sub-b0")) >= 6
    newer = Topology.from_mapping({**topology.to_mapping(), "version": 2, "covering": False})
    other.keep(other.core.change_topology(newer, other.now_s))
    _let_talk(brokers, 1.0)
    third = Topology.from_mapping({**newer.to_mapping(), "version": 3})
    recorded.keep(recorded.core.change_topology(third, recorded.now_s))
    _let_talk(brokers, 1.0)
    assert other.core.describe().forwarder.topology_version == 3
    return recorded


def _let_talk(brokers: dict[str, LoneBroker], seconds: float) -> None:
    """What one sends the other hears before time goes on."""
    end_s = brokers["b0"].now_s + seconds
    while brokers["b0"].now_s < end_s:
        for broker in brokers.values():
            broker.run(0.05)
        while sent := [
            (effect.address, effect.frame)
            for broker in brokers.values()
            for effect in broker.take_frames()
        ]:
            for address, frame in sent:
                broker = brokers[address]
                broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
