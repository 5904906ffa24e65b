"""Where compiled Python differs from Python if nobody looks: the same holds on both builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from dynatops.kit.bundles import Bundle
from dynatops.version import build_kind
from overlay.base.effects import Announce, TookOver
from overlay.base.identifiers import RING_MASK, Key, NodeId, TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.base.retention import LogBudget
from overlay.history.topic_log import TopicLog
from overlay.tree.tree_state import BUCKETS, Edge, TopicTree
from tests.support.compiled_modules import ROOT, compiled_table, is_compiled

LAST = NodeId(RING_MASK)


def test_every_module_of_the_list_is_there_once() -> None:
    modules = compiled_table()["modules"]
    assert modules == sorted(set(modules))
    for name in modules:
        assert (ROOT / f"{name.replace('.', '/')}.py").is_file()
    # One of them speaks for all.
    assert {is_compiled(name) for name in modules} == {build_kind() == "compiled"}


def test_nothing_compiled_is_beside_the_sources() -> None:
    packages = (
        "analytics",
        "broker_agent",
        "dynatops",
        "overlay",
        "reconfig_manager",
        "simulator",
        "experiments",
    )
    found: list[Path] = [path for name in packages for path in (ROOT / name).rglob("*.so")]
    assert found == []


def test_numbers_of_more_than_64_bits_are_exact() -> None:
    owner = Peer(LAST, "b", "b", epoch=1 << 40, incarnation=1 << 62).term_owner
    mark = RING_MASK + (1 << 40) * 0x9E3779B97F4A7C15 + (1 << 62) * 0x6A09E667F3BCC909
    assert owner == TermOwner(mark & RING_MASK, (1 << 62) >> 10)
    tree = TopicTree("t", Key(RING_MASK), position=(1 << 70, (1 << 65) + 1, 0))
    assert tree.position == (1 << 70, (1 << 65) + 1, 0)


def test_digests_stay_within_64_bits_and_come_back() -> None:
    edge = Edge()
    edge.add("t", Key(RING_MASK), LAST)
    with_one = edge.digest
    for member in range(1, 2 * BUCKETS):
        assert edge.add("t", Key(RING_MASK - member), NodeId(RING_MASK - member))
        assert 0 < edge.digest <= RING_MASK
    for member in range(1, 2 * BUCKETS):
        assert edge.remove("t", Key(RING_MASK - member), NodeId(RING_MASK - member))
    assert edge.digest == with_one
    assert edge.pairs == 1


def test_values_are_values() -> None:
    one, same = (Peer(LAST, "b", "a:1", epoch=3) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != replace(one, epoch=4)
    assert repr(Announce("t")) == "Announce(topic='t', known=(0, 0), again=False)"
    assert [field.name for field in fields(TookOver)] == ["topic", "from_dead"]
    with pytest.raises(FrozenInstanceError):
        one.epoch = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.open_term(1 << 24, False),
        lambda log: log.open_term(),
        lambda log: log.open_term(1 << 24, surely=True),
        lambda log: Peer(LAST, "b"),  # type: ignore[call-arg]
    ],
)
def test_arguments_are_checked(call: Callable[[TopicLog], object]) -> None:
    log = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
    with pytest.raises(TypeError):
        call(log)


def test_an_exception_within_leaves_by_the_same_name() -> None:
    bundle = Bundle(6, ["t"], [1], [1], [b"x"])
    with pytest.raises(IndexError):
        bundle.publication_at(1)
    log = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
    log.open_next_term(TermOwner(1))
    with pytest.raises(ValueError, match="does not follow"):
        log.open_term(log.term)
