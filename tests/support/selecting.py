"""Brokers that select, and what they are told, in few words."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from broker_agent.core.selection.selection import Selection
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.selection.summaries import digest_of
from dynatops.v1.selection_pb2 import BrokerSummary


def selection(settings: SelectionSettings | None = None, seed: int = 0) -> Selection:
    return Selection("me", "me:1", 1, settings or SelectionSettings(), Random(seed))


def told(
    name: str, keys: Iterable[int], load: int | None = None, number: int = 1, **fields: object
) -> BrokerSummary:
    """A full summary of a broker with these topics, by default each with one subscriber."""
    topics = sorted(keys)
    summary = BrokerSummary(
        broker_id=name,
        address=f"{name}:1",
        incarnation=1,
        number=number,
        subscriptions=len(topics) if load is None else load,
        full=True,
        digest=digest_of(topics),
        keys=topics,
    )
    summary.MergeFrom(BrokerSummary(**fields))  # type: ignore[arg-type]  # by keyword, as told
    return summary


def without_keys(summary: BrokerSummary) -> BrokerSummary:
    short = BrokerSummary()
    short.CopyFrom(summary)
    short.ClearField("keys")
    short.full = False
    return short
