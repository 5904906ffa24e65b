"""What brokers tell each other of stores, and when it does not hold any more."""

from __future__ import annotations

from dynatops.v1.overlay_pb2 import NodeRef, StoreAdvertisement, StoreOffer, WantStoreAdvertisement
from overlay.stores.advertising import StoreAdvertising
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from tests.support.store_net import StoreNet, check_store_tables

SETTINGS = PastSettings()
OTHER = NodeRef(broker_id="2", address="at 2", incarnation=1)


def _advertising() -> tuple[StoreAdvertising, PastCounters]:
    counters = PastCounters()
    return StoreAdvertising("me", SETTINGS, counters), counters


def _offer(
    *units: str, session: int = 1, version: int = 1, more: bool = False
) -> StoreAdvertisement:
    offer = StoreOffer(way=["2"], units=units)
    return StoreAdvertisement(session=session, version=version, offers=[offer], more=more)


def _units(advertising: StoreAdvertising) -> list[str]:
    return [entry.unit for entry in advertising.table.entries()]


def _said(advertising: StoreAdvertising, now_s: float = 0.0) -> list[tuple[str, str]]:
    return [(to, str(m.WhichOneof("body"))) for to, m in advertising.take_said(now_s)]


# ---- hearing -------------------------------------------------------------------------------------


def test_whoever_misses_a_message_asks_for_all() -> None:
    advertising, counters = _advertising()
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    advertising.on_advertisement(OTHER, _offer("c", version=3), 0.1)
    assert _units(advertising) == ["a"]
    assert _said(advertising) == [("at 2", "want_store_advertisement")]
    assert counters.advertisements_missed == 1
    # Not with every further message.
    advertising.on_advertisement(OTHER, _offer("d", version=4), 0.2)
    assert _said(advertising) == []
    advertising.on_advertisement(OTHER, _offer("d", version=4), 0.2 + SETTINGS.ask_again_s)
    assert _said(advertising) == [("at 2", "want_store_advertisement")]


def test_a_renewal_shows_that_something_is_missing() -> None:
    advertising, _ = _advertising()
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    renewal = StoreAdvertisement(session=1, version=2, renewal=True)
    advertising.on_advertisement(OTHER, renewal, 1.0)
    assert _said(advertising) == [("at 2", "want_store_advertisement")]


def test_a_new_session_takes_the_place_of_the_former_one() -> None:
    advertising, _ = _advertising()
    advertising.on_advertisement(OTHER, _offer("a", "b"), 0.0)
    advertising.on_advertisement(OTHER, _offer("b", session=2, more=True), 0.1)
    assert _units(advertising) == ["a", "b"]
    advertising.on_advertisement(OTHER, _offer("c", session=2, version=2), 0.1)
    assert _units(advertising) == ["b", "c"]
    # What comes late of the former one is nothing.
    advertising.on_advertisement(OTHER, _offer("z", version=2), 0.2)
    assert _units(advertising) == ["b", "c"]


def test_a_new_life_begins_its_sessions_anew() -> None:
    advertising, _ = _advertising()
    advertising.on_advertisement(OTHER, _offer("a", session=9), 0.0)
    reborn = NodeRef(broker_id="2", address="at 2", incarnation=2)
    advertising.on_advertisement(reborn, _offer("b"), 0.1)
    assert _units(advertising) == ["b"]
    advertising.on_advertisement(OTHER, _offer("c", session=10), 0.2)
    assert _units(advertising) == ["b"]


def test_what_is_not_renewed_expires() -> None:
    advertising, counters = _advertising()
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    advertising.tick(lambda _: False, SETTINGS.expiry_s - 0.1)
    assert _units(advertising) == ["a"]
    advertising.tick(lambda _: False, SETTINGS.expiry_s)
    assert _units(advertising) == []
    assert counters.offers_expired == 1


def test_what_a_broker_told_that_is_gone_does_not_hold() -> None:
    advertising, _ = _advertising()
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    advertising.tick(lambda name: name == "2", 0.1)
    assert _units(advertising) == []


def test_of_brokers_that_tell_there_are_no_more_than_so_many() -> None:
    counters = PastCounters()
    advertising = StoreAdvertising("me", PastSettings(advertising_brokers_max=1), counters)
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    other = StoreAdvertisement(version=1, session=1, offers=[StoreOffer(way=["3"], units=["b"])])
    advertising.on_advertisement(NodeRef(broker_id="3", address="at 3"), other, 0.0)
    assert _units(advertising) == ["b"]
    assert counters.advertising_brokers_dropped == 1


def test_a_broker_that_says_it_is_this_one_is_not_believed() -> None:
    advertising, counters = _advertising()
    advertising.on_advertisement(NodeRef(broker_id="me"), _offer("a"), 0.0)
    advertising.on_advertisement(NodeRef(), _offer("a"), 0.0)
    assert _units(advertising) == []
    assert counters.offers_malformed == 2


