"""What may be the name of a topic. Clients check before sending, brokers before accepting."""

from __future__ import annotations

from functools import lru_cache

from dynatops.v1.client_pb2 import ErrorCode

TOPIC_BYTES_MAX = 1_024
# Filters are made of these; a name never contains them.
RESERVED_CHARACTERS = "+#"
# Names that begin like this are the system's own.
RESERVED_PREFIX = "$"
# No topic, but what a cursor is called that counts by streams: brokers in a tree number the events
# that they take themselves, over all topics, and a client has one place in each such stream.
STREAMS = "$streams"


class TopicError(ValueError):
    """The text is no topic name."""

    def __init__(self, topic: str, code: ErrorCode.ValueType, reason: str) -> None:
        super().__init__(f"topic {_abbreviated(topic)} {reason}")
        self.topic = topic
        self.code = code
        self.reason = reason


# Whoever publishes names the same few topics again and again. One that is wrong is not remembered.
@lru_cache(maxsize=16_384)
def check_topic(topic: str, bytes_max: int = TOPIC_BYTES_MAX) -> None:
    """Raise TopicError unless `topic` may be published and subscribed to."""
    if not topic:
        raise TopicError(topic, ErrorCode.ERROR_CODE_TOPIC_EMPTY, "is empty")
    try:
        size = len(topic) if topic.isascii() else len(topic.encode())
    except UnicodeEncodeError:
        raise TopicError(
            topic, ErrorCode.ERROR_CODE_TOPIC_INVALID, "cannot be written as UTF-8"
        ) from None
    if size > bytes_max:
        raise TopicError(
            topic,
            ErrorCode.ERROR_CODE_TOPIC_TOO_LONG,
            f"has {size:,} bytes; the limit is {bytes_max:,}",
        )
    for character in RESERVED_CHARACTERS:
        if character in topic:
            raise TopicError(
                topic,
                ErrorCode.ERROR_CODE_TOPIC_INVALID,
                f"contains {character!r}, which is reserved for filters",
            )
    if topic.startswith(RESERVED_PREFIX):
        raise TopicError(
            topic,
            ErrorCode.ERROR_CODE_TOPIC_INVALID,
            f"begins with {RESERVED_PREFIX!r}, which is reserved for the system",
        )
    if "\0" in topic:
        raise TopicError(topic, ErrorCode.ERROR_CODE_TOPIC_INVALID, "contains a NUL character")


def _abbreviated(topic: str, characters_max: int = 40) -> str:
    return repr(topic if len(topic) <= characters_max else topic[:characters_max] + "…")
