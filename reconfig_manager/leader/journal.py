"""What is to be in the store, until it is: the newest of each thing, written again when it was not.

A write in flight is not repeated before it is answered. A newer one of the same thing takes its
place: the store ignores the older one, should that arrive later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reconfig_manager.ports import Record


@dataclass(slots=True)
class _Pending:
    record: Record
    # When to write it again; None while it is in flight.
    again_s: float | None = None


class LeaderJournal:
    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._pending: dict[str, _Pending] = {}
        self._tokens = 0

    @property
    def behind(self) -> int:
        """How many things are not in the store yet."""
        return len(self._pending)

    def waits_for(self, key: str) -> Record | None:
        pending = self._pending.get(key)
        return pending.record if pending else None

    def write(self, key: str, record: Record) -> Record:
        """`key` says what of there is one newest."""
        record = replace(record, token=self._token())
        self._pending[key] = _Pending(record)
        return record

    def recorded(self, token: int) -> Record | None:
        """The record, if it is still the newest of its kind."""
        for key, pending in self._pending.items():
            if pending.record.token == token:
                del self._pending[key]
                return pending.record
        return None

    def not_recorded(self, token: int, now_s: float) -> None:
        for pending in self._pending.values():
            if pending.record.token == token:
                pending.again_s = now_s + self._retry_s

    def due(self, now_s: float) -> list[Record]:
        records = []
        for pending in self._pending.values():
            if pending.again_s is not None and now_s >= pending.again_s:
                pending.record = replace(pending.record, token=self._token())
                pending.again_s = None
                records.append(pending.record)
        return records

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens
