"""Sessions made again of what was on disk, before the broker meets clients or other brokers.

A restored session has its filters and what waited for its client, and reads each topic on from
where it had been read. Times begin anew: nobody could come back while the broker was away.
"""

from __future__ import annotations

from collections import defaultdict

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.keeping.journal import Stored
from broker_agent.core.routing.routing import RestoredSession, RoutedSubscriptions
from broker_agent.core.sessions.filter_requests import parse_filter
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Cursor


def restore_sessions(
    stored: Stored,
    registry: Registry,
    subscriptions: RoutedSubscriptions,
    settings: CoreSettings,
    now_s: float,
) -> list[Session]:
    """Raises FilterError if there is a filter among them that is none."""
    own: defaultdict[str, dict[str, Cursor]] = defaultdict(dict)
    for (origin_id, topic), cursor in stored.own_cursors.items():
        own[origin_id][topic] = cursor
    restored: list[RestoredSession] = []
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
        restored.append(RestoredSession(session, filters, own.get(origin_id, {})))
    subscriptions.restore(restored, stored.cursors, now_s)
    return [each.session for each in restored]


def _as_of(piece: Piece, now_s: float) -> Piece:
    return piece._replace(queued_s=now_s)
