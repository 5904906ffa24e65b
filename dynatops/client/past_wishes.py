"""What applications say of the past that they want, checked where it enters: `since`, `last`."""

from __future__ import annotations

import math
import re
import time
from copy import copy
from datetime import datetime, timedelta
from typing import Literal, get_args

from dynatops.client.core.histories import PastWish
from dynatops.client.cursors import Cursor
from dynatops.client.errors import ArgumentTypeError, ArgumentValueError

# A length of time back from now, a time, a place, or "all".
Since = str | timedelta | datetime | Cursor
Pace = Literal["instant", "original"]

LAST_MAX = 1_000_000_000
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d|w)")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WANTED = '"all", a length of time such as "90s", "15m", "1h" or "7d", a time, or a Cursor'


def checked_wish(
    pattern: str, where: str, since: object, last: object, *, with_loss: bool
) -> PastWish:
    """Raises ArgumentError."""
    if isinstance(last, bool) or not isinstance(last, int):
        raise ArgumentTypeError("last", last, "a whole number")
    if not 0 <= last <= LAST_MAX:
        raise ArgumentValueError("last", f"from 0 (all) to {LAST_MAX:,}, not {last}")
    if not isinstance(with_loss, bool):
        raise ArgumentTypeError("with_loss", with_loss, "True or False")
    if isinstance(since, Cursor):
        places = copy(since).places
        return PastWish(pattern=pattern, where=where, after=places, last=last, with_loss=with_loss)
    since_us = since_us_of(since, time.time_ns() // 1_000)
    return PastWish(pattern=pattern, where=where, since_us=since_us, last=last, with_loss=with_loss)


def since_us_of(since: object, now_us: int) -> int:
    """Microseconds since 1970; 0: from the beginning. Raises ArgumentError."""
    if isinstance(since, timedelta):
        return _back(now_us, since.total_seconds())
    if isinstance(since, datetime):
        return _time_us(since)
    if not isinstance(since, str):
        raise ArgumentTypeError("since", since, _WANTED)
    if since == "all":
        return 0
    if duration := _DURATION.fullmatch(since):
        return _back(now_us, float(duration[1]) * _UNIT_S[duration[2]])
    try:
        at = datetime.fromisoformat(since)
    except ValueError:
        raise ArgumentValueError("since", f"should be {_WANTED}, not {since!r}") from None
    return _time_us(at)


def _back(now_us: int, seconds: float) -> int:
    if seconds < 0 or not math.isfinite(seconds):
        raise ArgumentValueError("since", "a length of time back from now cannot be negative")
    return max(now_us - int(seconds * 1e6), 1)


def _time_us(at: datetime) -> int:
    try:
        return max(int(at.timestamp() * 1e6), 1)
    except (OverflowError, OSError) as error:
        raise ArgumentValueError("since", f"{at} is no time that can be asked for") from error


def check_pace(pace: object) -> None:
    if pace not in get_args(Pace):
        raise ArgumentValueError("pace", f'"instant" or "original", not {pace!r}')
