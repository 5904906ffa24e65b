"""The Advertisement Table: the rules of Storing, section III-A, and what happens after them."""

from __future__ import annotations

import pytest

from dynatops.kit.filters import FilterError
from overlay.forwarding.tables.held_filters import HERE
from overlay.stores.advertisement_table import AdvertisementTable, OfferStanding
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings

A = "top_a"


def _table(**settings: int) -> AdvertisementTable:
    return AdvertisementTable("me", PastSettings(**settings), PastCounters())


def _nearest(table: AdvertisementTable, unit: str = A) -> tuple[int, list[str]]:
    entry = table.entry(unit)
    assert entry is not None
    return entry.distance, sorted(entry.nearest)


def _told(table: AdvertisementTable, unit: str = A) -> tuple[str, ...] | None:
    """What a neighbour hears that is on no way."""
    return table.way_for("a stranger", unit)


# ---- equal, closer, farther ----------------------------------------------------------------------


def test_the_first_offer_is_noted_and_goes_on() -> None:
    table = _table()
    assert table.offer("2", A, ("2", "7")) is OfferStanding.CLOSER
    assert _nearest(table) == (2, ["2"])
    assert _told(table) == ("2", "7")
    assert table.take_stirred() == [A]


def test_an_equal_offer_is_noted_beside_the_first_and_goes_no_further() -> None:
    table = _table()
    table.offer("5", A, ("5",))
    assert table.offer("2", A, ("2",)) is OfferStanding.EQUAL
    assert _nearest(table) == (1, ["2", "5"])
    assert _told(table) == ("5",)


def test_a_closer_offer_takes_the_place_of_others_and_goes_on() -> None:
    table = _table()
    table.offer("2", A, ("2", "7"))
    table.offer("3", A, ("3", "8"))
    assert _told(table) == ("2", "7")
    assert table.offer("5", A, ("5",)) is OfferStanding.CLOSER
    assert _nearest(table) == (1, ["5"])
    assert _told(table) == ("5",)


def test_a_farther_offer_changes_nothing_and_is_set_aside() -> None:
    table = _table()
    table.offer("2", A, ("2",))
    assert table.offer("5", A, ("5", "6")) is OfferStanding.FARTHER
    entry = table.entry(A)
    assert entry is not None
    assert (dict(entry.nearest), dict(entry.aside)) == ({"2": ("2",)}, {"5": ("5", "6")})
    assert _told(table) == ("2",)


def test_units_of_one_advertisement_go_on_or_stop_each_by_itself() -> None:
    """The trap: an advertisement of several topics may go on for some and stop for others."""
    table = _table()
    table.offer("2", A, ("2",))
    before = _told(table)
    table.offer("5", A, ("5",))
    table.offer("5", "top_b", ("5",))
    assert _told(table) == before
    assert _told(table, "top_b") == ("5",)


def test_once_the_nearest_goes_what_was_set_aside_goes_on() -> None:
    table = _table()
    table.offer("2", A, ("2",))
    table.offer("5", A, ("5", "6"))
    table.withdraw("2", A)
    assert _nearest(table) == (2, ["5"])
    assert _told(table) == ("5", "6")


def test_of_equal_ones_another_is_told_only_when_the_told_one_goes() -> None:
    table = _table()
    table.offer("5", A, ("5",))
    table.offer("2", A, ("2",))
    table.lose("2")
    assert _told(table) == ("5",)
    table.offer("2", A, ("2",))
    assert _told(table) == ("5",)
    table.lose("5")
    assert _told(table) == ("2",)


def test_a_store_here_is_the_nearest() -> None:
    table = _table()
    table.offer("2", A, ("2",))
    table.keep(A)
    assert _nearest(table) == (0, [HERE])
    assert table.kept_here == [A]
    table.give_up(A)
    assert _nearest(table) == (1, ["2"])


# ---- what is not taken ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "way"),
    [
        (A, ("2", "me", "7")),
        (A, ("3", "7")),
        (A, ()),
        (A, ("2", "3", "4", "5")),
        ("a/#/b", ("2",)),
        ("", ("2",)),
    ],
    ids=["through here", "of another", "of nobody", "too far", "no pattern", "nothing"],
)
def test_an_offer_that_cannot_be_is_not_taken(unit: str, way: tuple[str, ...]) -> None:
    counters = PastCounters()
    table = AdvertisementTable("me", PastSettings(hops_max=3), counters)
    assert table.offer("2", unit, way) is None
    assert len(table) == 0
    assert counters.offers_malformed == 1


def test_a_way_that_comes_to_lead_through_here_takes_the_former_one_away() -> None:
    table = _table()
    table.offer("2", A, ("2", "7"))
    table.offer("2", A, ("2", "me"))
    assert table.entry(A) is None


