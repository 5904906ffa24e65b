"""Brokers with two names each: one inside, one outside, as in a cluster that clients reach by load
balancers. Whoever comes by one of them is told of other brokers by their names of the same side.

The certificate is for the names outside. Clients from outside look for these, as browsers do, so
that nothing inside would be a broker to them; brokers and clients inside look for `INSIDE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent
from broker_agent.security import SecuritySettings
from dynatops.client.inspection import Inspector
from dynatops.kit.addresses import split_address
from dynatops.kit.security.tls import Tls
from tests.support.kubernetes.network import ServiceProxy
from tests.support.kubernetes.secrets import certificate
from tests.support.waiting import until
from tests.support.witness import Listener, Published, Witness

INSIDE = "brokers.test"
# Of the load balancers, one for each broker.
OUTSIDE_HOST = "127.0.0.3"
SIDES = ("inside", "outside")
HEAL_S = 30.0
COMMON = "common"
KINDS = [[f"{kind}/{i}" for i in range(10)] for kind in "ab"]
# Only likeness counts, and whoever was moved once stays.
QUICK = SelectionSettings(
    update_period_s=0.4, early_period_s=0.05, min_stay_s=600.0, load_weight=0.0
)


@dataclass(slots=True)
class Network:
    folder: Path
    tls: dict[str, Tls]
    agents: list[Agent] = field(default_factory=list)
    balancers: list[ServiceProxy] = field(default_factory=list)

    def address(self, broker: int, side: str) -> str:
        if side == "inside":
            return self.agents[broker].address
        return f"{OUTSIDE_HOST}:{self.balancers[broker].port}"

    async def start(self, broker: int) -> None:
        """Again, too: what it kept is there, its names are the same."""
        is_new = broker == len(self.agents)
        if is_new:
            leads_to = lambda: [split_address(self.agents[broker].listeners.others["outside"])]  # noqa: E731
            self.balancers.append(ServiceProxy(OUTSIDE_HOST, 0, leads_to))
            await self.balancers[broker].start()
        files = self.folder / "certificate"
        settings = BrokerSettings(
            broker_id=f"b{broker}",
            listen="127.0.0.1:0" if is_new else self.agents[broker].address,
            doors={"outside": "127.0.0.2:0"},
            advertised={"outside": self.address(broker, "outside")},
            join=tuple(agent.address for i, agent in enumerate(self.agents) if i != broker)[:1],
            data_dir=str(self.folder / f"b{broker}"),
            selection=QUICK,
            security=SecuritySettings(
                tls_cert=str(files / "tls.crt"),
                tls_key=str(files / "tls.key"),
                tls_ca=str(files / "ca.crt"),
                tls_server_name=INSIDE,
            ),
        )
        agent = Agent(settings)
        self.agents[broker : broker + 1] = [agent]
        await agent.start()

    def connect(
        self, broker: int, side: str, **options: object
    ) -> AbstractAsyncContextManager[dynatops.Client]:
        return dynatops.connect(self.address(broker, side), tls=self.tls[side], **options)  # type: ignore[arg-type]

    def is_repaired_without(self, gone: int) -> bool:
        """Whether all that are left have copied what they have to nodes that are left, too."""
        dead = {agent.broker_id for agent in self.agents[: gone + 1]}
        nodes = [ring_of(agent.core).node for agent in self.agents[gone + 1 :]]
        return all(
            node.replication.is_complete
            and not dead & {peer.broker_id for peer in node.ring.successors}
            and (before := node.ring.predecessor) is not None
            and before.broker_id not in dead
            for node in nodes
        )

    def knows(self, broker: int, others: int) -> bool:
        """Whether it would send a client to so many others."""
        selection = self.agents[broker].core.cluster.selection
        return len(selection.neighbours.named_by("outside")) == others


@asynccontextmanager
async def network(folder: Path, brokers: int) -> AsyncIterator[Network]:
    certificate(folder / "certificate", [INSIDE, OUTSIDE_HOST])
    ca = str(folder / "certificate" / "ca.crt")
    made = Network(folder, {"inside": Tls(ca=ca, server_name=INSIDE), "outside": Tls(ca=ca)})
    try:
        for broker in range(brokers):
            await made.start(broker)
        await until(lambda: all(made.knows(i, brokers - 1) for i in range(brokers)))
        yield made
    finally:
        await asyncio.gather(*(agent.stop() for agent in made.agents))
        await asyncio.gather(*(balancer.stop() for balancer in made.balancers))


def doors_of(network: Network, broker: int) -> dict[str, str]:
    """By which door whoever has a session there came last."""
    sessions = network.agents[broker].core.registry.clients
    return {client_id: session.door for client_id, session in sessions.items()}


def test_from_outside_nothing_inside_is_a_broker(tmp_path: Path) -> None:
    """What the other tests rely on; and by the door outside come clients only."""

    async def scenario() -> None:
        async with network(tmp_path, 1) as net:
            outside = net.tls["outside"]
            with pytest.raises(dynatops.ConnectError):
                await dynatops.connect(net.agents[0].address, tls=outside, timeout_s=1.0)
            with pytest.raises(dynatops.ConnectError, match="Method not found"):
                async with Inspector(net.address(0, "outside"), tls=outside) as inspector:
                    await inspector.brokers()

    asyncio.run(scenario())


def test_who_changes_its_mind_is_sent_on_by_its_own_side_and_misses_nothing(tmp_path: Path) -> None:
    """All are sent from b0 to b1; then both go, one after the other: all go on elsewhere, though b0
    is all that they were told of to begin with."""

    async def scenario() -> None:
        async with network(tmp_path, 4) as net, AsyncExitStack() as stack:
            for broker, topics in enumerate(KINDS):
                resident = await stack.enter_async_context(net.connect(broker, "inside", stay=True))
                await resident.subscribe(*topics)
            publishers = {
                side: await stack.enter_async_context(net.connect(3, side, stay=True))
                for side in SIDES
            }
            witness = Witness(publishers, [COMMON, "b/0"])
            users: dict[str, tuple[dynatops.Client, Listener]] = {}
            for side in SIDES:
                for keep_s in (0, 60):
                    name = f"{side}-{keep_s}"
                    connecting = net.connect(0, side, client_id=name, keep_s=keep_s)
                    client = await stack.enter_async_context(connecting)
                    listener = Listener(await client.subscribe(COMMON, *KINDS[0]))
                    stack.push_async_callback(listener.stop)
                    assert client.broker == "b0"
                    users[name] = client, listener
            expected = {name: name.removesuffix("-0").removesuffix("-60") for name in users}
            expected = {n: "" if side == "inside" else side for n, side in expected.items()}
            async with witness.publishing():
                for client, listener in users.values():
                    await listener.events.change(add=KINDS[1], drop=KINDS[0])
                    async with asyncio.timeout(HEAL_S):
                        # Where b1's word is late, on a slow machine, b0 knows nobody better yet.
                        while client.broker != "b1":
                            await listener.events.change(drop=KINDS[1][:1])
                            await listener.events.change(add=KINDS[1][:1])
                assert {client.broker for client, _ in users.values()} == {"b1"}
                assert doors_of(net, 1).items() >= expected.items()
                # b0 was told where they are, by whichever name they knew it.
                await until(lambda: not expected.keys() & doors_of(net, 0).keys())
                for gone in (0, 1):
                    await net.agents[gone].kill()
                    # Two neighbours that die within one repair would take with them what both had.
                    await until(lambda gone=gone: net.is_repaired_without(gone), HEAL_S)
                    heard = len(witness.acknowledged) + 100
                    await until(lambda at=heard: len(witness.acknowledged) > at, HEAL_S)
                await until(
                    lambda: {client.broker for client, _ in users.values()} <= {"b2", "b3"}, HEAL_S
                )
            there = {**doors_of(net, 2), **doors_of(net, 3)}
            assert there.items() >= expected.items()
            for _, listener in users.values():
                await check_common(witness, listener)

    asyncio.run(scenario())


async def check_common(witness: Witness, listener: Listener) -> None:
    def on_common(published: Published) -> bool:
        return published.topic == COMMON

    await until(lambda: not witness.missing(listener.heard, on_common), HEAL_S)
    witness.check([e for e in listener.heard if e.topic == COMMON], on_common)
    witness.check_order(listener.heard)
    assert listener.events.missed == 0


@pytest.mark.parametrize("first", SIDES)
def test_a_kept_session_is_resumed_from_either_side(tmp_path: Path, first: str) -> None:
    """It goes away on one side and comes back on the other; in between its broker is restarted."""
    other = next(side for side in SIDES if side != first)

    async def scenario() -> None:
        async with network(tmp_path, 2) as net, net.connect(1, "inside", stay=True) as publisher:

            async def connected(side: str) -> dynatops.Client:
                address, tls = net.address(0, side), net.tls[side]
                return await dynatops.connect(
                    address, tls=tls, client_id="ear", keep_s=60, stay=True
                )

            async def hear(client: dynatops.Client, *expected: bytes) -> None:
                """What an earlier connection has not said it took may come again."""
                events = await client.subscribe("quake/#")
                missing = set(expected)
                while missing:
                    payload = (await events.__anext__()).payload
                    assert payload in (*expected, *known)
                    known.add(payload)
                    missing.discard(payload)

            known: set[bytes] = set()
            client = await connected(first)
            await client.subscribe("quake/#")
            await publisher.publish("quake/1", b"1")
            await client.close()
            await publisher.publish("quake/1", b"2")
            client = await connected(other)
            assert doors_of(net, 0)["ear"] == ("outside" if other == "outside" else "")
            await hear(client, b"1", b"2")
            await client.close()
            await net.agents[0].stop()
            await publisher.publish("quake/1", b"3")
            await net.start(0)
            client = await connected(first)
            await publisher.publish("quake/2", b"4")
            await hear(client, b"3", b"4")
            await client.close()

    asyncio.run(scenario())
