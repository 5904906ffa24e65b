"""Numbers that no honest node sends.

Terms and numbers of events only ever grow by small steps, and are never near the end of what the
wire can carry. One that is would be remembered, passed on, and exceeded by the next reign: so a
message with such a number is ignored as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from dynatops.kit.bundles import is_whole
from dynatops.v1.overlay_pb2 import (
    Acknowledgements,
    Beats,
    Bundle,
    Publication,
    Publish,
    ReplicaAck,
    Run,
    Runs,
)
from overlay.base.beats import are_whole
from overlay.base.identifiers import NUMBER_MAX

_COUNTING = frozenset(
    {
        "term",
        "after_term",
        "since_term",
        "prev_term",
        "known_term",
        "anchor_term",
        "uncertain_terms",
    }
    | {
        "seq",
        "after_seq",
        "since_seq",
        "prev_seq",
        "known_seq",
        "first_seq",
        "number",
        "first_number",
        "high",
        "settled",
    }
)
# More than a message can have made, far less than the wire can carry.
_HOPS_MAX = 1 << 16


def is_sound(message: Message) -> bool:
    """Whether all terms and numbers in it can be."""
    # Classes have a hash; the stubs take that of their instances, which have none, for it.
    kind: Any = type(message)
    rule = _RULES.get(kind)
    if rule is not None:
        return rule(message)
    return not _has_numbers(kind) or _has_sound_fields(message)


def _has_sound_fields(message: Message) -> bool:
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if field.is_repeated else (value,)
            if not all(is_sound(part) for part in parts):
                return False
        elif field.name in _COUNTING and _highest(value) > NUMBER_MAX:
            return False
    return True


def _are_sound_runs(message: Runs) -> bool:
    bundles = all(map(_is_stamped_bundle, message.bundles))
    beats = all(map(_are_sound_beats, message.beats))
    return bundles and beats and all(map(_is_sound_run, message.runs))


def _is_sound_publish(message: Publish) -> bool:
    publications = all(_is_sound_publication(each) for each in message.publications)
    return publications and all(map(_is_new_bundle, message.bundles))


def _is_sound_replica_ack(message: ReplicaAck) -> bool:
    equally_long = len(message.topics) == len(message.terms) == len(message.seqs)
    return equally_long and max((*message.terms, *message.seqs), default=0) <= NUMBER_MAX


def is_sound_bundle(wire: Bundle) -> bool:
    """Whether it is whole, and all numbers in it can be."""
    if not is_whole(wire) or min(wire.numbers) < 1 or max(wire.numbers) >= NUMBER_MAX:
        return False
    if wire.pending:
        return all(map(int.__lt__, wire.pending, wire.numbers))
    # The first of a term says where that began, which a bundle cannot.
    return max(wire.terms) <= NUMBER_MAX and min(wire.seqs) > 1 and max(wire.seqs) < NUMBER_MAX


def is_sound_columns(wire: Acknowledgements) -> bool:
    count = len(wire.topics)
    if not count == len(wire.numbers) == len(wire.terms) == len(wire.seqs):
        return False
    return max((*wire.numbers, *wire.terms, *wire.seqs), default=0) <= NUMBER_MAX


@cache
def _has_numbers(kind: type[Message]) -> bool:
    """Whether messages of this kind can have any; questions about the ring, for one, cannot."""
    descriptor: Any = kind.DESCRIPTOR
    return _counts(descriptor, frozenset())


def _counts(kind: Descriptor, inside: frozenset[str]) -> bool:
    if kind.full_name in _RULED:
        return True
    inside |= {kind.full_name}
    return any(
        field.name in _COUNTING
        or (
            field.message_type is not None
            and field.message_type.full_name not in inside
            and _counts(field.message_type, inside)
        )
        for field in kind.fields
    )


def _highest(value: int | Iterable[int]) -> int:
    return value if isinstance(value, int) else max(value)


def _is_stamped_bundle(bundle: Bundle) -> bool:
    return bool(bundle.terms) and is_sound_bundle(bundle) and bundle.hops <= _HOPS_MAX


def _are_sound_beats(wire: Beats) -> bool:
    if not are_whole(wire):
        return False
    # What follows is still a number.
    highest = max(*wire.terms, *wire.prev_terms, *wire.prev_seqs)
    return highest <= NUMBER_MAX and max(wire.seqs) < NUMBER_MAX


def _is_new_bundle(bundle: Bundle) -> bool:
    return not bundle.terms and is_sound_bundle(bundle)


def _is_sound_publication(publication: Publication) -> bool:
    """As by its fields, without a copy of its events."""
    numbers = (publication.first_number, publication.settled)
    known = (publication.known_term, publication.known_seq)
    return max(*numbers, *known) <= NUMBER_MAX


def _is_sound_run(run: Run) -> bool:
    """Events and heartbeats have numbers from 1; what follows them is still a number."""
    after = run.first_seq + run.count
    last_number = run.first_number + run.count if run.count else 0
    highest = max(run.term, after, last_number, run.prev_term, run.prev_seq, run.missing)
    is_numbered = run.first_seq >= 1 and (run.first_number >= 1 or not run.count)
    return highest <= NUMBER_MAX and is_numbered and run.hops <= _HOPS_MAX


# These have rules of their own, without looking at every field.
_RULES: dict[Any, Callable[[Any], bool]] = {
    Acknowledgements: is_sound_columns,
    Beats: _are_sound_beats,
    Bundle: _is_stamped_bundle,
    Publish: _is_sound_publish,
    ReplicaAck: _is_sound_replica_ack,
    Run: _is_sound_run,
    Runs: _are_sound_runs,
}
_RULED = frozenset(kind.DESCRIPTOR.full_name for kind in _RULES)
