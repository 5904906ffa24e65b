"""A disk in virtual time: what the broker's runtime keeps in a file (`session_store`), in
dictionaries.

It outlives the simulated broker that writes to it. What was not written when that crashed is lost.
"""

from __future__ import annotations

from broker_agent.core.keeping.journal import Changes, Stored
from broker_agent.core.sessions.redelivery import Piece
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.storage_pb2 import SessionRecord


class SimulatedDisk:
    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._pieces: dict[str, dict[int, Piece]] = {}
        self._cursors: dict[str, Cursor] = {}
        self._own_cursors: dict[tuple[str, str], Cursor] = {}

    def write(self, changes: Changes) -> None:
        for origin_id in changes.removed:
            self._sessions.pop(origin_id, None)
            self._pieces.pop(origin_id, None)
            for key in [key for key in self._own_cursors if key[0] == origin_id]:
                del self._own_cursors[key]
        self._sessions.update(changes.sessions)
        for origin_id, serial in changes.confirmed.items():
            present = self._pieces.get(origin_id, {})
            for old in [old for old in present if old <= serial]:
                del present[old]
        for origin_id, serial in changes.taken:
            self._pieces.get(origin_id, {}).pop(serial, None)
        for origin_id, piece in changes.pieces:
            self._pieces.setdefault(origin_id, {})[piece.serial] = piece
        for topic, cursor in changes.cursors.items():
            self._cursors.pop(topic, None)
            if cursor is not None:
                self._cursors[topic] = cursor
        for key, cursor in changes.own_cursors.items():
            self._own_cursors.pop(key, None)
            if cursor is not None:
                self._own_cursors[key] = cursor

    def read(self) -> Stored:
        pieces = {
            origin_id: [piece for _, piece in sorted(present.items())]
            for origin_id, present in self._pieces.items()
            if present
        }
        return Stored(dict(self._sessions), pieces, dict(self._cursors), dict(self._own_cursors))
