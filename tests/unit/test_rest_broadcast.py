"""Events for watchers: in order, bounded, and how a stream goes on after a break."""

from __future__ import annotations

import asyncio
import json

import pytest

from reconfig_manager.rest.broadcast import (
    Broadcast,
    CallerWatchesTooMuchError,
    TooManyWatchersError,
    Watcher,
)


def broadcast(watchers: int = 2, events: int = 3, kept: int = 4, each: int = 99) -> Broadcast:
    return Broadcast(
        "m1",
        watchers_max=watchers,
        caller_watchers_max=each,
        watcher_events_max=events,
        kept=kept,
    )


def tell(home: Broadcast, *numbers: int) -> None:
    for number in numbers:
        home.publish({"type": "plan", "number": number})


async def taken(watcher: Watcher) -> list[tuple[str, int | None]]:
    """(kind, number) of all that waits."""
    found = []
    while (event := await watcher.next(0)) is not None:
        found.append((event.kind, json.loads(event.data).get("number")))
    return found


def test_each_watcher_gets_every_event_in_order() -> None:
    async def run() -> None:
        home = broadcast()
        with home.watch() as first, home.watch() as second:
            tell(home, 1, 2)
            assert await taken(first) == [("plan", 1), ("plan", 2)]
            assert await taken(second) == [("plan", 1), ("plan", 2)]
            tell(home, 3)
            assert await taken(first) == [("plan", 3)]

    asyncio.run(run())


def test_it_wakes_who_waits() -> None:
    async def run() -> None:
        home = broadcast()
        with home.watch() as watcher:
            waiting = asyncio.create_task(watcher.next(60))
            await asyncio.sleep(0)
            tell(home, 1)
            event = await waiting
            assert event is not None
            assert event.id == "m1-1"

    asyncio.run(run())


def test_one_that_is_too_slow_is_ended_and_others_go_on() -> None:
    async def run() -> None:
        home = broadcast(events=3)
        with home.watch() as slow, home.watch() as fast:
            tell(home, 1, 2, 3)
            assert len(await taken(fast)) == 3
            tell(home, 4, 5)
            assert [kind for kind, _ in await taken(slow)] == ["overflow"]
            assert slow.over
            assert await taken(fast) == [("plan", 4), ("plan", 5)]
            assert home.overflows == 1

    asyncio.run(run())


def test_there_is_room_for_so_many() -> None:
    home = broadcast(watchers=1)
    with home.watch():
        with pytest.raises(TooManyWatchersError):
            home.watch()
        assert home.turned_away == 1
    with home.watch():
        assert len(home) == 1
    assert len(home) == 0


@pytest.mark.parametrize(
    ("last_id", "expected"),
    [
        ("", []),
        ("m1-6", []),
        ("m1-4", [("plan", 5), ("plan", 6)]),
        ("m1-3", [("plan", 4), ("plan", 5), ("plan", 6)]),
        # Kept, but more than may wait.
        ("m1-2", [("reset", None)]),
        # Not kept any more.
        ("m1-1", [("reset", None)]),
        ("m1-7", [("reset", None)]),
        ("m0-4", [("reset", None)]),
        ("m1-", [("reset", None)]),
        ("m1-" + "9" * 100, [("reset", None)]),
        ("nonsense", [("reset", None)]),
    ],
)
def test_one_that_comes_back(last_id: str, expected: list[tuple[str, int | None]]) -> None:
    async def run() -> None:
        home = broadcast()
        tell(home, 1, 2, 3, 4, 5, 6)
        with home.watch(last_id) as watcher:
            assert await taken(watcher) == expected

    asyncio.run(run())


def test_closing_ends_all_of_them_and_those_to_come() -> None:
    async def run() -> None:
        home = broadcast()
        with home.watch() as watcher:
            tell(home, 1)
            home.close()
            tell(home, 2)
            assert [kind for kind, _ in await taken(watcher)] == ["plan", "ended"]
            assert watcher.over
            with home.watch() as late:
                assert [kind for kind, _ in await taken(late)] == ["ended"]

    asyncio.run(run())


def test_losing_the_lead_ends_those_that_watch_now() -> None:
    async def run() -> None:
        home = broadcast()
        with home.watch() as watcher:
            home.end("another manager leads")
            assert [kind for kind, _ in await taken(watcher)] == ["ended"]
        with home.watch() as later:
            assert not later.over

    asyncio.run(run())


def test_one_caller_leaves_streams_for_others() -> None:
    home = broadcast(watchers=4, each=2)
    with home.watch(caller="viewer") as first, home.watch(caller="viewer"):
        with pytest.raises(CallerWatchesTooMuchError, match="viewer has 2"):
            home.watch(caller="viewer")
        assert home.turned_away == 1
        with home.watch(caller="ops"):
            assert len(home) == 3
        home.leave(first)
        with home.watch(caller="viewer"):
            assert len(home) == 2