def test_past_its_bound_no_further_unit_is_noted() -> None:
    counters = PastCounters()
    table = AdvertisementTable("me", PastSettings(units_max=1), counters)
    table.offer("2", A, ("2",))
    assert table.offer("2", "top_b", ("2",)) is None
    assert counters.units_refused == 1
    assert table.offer("5", A, ("5",)) is OfferStanding.EQUAL


def test_a_store_keeps_no_unit_that_is_none() -> None:
    with pytest.raises(FilterError):
        _table().keep("a/#/b")


def test_nobody_is_told_of_a_way_that_leads_through_it() -> None:
    table = _table(hops_max=3)
    table.offer("2", A, ("2", "7"))
    assert table.way_for("3", A) == ("2", "7")
    assert table.way_for("2", A) is table.way_for("7", A) is None
    table.offer("2", "far", ("2", "7", "8"))
    assert table.way_for("3", "far") is None
    assert table.way_for("3", "unknown") is None


def test_whoever_is_on_the_way_hears_of_the_nearest_that_it_is_not_on() -> None:
    table = _table()
    table.offer("2", A, ("2", "7"))
    assert table.other_way_for("2", A) is None
    table.offer("5", A, ("5", "6", "7"))
    table.offer("4", A, ("4", "8", "9"))
    assert table.other_way_for("2", A) == ("4", "8", "9")
    assert table.other_way_for("7", A) == ("4", "8", "9")
    assert table.other_way_for("3", A) is None
    assert table.other_way_for("3", "unknown") is None


# ---- requests ------------------------------------------------------------------------------------


def _hop(
    table: AdvertisementTable, passed: tuple[str, ...] = (), avoided: tuple[str, ...] = ()
) -> str | None:
    hop = table.next_hop(A, passed, avoided)
    return hop.broker if hop is not None else None


def test_requests_go_to_all_nearest_stores_in_turn() -> None:
    table = _table()
    for name in ("2", "5", "6"):
        table.offer(name, A, (name,))
    table.offer("9", A, ("9", "8"))
    hops = [_hop(table) for _ in range(6)]
    assert sorted(map(str, hops)) == ["2", "2", "5", "5", "6", "6"]


def test_a_request_does_not_go_back() -> None:
    table = _table()
    table.offer("2", A, ("2",))
    table.offer("5", A, ("5", "6"))
    assert _hop(table, ("2",), ()) == "5"
    assert _hop(table, ("2", "5"), ()) is None


def test_a_way_through_a_broker_that_a_request_has_passed_is_the_last_to_be_tried() -> None:
    table = _table()
    table.offer("2", A, ("2", "1"))
    table.offer("5", A, ("5", "6", "7"))
    assert _hop(table, ("1",), ()) == "5"
    assert _hop(table, ("1", "5"), ()) == "2"


def test_stores_that_could_not_answer_are_avoided_and_the_next_nearest_is_asked() -> None:
    table = _table()
    table.keep(A)
    table.offer("2", A, ("2",))
    table.offer("5", A, ("5", "6"))
    assert _hop(table) == HERE
    assert _hop(table, (), ("me",)) == "2"
    assert _hop(table, (), ("me", "2")) == "5"
    # Whoever is at 2 may know of yet another one.
    assert _hop(table, (), ("me", "2", "6")) == "2"


def test_nothing_is_known_of_a_unit_that_nobody_offers() -> None:
    assert _hop(_table()) is None


def _of(*units: str) -> AdvertisementTable:
    table = _table()
    for unit in units:
        table.offer("2", unit, ("2",))
    return table


@pytest.mark.parametrize(
    ("units", "pattern", "asked"),
    [
        (["quake/ca", "quake/or"], "quake/ca", ["quake/ca"]),
        (["quake/ca", "quake/or"], "quake/#", ["quake/ca", "quake/or"]),
        (["quake/#", "quake/ca"], "quake/+", ["quake/#"]),
        (["quake/+", "quake/ca", "quake/ca/1"], "quake/#", ["quake/+", "quake/ca/1"]),
        (["a/+", "+/b"], "#", ["+/b", "a/+"]),
        (["#", "+/#"], "a", ["#"]),
        (["a/#", "b"], "c", []),
    ],
)
def test_units_that_a_filter_is_about(units: list[str], pattern: str, asked: list[str]) -> None:
    assert _of(*units).units_of(pattern) == asked


def test_of_units_that_have_all_of_it_the_nearest_is_asked() -> None:
    table = _table()
    table.offer("2", "quake/#", ("2", "7"))
    table.offer("2", "quake/ca", ("2",))
    assert table.units_of("quake/ca") == ["quake/ca"]
    assert table.units_of("quake/+") == ["quake/#"]
