"""Brokers in virtual time, and a hand that sends them the steps of a reconfiguration one by one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from random import Random

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import on_ring, ring_of
from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    Step,
    StepKind,
    StepReply,
)
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.overlay_settings import OverlaySettings
from simulator.clients import SimulatedClient
from simulator.network import Network, Weather
from simulator.scheduler import Scheduler, Trace
from simulator.world import SimulatedBroker, World


class StepNet:
    def __init__(self, brokers: int = 5, core: CoreSettings | None = None) -> None:
        self.scheduler = Scheduler()
        trace = Trace(self.scheduler, io.StringIO())
        self.network = Network(self.scheduler, trace, Random(1), Weather())
        self.world = World(
            Random(2),
            self.network,
            self.scheduler,
            trace,
            lambda broker_id: on_ring(OverlaySettings()),
            core or CoreSettings(),
        )
        self.replies: list[tuple[str, StepReply]] = []
        self.world.on_reply = lambda broker, reply: self.replies.append((broker.broker_id, reply))
        self.names = [f"b{i}" for i in range(brokers)]
        for name in self.names:
            self.world.start_broker(name, [] if name == "b0" else ["b0"])
            self.run(0.5)
        self.run(5.0)

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now_s + seconds)

    def broker(self, name: str) -> SimulatedBroker:
        return self.world.brokers[name]

    def node_of(self, name: str) -> int:
        return ring_of(self.broker(name).core).node.me.node_id

    def client(self, name: str, broker: str) -> SimulatedClient:
        """A client at this very broker."""
        client = self.world.add_client(name)
        self.run(0.1)
        client.send_to(broker)
        self.run(0.5)
        return client

    def cycle(self, *names: str, epoch: int = 1) -> list[NodeRef]:
        """Each of these brokers is to host the node of the next one."""
        nodes = [self.node_of(name) for name in names]
        return [
            NodeRef(
                node_id=node,
                broker_id=name,
                address=name,
                epoch=epoch,
                incarnation=self.broker(name).core.identity.incarnation,
            )
            for name, node in zip(names, [*nodes[1:], nodes[0]], strict=True)
        ]

    def step(
        self,
        kind: StepKind.ValueType,
        names: Sequence[str],
        moved: Sequence[NodeRef] = (),
        *,
        fence: int = 1,
        plan: str = "p1",
        epoch: int = 1,
        wait_s: float = 1.5,
    ) -> dict[str, StepReply]:
        """Ask these brokers for a step; who has answered by then, and what."""
        self.replies.clear()
        step = Step(fence=fence, plan=plan, epoch=epoch, kind=kind, moved=moved, frozen_max_s=10.0)
        for name in names:
            self.broker(name).on_step(step)
        self.run(wait_s)
        return {name: reply for name, reply in self.replies if reply.kind == kind}

    def carry_out(self, moved: Sequence[NodeRef], *, plan: str = "p1", epoch: int = 1) -> None:
        """The whole protocol, without mishap."""
        movers = [ref.broker_id for ref in moved]
        for kind, names in (
            (RCFG_INIT, self.names),
            (RCFG_DHT_UPDATE, movers),
            (RCFG_TREE_RESTORE, self.names),
            (RCFG_TREE_REPAIR, movers),
            (RCFG_FINISH, self.names),
        ):
            replies = self.step(kind, names, moved, plan=plan, epoch=epoch)
            assert set(replies) == set(names), StepKind.Name(kind)
            assert not [reply for reply in replies.values() if reply.problem], StepKind.Name(kind)

    def hosts(self) -> dict[int, str]:
        """node -> the broker that hosts it; each has one."""
        hosts: dict[int, str] = {}
        for broker in self.world.living():
            node_id = ring_of(broker.core).node.me.node_id
            assert node_id not in hosts, f"{hosts[node_id]} and {broker.broker_id} host one node"
            hosts[node_id] = broker.broker_id
        return hosts
