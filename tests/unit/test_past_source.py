"""What a reader of the past is told: parts, the end, and an error for each reason there is none."""

from __future__ import annotations

import asyncio

import pytest

from dynatops.client.core.histories import Histories, PastEnd, PastWish
from dynatops.client.errors import ClosedError, HistoryError
from dynatops.client.past_source import PastSource
from dynatops.v1.client_pb2 import Welcome
from dynatops.v1.overlay_pb2 import PastError


def _source() -> tuple[Histories, PastSource]:
    histories = Histories()
    list(histories.greeted(Welcome(histories=True)))
    number = histories.open(PastWish(pattern="quake/ca"))
    return histories, PastSource(histories, number, "quake/ca", lambda: None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PastError.PAST_ERROR_NOT_STORED, "not_stored"),
        (PastError.PAST_ERROR_FUTURE, "future"),
        (PastError.PAST_ERROR_EXPIRED, "expired"),
        (PastError.PAST_ERROR_FORBIDDEN, "forbidden"),
        (PastError.PAST_ERROR_OVERLOADED, "overloaded"),
        (PastError.PAST_ERROR_DAMAGED, "damaged"),
        (PastError.PAST_ERROR_UNAVAILABLE, "unavailable"),
        (PastError.PAST_ERROR_INVALID, "invalid"),
    ],
)
def test_why_there_is_no_past(error: PastError.ValueType, code: str) -> None:
    _, source = _source()
    source.put(PastEnd(source.number, error, "in a sentence"))
    with pytest.raises(HistoryError) as caught:
        asyncio.run(source.next_part())
    assert (caught.value.code, caught.value.pattern) == (code, "quake/ca")
    assert str(caught.value) == "the past of 'quake/ca': in a sentence"


def test_the_end_is_no_error() -> None:
    _, source = _source()
    source.put(PastEnd(source.number, PastError.PAST_ERROR_UNSPECIFIED, ""))
    assert asyncio.run(source.next_part()) is None


def test_a_client_that_is_closed_ends_it() -> None:
    _, source = _source()
    source.fail(ClosedError("the client is closed"))
    with pytest.raises(ClosedError):
        asyncio.run(source.next_part())


def test_what_another_broker_does_not_know_yet_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    histories, source = _source()
    monkeypatch.setattr("dynatops.client.past_source._AGAIN_S", 0.0)

    async def scenario() -> None:
        source.put(PastEnd(source.number, PastError.PAST_ERROR_NOT_STORED, "", went_on=True))
        source.put(PastEnd(source.number, PastError.PAST_ERROR_UNSPECIFIED, ""))
        histories.take_unsaid()
        assert await source.next_part() is None
        assert [m.WhichOneof("body") for m in histories.take_unsaid()] == ["history"]
        for _ in range(30):
            source.put(PastEnd(source.number, PastError.PAST_ERROR_NOT_STORED, "", went_on=True))
        with pytest.raises(HistoryError):
            await source.next_part()

    asyncio.run(scenario())
