"""Since when filters stand with a neighbour."""

from __future__ import annotations

from dynatops.kit.filters import Filter
from overlay.forwarding.tables.standing import StandingFilters

X, Y, ALL = Filter.parse("x"), Filter.parse("y"), Filter.parse("#")
STRONG = Filter.parse("x", "v > 5")


def standing(*confirmed: tuple[Filter, int]) -> StandingFilters:
    """Filters told one after the other, and in place when stream 7 was there."""
    found = StandingFilters()
    found.begin_session([])
    for version, (wanted, place) in enumerate(confirmed, 2):
        found.tell(version, [wanted], [])
        found.confirm(version, lambda place=place: {7: place})  # type: ignore[misc]
    return found


def test_nothing_stands_before_it_is_in_place() -> None:
    found = StandingFilters()
    found.begin_session([X])
    assert found.since([X]) is None
    assert not found.is_begun
    found.confirm(1, lambda: {7: 10})
    assert found.is_begun
    assert found.since([X]) == {7: 10}
    assert found.since([]) == {}


def test_all_stand_since_the_last_of_them() -> None:
    found = standing((X, 10), (Y, 20))
    assert found.since([X]) == {7: 10}
    assert found.since([X, Y]) == {7: 20}
    assert found.since([X, Filter.parse("z")]) is None


def test_a_filter_stands_with_one_that_covers_it() -> None:
    found = standing((ALL, 10), (X, 30))
    assert found.since([STRONG]) == {7: 10}
    assert standing((STRONG, 1)).since([X]) is None


def test_what_is_given_up_stands_anew() -> None:
    found = standing((X, 10))
    found.tell(3, [], [X])
    assert found.since([X]) is None
    found.tell(4, [X], [])
    assert found.since([X]) is None
    found.confirm(4, lambda: {7: 50})
    assert found.since([X]) == {7: 50}


def test_over_a_session_what_is_told_again_goes_on() -> None:
    found = standing((X, 10), (Y, 20))
    found.begin_session([X, ALL])
    assert found.since([X]) == {7: 10}
    assert found.since([Y]) is None
    found.confirm(1, lambda: {7: 40})
    assert found.since([Y]) == {7: 40}


def test_moments_are_forgotten_for_later_ones() -> None:
    filters = [Filter.parse(f"t/{i}") for i in range(500)]
    found = standing(*((each, place) for place, each in enumerate(filters)))
    since = [found.since([each]) for each in filters]
    places = [each[7] for each in since if each is not None]
    assert len(places) == 500
    assert places == sorted(places)
    assert all(place >= number for number, place in enumerate(places))
    assert len(set(places)) <= 33
    assert places[0] == 0
    assert places[-1] == 499


def test_too_many_are_not_compared() -> None:
    found = standing(*((Filter.parse(f"t/{i}"), i) for i in range(2_100)))
    assert found.since([Filter.parse("t/5")]) is not None
    assert found.since([Filter.parse("t/5", "v > 1")]) is None
