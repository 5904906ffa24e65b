"""Heartbeats of many topics that come together, against the same one by one: trees learn, pass on
and deliver the same; and what a reader passes over would have told it nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dynatops.v1 import overlay_pb2 as wire_pb2
from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage, Position, Run, Runs
from overlay.base.beats import Beats, are_whole
from overlay.base.effects import Deliver, DeliverBeats, Effect, Send
from overlay.history.reader import TopicReader
from overlay.soundness import is_sound
from tests.support.nodes import NodeNet

TOPICS = tuple(f"t/{i}" for i in range(5))
TERM = 1 << 24
TERMS = (TERM, 2 * TERM, 3 * TERM)


class Beat(NamedTuple):
    topic: int
    term: int
    seq: int
    times: int
    origin: tuple[int, int]


ORIGINS = st.sampled_from(((0, 0), (TERM, 1), (TERM, 2), (2 * TERM, 1)))
BEATS = st.lists(
    st.builds(
        Beat,
        st.integers(0, len(TOPICS) - 1),
        st.sampled_from(TERMS),
        st.integers(0, 3),
        st.integers(1, 3),
        ORIGINS,
    ),
    min_size=1,
    max_size=8,
)


def columns(beats: Iterable[Beat]) -> Beats:
    topics, terms, seqs, times, origins = zip(*beats, strict=True)
    return Beats([TOPICS[topic] for topic in topics], terms, seqs, times, origins)


class Member:
    """A broker's node that is in the trees of all topics, some as their root, and hears this from
    another."""

    def __init__(self) -> None:
        self.net = NodeNet()
        self.net.ring((1 << 20, 1 << 62, 3 << 61, 7 << 60))
        for topic in TOPICS:
            for name in ("n1", "n3"):
                self.net.want(name, topic)
        self.net.run(3.0)
        self.node = self.net.nodes["n1"]

    def hears(self, runs: Runs) -> list[Effect]:
        assert is_sound(runs)
        frame = PeerFrame(
            sender=self.net.nodes["n0"].me.ref,
            to=self.node.me.node_id,
            messages=[PeerMessage(runs=runs)],
        )
        return self.node.handle(frame, self.net.now_s)

    def known(self) -> dict[str, object]:
        trees = self.node.trees.topics
        return {topic: (trees[topic].position, trees[topic].origin) for topic in TOPICS}


def said(run: Run) -> tuple[object, ...]:
    return (run.topic, run.term, run.first_seq, run.beat, run.prev_term, run.prev_seq, run.count)


def shown(effects: Iterable[Effect]) -> tuple[list[object], list[object], list[object]]:
    """What is delivered, what is passed on to each node, and all else; in columns or not."""
    delivered: list[object] = []
    passed_on: list[object] = []
    others: list[object] = []
    for effect in effects:
        if isinstance(effect, Deliver):
            delivered.append(said(effect.run))
        elif isinstance(effect, DeliverBeats):
            delivered += [said(effect.beats.run_at(p)) for p in range(len(effect.beats))]
        elif isinstance(effect, Send):
            for message in effect.frame.messages:
                runs = list(message.runs.runs)
                for wire in message.runs.beats:
                    beats = Beats.from_wire(wire)
                    runs += [beats.run_at(place) for place in range(len(beats))]
                passed_on += [(effect.to.node_id, said(run)) for run in runs]
                if not runs:
                    others.append((effect.to.node_id, message.SerializeToString()))
        else:
            others.append(effect)
    # A topic's own keep their order.
    return sorted(delivered, key=str), sorted(passed_on, key=str), sorted(others, key=str)


@given(st.lists(BEATS, max_size=4))
def test_beats_say_the_same(frames: list[list[Beat]]) -> None:
    together, singly = Member(), Member()
    for frame in frames:
        beats = columns(frame)
        in_columns = Runs()
        beats.fill(in_columns.beats.add())
        runs = Runs(runs=[beats.run_at(place) for place in range(len(beats))])
        assert shown(together.hears(in_columns)) == shown(singly.hears(runs))
        assert together.known() == singly.known()


@given(
    at=st.tuples(st.sampled_from(TERMS), st.integers(0, 3)),
    steps=st.lists(
        st.builds(
            Run,
            topic=st.just("t"),
            term=st.sampled_from(TERMS),
            first_seq=st.integers(1, 5),
            count=st.sampled_from((0, 1)),
            publisher=st.just(7),
            first_number=st.integers(1, 9),
            prev_term=st.sampled_from((0, TERM)),
            prev_seq=st.integers(0, 3),
        ),
        max_size=6,
    ),
    beat=st.builds(
        Beat, st.just(0), st.sampled_from(TERMS), st.integers(0, 5), st.just(1), ORIGINS
    ),
)
def test_what_is_passed_over_is_no_news(at: tuple[int, int], steps: list[Run], beat: Beat) -> None:
    reader = TopicReader("t", 100)
    reader.observe(Position(term=at[0], seq=at[1]))
    for run in steps:
        reader.offer(run)
    term, seq = beat.term, beat.seq
    for heard in (columns([beat]), columns([beat._replace(term=at[0], seq=reader.position[1])])):
        term, seq = heard.terms[0], heard.seqs[0]
        if reader.has_just_read(term, seq):
            before = (reader.cursor, reader.position, reader.is_ahead, reader.is_behind)
            assert reader.offer(heard.run_at(0)) == []
            assert before == (reader.cursor, reader.position, reader.is_ahead, reader.is_behind)


def test_columns_that_are_not_equally_long() -> None:
    beats = columns([Beat(0, TERM, 1, 1, (0, 0)), Beat(1, TERM, 1, 1, (0, 0))])
    wire = Runs()
    beats.fill(wire.beats.add())
    assert are_whole(wire.beats[0])
    for name in ("topics", "terms", "seqs", "counts", "prev_terms", "prev_seqs"):
        shorter = Runs()
        shorter.CopyFrom(wire)
        del getattr(shorter.beats[0], name)[-1]
        assert not is_sound(shorter)
    assert not is_sound(Runs(beats=[wire_pb2.Beats()]))
