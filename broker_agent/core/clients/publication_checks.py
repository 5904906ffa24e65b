"""What is wrong with a publication, if anything."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.frame_bounds import EVENTS, FrameError, check_parts
from dynatops.kit.topics import TopicError, check_topic
from dynatops.v1.client_pb2 import ErrorCode
from dynatops.v1.overlay_pb2 import Events, Publication
from overlay.base.identifiers import NUMBER_MAX

# Of one event in a publication, however empty.
_EVENT_BYTES_MIN = 2


@dataclass(frozen=True, slots=True)
class PublicationProblem:
    code: ErrorCode.ValueType
    message: str
    # Whether the publisher's numbers are used up all the same: nobody must wait for them.
    uses_up_numbers: bool


def problem_with(publication: Publication, settings: CoreSettings) -> PublicationProblem | None:
    """Why this publication is refused; None if it is not."""
    try:
        check_topic(publication.topic, settings.topic_bytes_max)
    except TopicError as error:
        return PublicationProblem(error.code, str(error), uses_up_numbers=False)
    last_number = publication.first_number + publication.count - 1
    if publication.first_number < 1 or max(last_number, publication.settled) > NUMBER_MAX:
        message = f"numbers {publication.first_number} to {last_number} are not between 1 and 2^63"
        return PublicationProblem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up_numbers=False)
    # A copy each time it is asked for.
    raw = publication.events
    # No more than what was sent could hold: whoever wants to pass over many numbers must send as
    # many events.
    try:
        check_parts(raw, EVENTS, settings.frame_parts_max)
    except FrameError as error:
        return PublicationProblem(ErrorCode.ERROR_CODE_PROTOCOL, str(error), uses_up_numbers=False)
    uses_up = 0 < publication.count <= len(raw) // _EVENT_BYTES_MIN
    try:
        events = Events.FromString(raw).events
    except DecodeError:
        message = "the publication's events cannot be decoded"
        return PublicationProblem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up)
    if publication.count != len(events) or not events:
        found = f"{len(events)} events numbered {publication.first_number}"
        message = f"{found}, but {publication.count} announced"
        return PublicationProblem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up)
    limit = settings.payload_bytes_max
    if len(raw) > limit:
        largest = max(len(event.payload) for event in events)
        if largest > limit:
            message = f"a payload has {largest:,} bytes; the limit is {limit:,}"
            return PublicationProblem(ErrorCode.ERROR_CODE_PAYLOAD_TOO_LARGE, message, uses_up)
    return None


def void(publication: Publication) -> Publication:
    """In place of a refused publication: its numbers, without events."""
    return Publication(
        topic=publication.topic,
        publisher=publication.publisher,
        first_number=publication.first_number,
        count=publication.count,
        settled=publication.settled,
        void=True,
    )
