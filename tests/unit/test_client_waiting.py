"""Calls that wait for what becomes of events on many topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dynatops.client.core.publications import Rejected
from dynatops.client.errors import ClosedError, PublishError
from dynatops.client.waiting import Together, Waiting


def waited(scenario: Callable[[Waiting, Together], asyncio.Future[None]]) -> Exception | None:
    """How a call ends: of events a:1, b:1 and, later, a:3, after what the scenario does."""

    async def run() -> Exception | None:
        waiting, together = Waiting(), Together()
        waiting.add(together, {"a": 1, "b": 1})
        future = scenario(waiting, together)
        try:
            async with asyncio.timeout(5.0):
                await future
        except PublishError as error:
            waiting.on_failed(error)
            return error
        waiting.on_failed(ClosedError("the test is over"))
        return None

    return asyncio.run(run())


def test_what_is_confirmed_while_more_is_published_counts() -> None:
    def scenario(waiting: Waiting, together: Together) -> asyncio.Future[None]:
        waiting.on_confirmed("a", 1)
        waiting.on_confirmed("b", 1)
        assert not together.future.done()
        waiting.add(together, {"a": 3})
        future = waiting.published_together(together, 1.0)
        waiting.on_confirmed("a", 2)
        assert not future.done()
        waiting.on_confirmed("a", 3)
        return future

    assert waited(scenario) is None


def test_nothing_more_to_wait_for() -> None:
    def scenario(waiting: Waiting, together: Together) -> asyncio.Future[None]:
        waiting.on_confirmed("a", 7)
        waiting.on_confirmed("b", 1)
        return waiting.published_together(together, 1.0)

    assert waited(scenario) is None


@pytest.mark.parametrize("number", [1, 3])
def test_one_that_is_refused(number: int) -> None:
    def scenario(waiting: Waiting, together: Together) -> asyncio.Future[None]:
        waiting.add(together, {"a": 3})
        waiting.on_rejected(Rejected("a", number, number, 0, "not allowed"))
        future = waiting.published_together(together, 1.0)
        waiting.on_confirmed("a", 3)
        waiting.on_confirmed("b", 1)
        return future

    error = waited(scenario)
    assert isinstance(error, PublishError)
    assert (error.topic, error.reason) == ("a", "not allowed")


def test_a_topic_that_is_late_is_named() -> None:
    def scenario(waiting: Waiting, together: Together) -> asyncio.Future[None]:
        waiting.on_confirmed("a", 1)
        return waiting.published_together(together, 0.01)

    error = waited(scenario)
    assert isinstance(error, PublishError)
    assert (error.topic, error.may_arrive) == ("b", True)
    assert "other topics" not in error.reason


def test_calls_on_the_same_topic_are_answered_each_at_its_own_number() -> None:
    async def run() -> None:
        waiting = Waiting()
        futures = [waiting.published("a", number, 5.0) for number in (1, 2, 4)]
        waiting.on_confirmed("a", 2)
        assert [future.done() for future in futures] == [True, True, False]
        waiting.on_rejected(Rejected("a", 3, 3, 0, "another's"))
        assert not futures[2].done()
        waiting.on_confirmed("a", 4)
        assert futures[2].done()
        waiting.on_failed(ClosedError("the test is over"))

    asyncio.run(run())
