"""What a reader of advice counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dynatops.kit.counters import counter


@dataclass(slots=True)
class AdviceCounters:
    advice_versions: int = counter("Versions of the advice taken in.")
    advice_entries: int = counter("Entries of these.")
    advice_left_out: int = counter("Entries left out, because there are more than may be kept.")
    advice_refused: int = counter("Times advice was there but could not be used; the log says why.")
    advice_failures: int = counter("Times Redis could not be asked.")

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