# ---- telling -------------------------------------------------------------------------------------


def test_who_has_nothing_to_tell_says_nothing() -> None:
    advertising, _ = _advertising()
    advertising.meet({"2": "at 2", "3": "at 3"})
    assert _said(advertising) == []
    advertising.tick(lambda _: False, 10.0)
    assert _said(advertising, 10.0) == []


def test_what_is_told_is_renewed_for_as_long_as_it_holds() -> None:
    advertising, counters = _advertising()
    advertising.meet({"2": "at 2"})
    advertising.table.keep("a")
    assert len(_said(advertising)) == 1
    assert _said(advertising, SETTINGS.renew_s - 0.1) == []
    assert len(_said(advertising, SETTINGS.renew_s)) == 1
    assert counters.advertisements_renewed == 1
    advertising.table.give_up("a")
    # That, and a renewal that is due.
    assert len(_said(advertising, 10.0)) == 2
    assert len(_said(advertising, 12.0)) == 1
    assert _said(advertising, 10.0 + SETTINGS.expiry_s) == []


def test_a_neighbour_that_is_none_any_more_is_told_so() -> None:
    """ATs after a reconfiguration: brokers have moved, and others are next to each other."""
    advertising, _ = _advertising()
    advertising.meet({"2": "at 2"})
    advertising.table.keep("a")
    advertising.take_said(0.0)
    advertising.meet({"3": "at 3"})
    said = advertising.take_said(1.0)
    assert [address for address, _ in said] == ["at 2", "at 3"]
    assert not said[0][1].store_advertisement.offers
    assert list(said[1][1].store_advertisement.offers[0].units) == ["a"]


def test_whoever_is_on_the_way_is_told_of_another_with_the_renewal() -> None:
    """As in the papers an equal or farther offer stops; where it came to is told later."""
    advertising, _ = _advertising()
    advertising.meet({"2": "at 2", "3": "at 3"})
    advertising.on_advertisement(OTHER, _offer("a"), 0.0)
    assert [to for to, _ in _said(advertising)] == ["at 3"]
    offer = StoreOffer(way=["3", "7"], units=["a"])
    other = NodeRef(broker_id="3", address="at 3")
    told = StoreAdvertisement(session=1, version=1, offers=[offer])
    advertising.on_advertisement(other, told, 0.1)
    assert _said(advertising, 0.1) == []
    said = dict(advertising.take_said(SETTINGS.renew_s))
    assert list(said["at 2"].store_advertisement.offers[0].way) == ["me", "3", "7"]
    assert said["at 3"].store_advertisement.renewal
    # Once it leads there no more it is withdrawn at once.
    gone = StoreAdvertisement(session=1, version=2, withdrawn=["a"])
    advertising.on_advertisement(other, gone, 2.0)
    ((address, message),) = advertising.take_said(2.0)
    assert address == "at 2"
    assert list(message.store_advertisement.withdrawn) == ["a"]


def test_whoever_asks_is_told_all_though_that_be_nothing() -> None:
    advertising, _ = _advertising()
    advertising.meet({"2": "at 2"})
    advertising.take_said(0.0)
    advertising.on_want(OTHER, WantStoreAdvertisement(), 0.1)
    ((address, message),) = advertising.take_said(0.1)
    assert (address, message.store_advertisement.version) == ("at 2", 1)
    advertising.on_want(NodeRef(broker_id="stranger"), WantStoreAdvertisement(), 0.1)
    assert advertising.take_said(0.1) == []


def test_a_large_table_is_told_in_parts() -> None:
    net = StoreNet([("1", "2"), ("2", "1")], PastSettings(units_per_message=10))
    net.keep("1", *(f"t{number}" for number in range(95)))
    assert net.counters["1"].advertisements_sent == 10
    check_store_tables(net)
    net.give_up("1", *(f"t{number}" for number in range(0, 95, 2)))
    check_store_tables(net)
    # And to a neighbour that comes later, likewise.
    net.add_link("1", "3")
    net.start("3")
    net.run()
    check_store_tables(net)


def test_distances_follow_brokers_that_have_moved() -> None:
    """The trap: on a ring distances change whenever brokers move."""
    ring = ["1", "2", "3", "4", "5", "6"]
    net = StoreNet(list(zip(ring, ring[1:] + ring[:1], strict=True)))
    net.keep("1", "a")
    check_store_tables(net)
    for placed in (["1", "4", "2", "6", "5", "3"], ["6", "5", "4", "3", "2", "1"]):
        net.links = dict.fromkeys(zip(placed, placed[1:] + placed[:1], strict=True))
        net.settle()
        check_store_tables(net)
