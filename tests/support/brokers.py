"""One broker's core, alone on its ring (or not yet on any), with clients that are just names."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    PauseReading,
    ResumeReading,
    SendFrame,
)
from broker_agent.core.base.identity import Identity
from broker_agent.core.broker import Broker
from broker_agent.core.clients.reception import CLIENT_PROTOCOL
from broker_agent.core.invariants import check_invariants
from broker_agent.core.keeping.journal import Changes
from broker_agent.core.options import BrokerOptions
from broker_agent.core.rights.access import Access
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.stores.store_options import StoreOptions
from broker_agent.doors.frames import take_output
from broker_agent.recording.recorded_broker import LogWriter, RecordedBroker
from broker_agent.recording.records import RecordedOptions
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Filter,
    Hello,
    ServerFrame,
    ServerMessage,
    SlowPolicy,
    Subscribe,
    Unsubscribe,
)
from dynatops.v1.overlay_pb2 import Publication, Run
from overlay.base.overlay_settings import OverlaySettings
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.tree.topology import Topology
from simulator.disk import SimulatedDisk


class LoneBroker:
    def __init__(
        self,
        settings: CoreSettings | None = None,
        *,
        joining: bool = False,
        access: Access | None = None,
        selection: SelectionSettings | None = None,
        disk: SimulatedDisk | None = None,
        life: int = 1,
        logged_rows_max: int = 0,
        broker_id: str = "b0",
        overlay: OverlaySettings | None = None,
        log: LogWriter | None = None,
        topology: Topology | None = None,
        store: StoreOptions | None = None,
    ) -> None:
        """`log`: what it is told is recorded there. With a topology it is in a tree."""
        selection = selection or SelectionSettings(enabled=False)
        identity = Identity(broker_id, broker_id, incarnation=life)
        overlay, settings = overlay or OverlaySettings(), settings or CoreSettings()
        options = BrokerOptions(
            access,
            selection,
            logged_rows_max=logged_rows_max,
            saving=disk is not None,
            store=store,
        )
        recorded = RecordedOptions.of(identity, overlay, settings, options)
        if topology is not None:
            recorded = recorded.within(topology, ForwardingSettings())
        if log is None:
            self.core = Broker(identity, recorded.routing(), settings, Random(1), options)
        else:
            self.core = RecordedBroker(recorded, access or Access(settings), bytes(32), log)
        self.disk = disk
        self.now_s = 0.0
        if disk is not None:
            self.core.restore(disk.read(), self.now_s)
        self.effects: list[BrokerEffect] = []
        # While it joins, its node can do nothing for anyone.
        self.keep(self.core.start(["nobody"] if joining else [], self.now_s))

    def found_a_ring(self) -> None:
        self.keep(self.core.start([], self.now_s))

    def keep(self, effects: Iterable[BrokerEffect]) -> None:
        self.effects += effects

    def take_frames(self) -> list[SendFrame]:
        """What it wants sent to other brokers since this was asked last."""
        frames = [each for each in self.effects if isinstance(each, SendFrame)]
        self.effects = [each for each in self.effects if not isinstance(each, SendFrame)]
        return frames

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.05)
            self.keep(self.core.tick(self.now_s))
        assert check_invariants(self.core) == []

    def say(self, client: str, **body: object) -> None:
        frame = ClientFrame(messages=[ClientMessage(**body)])  # type: ignore[arg-type]
        self.keep(self.core.on_client_frame(ConnectionId(client), frame, self.now_s))

    def connect(
        self,
        client: str,
        policy: SlowPolicy.ValueType = SlowPolicy.SLOW_POLICY_DROP_NEWEST,
        protocol: int = CLIENT_PROTOCOL,
        token: str = "",
        client_id: str = "",
        keep_s: int = 0,
        door: str = "",
        **more: Any,
    ) -> None:
        """`client` names the connection, and the client too unless that is named apart."""
        self.keep(self.core.open_connection(ConnectionId(client), self.now_s, door=door))
        hello = Hello(
            protocol=protocol, client_id=client_id or client, slow_policy=policy, token=token,
            expiry_s=keep_s, **more,
        )  # fmt: skip
        self.say(client, hello=hello)

    def disconnect(self, client: str) -> None:
        self.keep(self.core.close_connection(ConnectionId(client), self.now_s))

    def subscribe(self, client: str, *topics: str, request: int = 1) -> None:
        self.say(
            client,
            subscribe=Subscribe(request=request, filters=_filters(topics)),
        )

    def unsubscribe(self, client: str, *topics: str) -> None:
        self.say(client, unsubscribe=Unsubscribe(request=9, filters=_filters(topics)))

    def publish(self, client: str, *publications: Publication) -> None:
        """Under the client's own number, whichever of its two is meant."""
        session = self.core.registry.connections.get(ConnectionId(client))
        for publication in publications:
            if session is not None:
                publication.publisher = session.publisher | publication.publisher & 1
            self.say(client, publication=publication)

    def flush(self, *, everything: bool = False, fails: bool = False) -> Changes | None:
        """What its driver does now and then; what was to be written, if anything."""
        changes = self.core.unsaved(everything=everything)
        if changes is not None and fails:
            self.keep(self.core.not_saved(self.now_s))
        elif changes is not None and self.disk is not None:
            self.disk.write(changes)
            self.keep(self.core.saved(self.now_s))
        return changes

    def restarted(self) -> LoneBroker:
        """Its next life, after a crash now."""
        life = self.core.identity.incarnation + 1
        return LoneBroker(self.core.settings, disk=self.disk, life=life)

    def hear(self, client: str) -> list[ServerMessage]:
        """Everything said to the client since it last listened, but for where topics begin."""
        return [m for m in self.hear_all(client) if not m.HasField("run") or m.run.count]

    def hear_all(self, client: str) -> list[ServerMessage]:
        messages: list[ServerMessage] = []
        while raw := take_output(self.core, ConnectionId(client), 1 << 20):
            messages += ServerFrame.FromString(raw).messages
        return messages

    def kinds(self, client: str) -> list[str]:
        return [str(message.WhichOneof("body")) for message in self.hear(client)]

    def runs(self, client: str) -> list[Run]:
        return [message.run for message in self.hear(client) if message.HasField("run")]

    def is_paused(self, client: str) -> bool:
        paused = False
        for effect in self.effects:
            if isinstance(effect, PauseReading) and effect.connection == client:
                paused = True
            elif isinstance(effect, ResumeReading) and effect.connection == client:
                paused = False
        return paused

    def is_closing(self, client: str) -> bool:
        return CloseConnection(ConnectionId(client)) in self.effects


def _filters(topics: Iterable[str]) -> list[Filter]:
    return [Filter(pattern=topic) for topic in topics]


def goodbye(messages: list[ServerMessage]) -> tuple[int, str]:
    (last,) = [message.goodbye for message in messages if message.HasField("goodbye")]
    return last.code, last.message
