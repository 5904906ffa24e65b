"""Which broker a client turns to next."""

from __future__ import annotations

from random import Random

from dynatops.client.core.destinations import (
    AVOIDED_FOR_S,
    AVOIDED_MAX,
    KNOWN_MAX,
    Destination,
    Destinations,
    FailedLately,
)


def at_b0(*others: str) -> Destinations:
    destinations = Destinations(["b0"], Random(1))
    destinations.reached("b0")
    destinations.learn(["b0", *others])
    return destinations


def test_all_seeds_and_again_the_one_that_failed_longest_ago() -> None:
    destinations = Destinations(["a", "b", "c", "a"], Random(1))
    tried = []
    for now_s in range(7):
        tried.append(destinations.next(now_s).address)
        destinations.failed_at(tried[-1], now_s)
    assert sorted(tried[:3]) == ["a", "b", "c"]
    assert tried == [*tried[:3], *tried[:3], tried[0]]


def test_the_first_broker_is_any_of_those_given() -> None:
    """Algorithm 1: a user begins with a random broker."""
    firsts = [Destinations("abc", Random(seed)).next(0.0).address for seed in range(300)]
    assert min(firsts.count(address) for address in "abc") > 70


def test_the_broker_that_was_lost_is_the_last_to_be_tried() -> None:
    for seed in range(20):
        destinations = Destinations(["b0"], Random(seed))
        destinations.reached("b0")
        destinations.learn(["b0", "b1", "b2"])
        destinations.failed_at("b0", 1.0)
        first = destinations.next(1.0).address
        destinations.failed_at(first, 1.1)
        second = destinations.next(1.1).address
        assert {first, second} == {"b1", "b2"}
        destinations.failed_at(second, 1.2)
        assert destinations.next(1.2) == Destination("b0")


def test_only_one_broker_is_tried_again_and_again() -> None:
    destinations = at_b0()
    for now_s in range(3):
        destinations.failed_at("b0", now_s)
        assert destinations.next(now_s) == Destination("b0")


def test_who_is_sent_somewhere_in_vain_goes_back_and_it_is_no_loss() -> None:
    destinations = at_b0("b1")
    destinations.send_to("dead", 1.0)
    assert destinations.is_sent
    assert destinations.next(1.0) == Destination("dead", redirected=True)
    destinations.failed_at("dead", 1.1)
    assert destinations.is_sent
    assert destinations.next(1.1) == Destination("b0")
    assert destinations.failed.latest(1.1) == ["dead"]
    destinations.reached("b0")
    assert not destinations.is_sent


def test_if_the_broker_that_sent_it_is_gone_too_that_is_a_loss() -> None:
    destinations = at_b0("b1")
    destinations.send_to("dead", 1.0)
    destinations.failed_at("dead", 1.1)
    destinations.failed_at("b0", 1.2)
    assert not destinations.is_sent
    assert destinations.next(1.2) == Destination("b1")


def test_the_way_is_known_though_the_broker_that_sent_it_dies_meanwhile() -> None:
    destinations = at_b0("b1")
    destinations.send_to("b1", 1.0)
    destinations.failed_at("b0", 1.1)
    assert destinations.next(1.1) == Destination("b1", redirected=True)
    destinations.failed_at("b1", 1.2)
    assert not destinations.is_sent


def test_it_does_not_go_where_it_has_just_failed_whoever_says_so() -> None:
    destinations = at_b0("b1")
    destinations.failed.note_failure("dead", 1.0)
    destinations.send_to("dead", 2.0)
    # The broker hears once more what is to be avoided, and is asked for peace.
    assert destinations.next(2.0) == Destination("b0", redirected=True)
    destinations.reached("b0")
    destinations.send_to("dead", 1.0 + AVOIDED_FOR_S)
    assert destinations.next(1.0 + AVOIDED_FOR_S).address == "dead"


def test_what_is_remembered_is_bounded_and_forgotten_in_time() -> None:
    failed = FailedLately()
    for i in range(KNOWN_MAX + 10):
        failed.note_failure(f"b{i}", float(i) / 1_000)
    assert failed.when_s("b9", 1.0) is None
    assert failed.latest(1.0) == [f"b{KNOWN_MAX + 9 - i}" for i in range(AVOIDED_MAX)]
    failed.forget_failure(f"b{KNOWN_MAX + 9}")
    assert failed.latest(1.0)[0] == f"b{KNOWN_MAX + 8}"
    assert failed.latest(AVOIDED_FOR_S + 1.0) == []
    destinations = Destinations(["seed"], Random(1))
    destinations.learn(f"b{i}" for i in range(10_000))
    tried = set()
    for now_s in range(KNOWN_MAX + 1):
        tried.add(destinations.next(now_s / 1_000).address)
        destinations.failed_at(destinations.next(now_s / 1_000).address, now_s / 1_000)
    assert len(tried) == KNOWN_MAX
    assert "seed" in tried
