"""Streams between brokers and the manager that leads, in virtual time.

A stream is in order until it breaks; over a broken link it is noticed to be dead after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.manager_pb2 import AgentFrame, LoadReport, StepReply, TopicCount
from reconfig_manager.ports import AgentId

if TYPE_CHECKING:
    from simulator.managers import Managers, SimulatedManager
    from simulator.world import SimulatedBroker

STREAM_DELAY_S = 0.004
KEEPALIVE_S = 1.0
RECONNECT_S = 0.4
INVENTED_TOPICS = 12


class SimulatedStream:
    """Between one life of a broker and one of a manager; in order, until it breaks."""

    def __init__(self, broker: SimulatedBroker, manager: SimulatedManager, number: int) -> None:
        self.broker = broker
        self.manager = manager
        incarnation = broker.core.identity.incarnation
        self.agent = AgentId(broker.broker_id, incarnation, number)
        self.open = True

    def to_manager(self, deliver: Callable[[], None]) -> None:
        self._carry(deliver)

    def to_broker(self, deliver: Callable[[], None]) -> None:
        self._carry(deliver)

    def _carry(self, deliver: Callable[[], None]) -> None:
        world = self.manager.world
        if not self.open:
            return
        if world.network.is_blocked(self.broker.address, self.manager.name):
            world.scheduler.after(KEEPALIVE_S, self.close)
            return

        def arrive() -> None:
            if self.open:
                deliver()

        world.scheduler.after(STREAM_DELAY_S, arrive)

    def close(self) -> None:
        """Both ends learn of it."""
        if not self.open:
            return
        self.open = False
        self.manager.stream_ended(self)
        uplink = self.manager.group.uplinks.get(self.broker.broker_id)
        if uplink is not None and uplink.stream is self:
            uplink.stream = None


class SimulatedUplink:
    """A broker's way to the manager that leads."""

    def __init__(self, group: Managers, broker: SimulatedBroker) -> None:
        self.stream: SimulatedStream | None = None
        self.broker = broker
        self._group = group
        self._told_version = -1
        self._report_due_s = 0.0
        self._full = True
        self._invented: set[str] = set()

    def tick(self) -> None:
        world = self._group.world
        if not self.broker.alive:
            return
        if self.stream is None:
            self._connect()
        elif world.network.is_blocked(self.broker.address, self.stream.manager.name):
            world.scheduler.after(KEEPALIVE_S, self.stream.close)
        else:
            self._tell(self.stream)
        world.scheduler.after(RECONNECT_S, self.tick)

    def _connect(self) -> None:
        manager = self._group.reachable_leader(self.broker)
        if manager is None or not ring_of(self.broker.core).node.reigns.ready:
            return
        self.stream = manager.accept(self.broker)
        self._told_version, self._full, self._report_due_s = -1, True, 0.0
        self._invented = set()
        self.broker.core.begin_reporting(self._group.world.scheduler.now_s)
        self._tell(self.stream)

    def _tell(self, stream: SimulatedStream) -> None:
        core, now_s = self.broker.core, self._group.world.scheduler.now_s
        if core.reporting.version != self._told_version:
            self._told_version = core.reporting.version
            self._say(stream, AgentFrame(registration=core.reporting.registration()))
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + self._group.settings.monitor.report_period_s
            report = core.load_report(now_s, full=self._full)
            self._invent_load(report)
            self._full = False
            self._say(stream, AgentFrame(report=report))

    def _invent_load(self, report: LoadReport) -> None:
        """What the manager believes is subscribed to changes all the time, so that there is always
        a better placement: the subject is how brokers are moved, not where to."""
        rng = self._group.world.rng
        invented = [f"invented/{i}" for i in range(INVENTED_TOPICS)]
        chosen = set(rng.sample(invented, rng.randint(1, INVENTED_TOPICS // 2)))
        del report.subscribed[:], report.unsubscribed[:], report.publications[:]
        report.subscribed.extend(sorted(chosen - self._invented))
        report.unsubscribed.extend(sorted(self._invented - chosen))
        self._invented = chosen
        for topic in invented:
            report.publications.append(TopicCount(topic=topic, events=1_000))

    def reply(self, reply: StepReply) -> None:
        if self.stream is not None:
            self._say(self.stream, AgentFrame(reply=reply))

    def _say(self, stream: SimulatedStream, frame: AgentFrame) -> None:
        raw = frame.SerializeToString(deterministic=True)
        self._group.world.trace.note(
            f"{self.broker.broker_id}=>{stream.manager.name} {frame.WhichOneof('body')}"
        )
        stream.to_manager(lambda: stream.manager.on_frame(stream, AgentFrame.FromString(raw)))
