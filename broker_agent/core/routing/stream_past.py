"""What is known of a publisher's events on a topic, whether any of them is open or not."""

from __future__ import annotations

from dataclasses import dataclass

# A position acknowledged longer ago may be forgotten with its topic, and says nothing.
_POSITION_KNOWN_S = 60.0


@dataclass(slots=True)
class StreamPast:
    # Numbers up to here are acknowledged or given up: nobody must wait for them.
    settled: int = 0
    # Where the topic stood at the last acknowledgement, and when that was.
    known: tuple[int, int] = (0, 0)
    known_s: float = 0.0
    # Whether stores have had any of it.
    is_stored: bool = False

    def known_at(self, now_s: float) -> tuple[int, int]:
        return self.known if now_s - self.known_s < _POSITION_KNOWN_S else (0, 0)
