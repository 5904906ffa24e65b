"""A link gives all that is said in a session, once and in order, whatever the network does."""

from __future__ import annotations

import heapq
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.v1.overlay_pb2 import LinkBatch, NodeRef, PeerFrame, TableConfirmed
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.links.link import Link, session_numbers

SETTINGS = ForwardingSettings()


class Pair:
    """Two ends over a network that does what it likes."""

    def __init__(self, rng: Random, loss: float, *, resets: bool) -> None:
        self.rng, self.loss, self.resets = rng, loss, resets
        self.now_s = 0.0
        self.lives = 0
        self.on_the_way: list[tuple[float, int, int, bytes]] = []
        self.counters = ForwardingCounters()
        self.ends = [self._end(0), self._end(1)]
        # By (session of the sender, session of the receiver): what was said, and what was heard.
        self.said: dict[tuple[int, int], list[int]] = {}
        self.heard: dict[tuple[int, int], list[int]] = {}
        self.next = 0

    def _end(self, place: int) -> Link:
        self.lives += 1
        me = NodeRef(broker_id="ab"[place], incarnation=1_000 + self.lives)
        sessions = session_numbers(me.incarnation)
        return Link(me, SETTINGS, self.counters, sessions, 1, 1, self.now_s)

    def send(self, place: int) -> None:
        for frame in self.ends[place].frames(self.now_s):
            for _ in range(2 if self.rng.random() < self.loss else 1):
                if self.rng.random() >= self.loss:
                    delay_s = self.rng.uniform(0.001, 0.3 if self.loss else 0.01)
                    self.next += 1
                    entry = (self.now_s + delay_s, self.next, 1 - place, frame.SerializeToString())
                    heapq.heappush(self.on_the_way, entry)

    def say(self, place: int) -> None:
        end = self.ends[place]
        if end.is_up:
            self.next += 1
            end.message(10).table_confirmed.CopyFrom(TableConfirmed(version=self.next))
            self.said.setdefault((end.session, end.theirs), []).append(self.next)

    def hear(self, place: int, data: bytes) -> None:
        end = self.ends[place]
        for message in PeerFrame.FromString(data).messages:
            if message.HasField("link_greeting"):
                end.hear_greeting(message.link_greeting, self.now_s)
            else:
                ready: list[LinkBatch] = end.hear_batch(message.link_batch, self.now_s)
                for batch in ready:
                    key = (batch.session, batch.heard)
                    heard = self.heard.setdefault(key, [])
                    heard += [each.table_confirmed.version for each in batch.messages]

    def run(self, end_s: float, *, talk: bool) -> None:
        while self.now_s < end_s:
            self.now_s += 0.05
            while self.on_the_way and self.on_the_way[0][0] <= self.now_s:
                _, _, place, data = heapq.heappop(self.on_the_way)
                self.hear(place, data)
                self.send(place)
            for place in (0, 1):
                if talk and self.rng.random() < 0.5:
                    self.say(place)
                if self.resets and talk and self.rng.random() < 0.01:
                    self.ends[place] = self._end(place)
                self.ends[place].tick(self.now_s)
                self.send(place)

    def check(self) -> None:
        for key, heard in self.heard.items():
            assert heard == self.said.get(key, [])[: len(heard)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), loss=st.sampled_from([0.0, 0.1, 0.4]), resets=st.booleans())
def test_in_order_once_and_in_the_end_all(seed: int, loss: float, resets: bool) -> None:
    pair = Pair(Random(seed), loss, resets=resets)
    pair.run(10.0, talk=True)
    pair.check()
    pair.loss = 0.0
    pair.run(30.0, talk=False)
    pair.check()
    one, other = pair.ends
    assert one.is_up
    assert other.is_up
    assert (one.session, other.session) == (other.theirs, one.theirs)
    for key in ((one.session, other.session), (other.session, one.session)):
        assert pair.heard.get(key, []) == pair.said.get(key, [])
    assert one.is_idle
    assert other.is_idle
    assert one.unconfirmed_bytes == 0


def test_the_window_is_of_bytes() -> None:
    pair = Pair(Random(1), 0.0, resets=False)
    pair.run(2.0, talk=False)
    end = pair.ends[0]
    assert end.has_room
    end.message(SETTINGS.link_window_bytes).table_confirmed.version = 1
    assert not end.has_room
    pair.send(0)
    pair.run(3.0, talk=False)
    assert end.has_room


def test_silence_ends_the_session() -> None:
    pair = Pair(Random(1), 0.0, resets=False)
    pair.run(2.0, talk=False)
    first = pair.ends[0].session
    pair.loss = 1.0
    pair.run(2.0 + SETTINGS.peer_timeout_s + 0.5, talk=False)
    assert not pair.ends[0].is_up
    pair.loss = 0.0
    pair.run(10.0, talk=False)
    assert pair.ends[0].is_up
    assert pair.ends[0].session > first


def test_too_much_on_the_way_begins_anew() -> None:
    few = ForwardingSettings(link_batches_max=3, batch_bytes=1)
    counters = ForwardingCounters()
    pair = Pair(Random(1), 0.0, resets=False)
    me = NodeRef(broker_id="a", incarnation=9_999)
    pair.ends[0] = Link(me, few, counters, session_numbers(9_999), 1, 1, 0.0)
    pair.run(2.0, talk=False)
    for _ in range(5):
        pair.ends[0].message(1).table_confirmed.version = 1
    pair.send(0)
    assert counters.link_sessions_full == 1
    assert not pair.ends[0].is_up


@pytest.mark.parametrize("change", [{"peer_timeout_s": 0.5}, {"streams_max": 0}, {"progress_s": 0}])
def test_settings_that_cannot_be(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        ForwardingSettings(**change)  # type: ignore[arg-type]
