"""Small frames go out so often, and no more; a stream that is not busy never waits."""

from __future__ import annotations

import pytest

from dynatops.kit.pacing import _BURST, _LARGE_BYTES, Pacer


def frames_sent(pacer: Pacer, seconds: float, every_s: float, nbytes: int = 100) -> int:
    """How many frames go, where there is something to send this often."""
    now_s, sent = 1_000.0, 0
    end_s = now_s + seconds
    while now_s < end_s:
        if pacer._left < 1.0:
            now_s += pacer.pause_s(now_s, 1_000.0)
        pacer.wrote(nbytes)
        sent += 1
        now_s += every_s
    return sent


def test_a_busy_stream_is_held_to_its_rate() -> None:
    assert frames_sent(Pacer(), 1.0, 0.0001) == pytest.approx(1_000 + 2 * _BURST, abs=3)


def test_one_that_is_not_busy_never_waits() -> None:
    pacer = Pacer()
    assert frames_sent(pacer, 1.0, 0.002) == pytest.approx(500, abs=1)
    assert pacer._left <= _BURST


def test_large_frames_go_at_once() -> None:
    assert frames_sent(Pacer(), 1.0, 0.0001, _LARGE_BYTES) == pytest.approx(10_000, abs=2)


def test_a_rest_is_saved_up_to_a_bound() -> None:
    pacer = Pacer()
    for _ in range(int(_BURST)):
        pacer.wrote(1)
    assert pacer.pause_s(50.0, 1_000.0) == 0.0
    for _ in range(int(_BURST)):
        pacer.wrote(1)
    assert pacer.pause_s(50.0, 1_000.0) == pytest.approx(0.001)
