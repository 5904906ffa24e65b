"""The catalogue: the names of all topics that have events, as topics that brokers can read.

Rendezvous is per concrete topic, so whoever wants every topic that matches a filter must learn
which topics there are. That is what the catalogue is for: `CATALOGUE_SHARDS` topics of the
system's own, each with the names of those topics whose keys begin with the same bits. It needs no
protocol of its own: a name is an event, entered by publishing it, learnt of by subscribing, kept
and handed on like any topic's history.

    rendezvous point of quake/ca             rendezvous point of $topics/1c
    first event stamped
      --Publish $topics/1c "quake/ca"-->     stamps it, copies it to its successor
      <--PublishAck------------------        ... --> whoever follows the catalogue
    acknowledges the first event

- *An acknowledged event's topic is in the catalogue.* The rendezvous point of a topic with events
  holds back their acknowledgements (levels `rp` and `replicated`) until its announcement has been
  acknowledged as `replicated`. Events themselves flow at once.
- A name is the one event, number 1, of a publisher that is a hash of the name. To announce it again
  is a repeat: acknowledged, not entered twice.
- With the name goes the term that the topic began in. Whoever learns of the topic reads it from
  there, and is told if its rendezvous point does not know that term: what the topic had is lost.
- That a topic is announced is part of its state (`announced`), which its replica is told and its
  next rendezvous point inherits: acknowledgements wait for the catalogue once in a topic's life. It
  does not say that the name is still there. A part loses names when both its holders die, and when
  it is full; so all names are announced again, for ever, and at once where a part's history turns
  out to be another (`listing`).
- A name stays as long as the catalogue has room (`catalogue_names_max`), whatever becomes of its
  topic. Past the bound the oldest names go, and are counted; those whose topics live come back.

What a catalogue topic keeps is bounded by itself, not by what the node has left for events: a name
forgotten is a topic that newcomers never hear of. System topics are announced nowhere. To follow
the catalogue is a broker's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from dynatops.kit.repeats import PublisherId
from dynatops.v1.overlay_pb2 import AckLevel, Acknowledged, Event, Events, Publication, Run
from overlay.base.identifiers import NUMBER_MAX, RING_BITS, key_of

CATALOGUE_SHARDS = 32
# Topics of the system's own begin like this; clients neither publish nor subscribe to them.
SYSTEM_PREFIX = "$"
_CATALOGUE_PREFIX = "$topics/"
# The attribute of a name that says in which term the topic began.
_BEGAN = "began"
_SHARD_SHIFT = RING_BITS - CATALOGUE_SHARDS.bit_length() + 1


def is_system(topic: str) -> bool:
    return topic.startswith(SYSTEM_PREFIX)


def is_catalogue(topic: str) -> bool:
    return topic.startswith(_CATALOGUE_PREFIX)


def shard_topics() -> list[str]:
    """All topics of the catalogue."""
    return [_shard(number) for number in range(CATALOGUE_SHARDS)]


def shard_topic(topic: str) -> str:
    """The one that this topic's name belongs in."""
    return _shard(key_of(topic) >> _SHARD_SHIFT)


def _shard(number: int) -> str:
    return f"{_CATALOGUE_PREFIX}{number:02x}"


def announcer_of(topic: str) -> PublisherId:
    """The publisher whose only event is this name: bytes of the SHA-1 that the key leaves over."""
    digest = hashlib.sha1(topic.encode(), usedforsecurity=False).digest()
    return PublisherId(int.from_bytes(digest[8:16], "big"))


def announcement_of(topic: str, known: tuple[int, int] = (0, 0), began: int = 0) -> Publication:
    """What enters the name in the catalogue, with the term that the topic began in. Its announcer
    knows that this part of the catalogue stood at `known` when it had all that was announced
    before."""
    known_term, known_seq = known
    name = Event(payload=topic.encode())
    if began:
        name.attributes.add(name=_BEGAN, whole=began)
    return Publication(
        topic=shard_topic(topic),
        publisher=announcer_of(topic),
        first_number=1,
        count=1,
        ack=AckLevel.ACK_LEVEL_REPLICATED,
        events=Events(events=[name]).SerializeToString(),
        known_term=known_term,
        known_seq=known_seq,
    )


@dataclass(frozen=True, slots=True)
class Entered:
    """A name is in the catalogue: the answer to its announcement, which claimed this position."""

    topic: str
    claim: tuple[int, int]
    ack: Acknowledged


def names_in(runs: Iterable[Run]) -> list[str]:
    """The names in events of catalogue topics; what is no name is left out."""
    names: list[str] = []
    for run in runs:
        try:
            names += [event.payload.decode() for event in Events.FromString(run.events).events]
        except (DecodeError, UnicodeDecodeError):
            continue
    return names


def began_in(event: Event) -> int:
    """The term that the topic of this name began in; 0 if that is not said."""
    said = next((each.whole for each in event.attributes if each.name == _BEGAN), 0)
    return said if 0 < said <= NUMBER_MAX else 0
