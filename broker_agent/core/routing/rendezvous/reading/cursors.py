"""Cursors of topics, as clients and the disk have them: (term, seq) by topic, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_agent.core.routing.rendezvous.reading.feeds import CursorKey
from dynatops.v1.client_pb2 import Cursor
from overlay.base.identifiers import NUMBER_MAX
from overlay.history.reader import TERMS_MAX


def cursors_of_client(cursors: Iterable[Cursor]) -> dict[str, CursorKey]:
    """Where a client says it stands, as far as that can be."""
    return {
        cursor.topic: tuple(
            sorted(
                (entry.term, entry.seq)
                for entry in cursor.seen[-TERMS_MAX:]
                if 0 < entry.term <= NUMBER_MAX and entry.seq <= NUMBER_MAX
            )
        )
        for cursor in cursors
    }


def cursors_on_disk(cursors: Mapping[str, Cursor]) -> dict[str, CursorKey]:
    return {
        topic: tuple((entry.term, entry.seq) for entry in cursor.seen)
        for topic, cursor in cursors.items()
    }
