"""Sessions made again of what was on disk, before the broker meets clients or other brokers.

A restored session has its filters and what waited for its client, and reads each topic on from
where it had been read. Times begin anew: nobody could come back while the broker was away.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.keeping.journal import Stored
from broker_agent.core.reading.feeds import CursorKey
from broker_agent.core.reading.filter_requests import parse_filter
from broker_agent.core.reading.subscriptions import Subscriptions
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Cursor


def restore_sessions(
    stored: Stored,
    registry: Registry,
    subscriptions: Subscriptions,
    settings: CoreSettings,
    now_s: float,
) -> list[Session]:
    """Raises FilterError if there is a filter among them that is none."""
    cursors = {topic: _key_of(cursor) for topic, cursor in stored.cursors.items()}
    own: defaultdict[str, dict[str, CursorKey]] = defaultdict(dict)
    for (origin_id, topic), cursor in stored.own_cursors.items():
        own[origin_id][topic] = _key_of(cursor)
    subscriptions.know(topic for topic in (*cursors, *(t for _, t in stored.own_cursors)))
    sessions: list[Session] = []
    for origin_id, record in stored.sessions.items():
        session = Session(
            origin_id, record.client_id, record.slow_policy, settings, expiry_s=record.expiry_s
        )
        session.owner = record.owner
        registry.restore(session, now_s)
        pieces = stored.pieces.get(origin_id, ())
        session.restore((_as_of(piece, now_s) for piece in pieces), record.untold)
        filters = [
            # What was accepted stays accepted, should the limit have become smaller.
            parse_filter(f.pattern, f.where, max(settings.topic_bytes_max, len(f.pattern.encode())))
            for f in record.filters
        ]
        reached = ChainMap(own[origin_id], cursors) if origin_id in own else cursors
        subscriptions.subscribe(session, 0, filters, [], reached, now_s)
        sessions.append(session)
    return sessions


def _key_of(cursor: Cursor) -> CursorKey:
    return tuple((entry.term, entry.seq) for entry in cursor.seen)


def _as_of(piece: Piece, now_s: float) -> Piece:
    return piece._replace(queued_s=now_s)
