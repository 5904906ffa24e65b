"""Clients that would be in others' way: what they say does nothing to anyone but themselves."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import BrokerEffect, SendFrame
from broker_agent.core.rights.access import Access
from broker_agent.core.rights.publisher_ids import is_of, publisher_of
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.client_pb2 import ErrorCode, Welcome
from dynatops.v1.overlay_pb2 import PeerFrame, Ping, Publication
from overlay.base.peers import Peer
from tests.support.brokers import LoneBroker, goodbye
from tests.support.nodes import publication
from tests.unit.test_gate import rules

TOPIC = "quake/ca"
SECRET = bytes(range(16))
EVERYTHING = {"publish": ("#",), "subscribe": ("#",)}


def lone_broker() -> LoneBroker:
    settings = CoreSettings()
    tokens = [rules("ann's", **EVERYTHING), rules("mallory's", **EVERYTHING)]
    return LoneBroker(settings, access=Access(settings, tokens))


@pytest.fixture
def broker() -> LoneBroker:
    """With ann, who publishes, mallory, who sees under which number, and bob, who reads."""
    broker = lone_broker()
    broker.run(0.3)
    broker.connect("ann", token="ann's", keep_s=60)
    broker.connect("mallory", token="mallory's")
    broker.connect("bob", token="ann's")
    broker.subscribe("bob", TOPIC)
    broker.publish("ann", publication(TOPIC, 1))
    return broker


def numbers(broker: LoneBroker, client: str = "bob") -> list[int]:
    return [run.first_number for run in broker.runs(client)]


class TestPublisherNumbers:
    def victim(self, broker: LoneBroker) -> int:
        (run,) = broker.runs("bob")
        return run.publisher

    @pytest.mark.parametrize("lane", [0, 1])
    def test_events_under_anothers_number_reach_nobody(self, broker: LoneBroker, lane: int) -> None:
        victim = self.victim(broker)
        forged = publication(TOPIC, 2, publisher=victim ^ lane, settled=1)
        broker.say("mallory", publication=forged)
        assert goodbye(broker.hear("mallory"))[0] == ErrorCode.ERROR_CODE_PROTOCOL
        broker.publish("ann", publication(TOPIC, 2))
        assert numbers(broker) == [2]
        assert broker.core.counters.publishers_not_believed == 1

    def test_a_refused_publication_does_not_pass_over_anothers_numbers(
        self, broker: LoneBroker
    ) -> None:
        victim = self.victim(broker)
        skipping = Publication(
            topic=TOPIC, publisher=victim, first_number=2, count=(1 << 32) - 1, settled=1
        )
        broker.say("mallory", publication=skipping)
        broker.publish("ann", publication(TOPIC, 2))
        assert numbers(broker) == [2]

    def test_nor_more_of_its_own_than_were_sent(self, broker: LoneBroker) -> None:
        broker.hear("bob")
        broker.publish("ann", publication(TOPIC, 2))
        wrong = Publication(topic=TOPIC, first_number=3, count=1 << 31, events=b"\x0a\x00")
        broker.publish("ann", wrong)
        broker.publish("ann", publication(TOPIC, 3))
        assert numbers(broker) == [2, 3]

    def test_a_number_is_the_same_wherever_its_client_goes(self) -> None:
        said: list[int] = []
        for _ in range(2):
            broker = lone_broker()
            broker.connect("ann", token="ann's", publisher_secret=SECRET)
            said.append(welcome(broker, "ann").publisher)
        assert said[0] == said[1] != 0

    def test_another_token_makes_another_number_of_the_same_secret(self) -> None:
        said = {
            (owner, name): publisher_of(owner, name, SECRET, Random(1))
            for owner in ("", "ann's", "mallory's")
            for name in ("ann", "bob")
        }
        assert len(set(said.values())) == len(said)

    def test_without_a_secret_no_number_comes_twice(self) -> None:
        broker = lone_broker()
        said = set[int]()
        for connection in ("c1", "c2", "c3"):
            broker.connect(connection, client_id="ann", token="ann's")
            said.add(welcome(broker, connection).publisher)
        assert len(said) == 3

    @pytest.mark.parametrize("length", [1, 15, 65, 10_000])
    def test_a_secret_that_can_be_guessed_is_refused(self, length: int) -> None:
        broker = lone_broker()
        broker.connect("ann", token="ann's", publisher_secret=bytes(length))
        code, message = goodbye(broker.hear("ann"))
        assert code == ErrorCode.ERROR_CODE_PROTOCOL
        assert message == "a publisher's secret has 16 to 64 bytes"

    def test_both_numbers_of_a_client_are_its_own(self) -> None:
        assert [number for number in range(4, 10) if is_of(6, number)] == [6, 7]


class TestSessionsThatMoved:
    """What a broker makes of a client that says it comes from elsewhere, and what that one does."""

    def told(self, here: LoneBroker, elsewhere: LoneBroker, **hello: Any) -> None:
        """A client says hello elsewhere; what that broker has to say about it comes here."""
        me, other = ring_of(here.core).node.me, elsewhere.core
        known = PeerFrame(
            sender=Peer(me.node_id, "b0", "b0:1").ref, to=ring_of(other).node.me.node_id
        )
        known.messages.add(ping=Ping(nonce=1))
        other.on_peer_frame(known, elsewhere.now_s)
        hello = {"former_broker": "b0:1", **hello}
        elsewhere.connect("mallory", client_id="ann", **hello)
        for frame in session_moves(elsewhere.effects):
            here.keep(here.core.on_peer_frame(frame, here.now_s))

    @pytest.mark.parametrize("former_broker", ["", "b0.example.org:7400"])
    def test_a_broker_is_found_by_its_id_whatever_the_client_calls_it(
        self, broker: LoneBroker, former_broker: str
    ) -> None:
        session_id = broker.core.registry.clients["ann"].session_id
        said = {"token": "ann's", "session_id": session_id, "former_broker": former_broker}
        self.told(broker, elsewhere(), **said, former_broker_id="b9")
        assert "ann" in broker.core.registry.clients
        self.told(broker, elsewhere(), **said, former_broker_id="b0")
        assert "ann" not in broker.core.registry.clients

    @pytest.mark.parametrize(("token", "is_moved"), [("ann's", True), ("mallory's", False)])
    def test_only_the_same_tokens_client_gives_a_session_up(
        self, broker: LoneBroker, token: str, is_moved: bool
    ) -> None:
        session = broker.core.registry.clients["ann"]
        self.told(broker, elsewhere(), token=token, session_id=session.session_id)
        assert ("ann" not in broker.core.registry.clients) == is_moved
        assert broker.core.counters.session_moves_not_believed == (not is_moved)

    def test_the_id_of_a_session_cannot_be_counted_up(self, broker: LoneBroker) -> None:
        """Where there are no tokens it is all that protects a session."""
        known = welcome(broker, "mallory").session_id
        for number in range(10):
            life = known.rpartition("/")[0]
            self.told(broker, elsewhere(), token="ann's", session_id=f"{life}/{number}")
        assert "ann" in broker.core.registry.clients

    def test_nor_guessed_from_another(self, broker: LoneBroker) -> None:
        ids = [session.session_id for session in broker.core.registry.clients.values()]
        secrets = {session_id.rpartition("-")[2] for session_id in ids}
        assert len(secrets) == len(ids)
        assert all(len(secret) == 16 for secret in secrets)


def elsewhere() -> LoneBroker:
    settings = CoreSettings()
    tokens = [rules("ann's", **EVERYTHING), rules("mallory's", **EVERYTHING)]
    return LoneBroker(settings, access=Access(settings, tokens), broker_id="b1")


def session_moves(effects: list[BrokerEffect]) -> list[PeerFrame]:
    frames = [effect.frame for effect in effects if isinstance(effect, SendFrame)]
    return [f for f in frames if any(m.HasField("session_moved") for m in f.messages)]


def welcome(broker: LoneBroker, client: str) -> Welcome:
    (first,) = [m.welcome for m in broker.hear(client) if m.HasField("welcome")]
    return first
