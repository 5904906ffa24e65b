"""What is wrong with what a client asks for, if anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from broker_agent.core.settings import CoreSettings
from dynatops.topics import TopicError, check_topic
from dynatops.v1.client_pb2 import ErrorCode, TopicProblem
from dynatops.v1.overlay_pb2 import Events, Publication
from overlay.identifiers import NUMBER_MAX


@dataclass(frozen=True, slots=True)
class Problem:
    code: ErrorCode.ValueType
    message: str
    # Whether the publisher's numbers are used up all the same: nobody must wait for them.
    uses_up_numbers: bool


def problem_with(publication: Publication, settings: CoreSettings) -> Problem | None:
    """Why this publication is refused; None if it is not."""
    try:
        check_topic(publication.topic, settings.topic_bytes_max)
    except TopicError as error:
        return Problem(error.code, str(error), uses_up_numbers=False)
    last_number = publication.first_number + publication.count - 1
    if publication.first_number < 1 or max(last_number, publication.settled) > NUMBER_MAX:
        message = f"numbers {publication.first_number} to {last_number} are not between 1 and 2^63"
        return Problem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up_numbers=False)
    uses_up = publication.count > 0
    try:
        events = Events.FromString(publication.events).events
    except DecodeError:
        message = "the publication's events cannot be decoded"
        return Problem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up)
    if publication.count != len(events) or not events:
        found = f"{len(events)} events numbered {publication.first_number}"
        message = f"{found}, but {publication.count} announced"
        return Problem(ErrorCode.ERROR_CODE_PROTOCOL, message, uses_up)
    limit = settings.payload_bytes_max
    if len(publication.events) > limit:
        largest = max(len(event.payload) for event in events)
        if largest > limit:
            message = f"a payload has {largest:,} bytes; the limit is {limit:,}"
            return Problem(ErrorCode.ERROR_CODE_PAYLOAD_TOO_LARGE, message, uses_up)
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


def sort_topics(
    wanted: Iterable[str], present: Collection[str], settings: CoreSettings
) -> tuple[list[str], list[TopicProblem]]:
    """Which topics a session that has those present may add, and what is wrong with the others."""
    accepted: list[str] = []
    problems: list[TopicProblem] = []
    room = settings.topics_per_session_max - len(present)
    for topic in dict.fromkeys(wanted):
        try:
            check_topic(topic, settings.topic_bytes_max)
        except TopicError as error:
            problems.append(TopicProblem(topic=topic, code=error.code, message=str(error)))
            continue
        if topic not in present and room == 0:
            message = f"a session has at most {settings.topics_per_session_max:,} topics"
            code = ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
            problems.append(TopicProblem(topic=topic, code=code, message=message))
            continue
        room -= topic not in present
        accepted.append(topic)
    return accepted, problems
