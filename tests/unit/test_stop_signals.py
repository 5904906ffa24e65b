"""A signal that is put off takes effect afterwards, and a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

from analytics.stop_signals import put_off


class StoppedError(Exception):
    pass


def _stop(number: int, frame: object) -> NoReturn:
    raise StoppedError


@pytest.fixture(autouse=True)
def _stopping() -> Iterator[None]:
    former = signal.signal(signal.SIGTERM, _stop)
    yield
    signal.signal(signal.SIGTERM, former)


def _work_while_stopped(times: int, done: list[str]) -> None:
    with put_off(signal.SIGTERM):
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)
        done.append("all")


def test_it_takes_effect_afterwards() -> None:
    done: list[str] = []
    with pytest.raises(StoppedError):
        _work_while_stopped(1, done)
    assert done == ["all"]


def test_a_second_one_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(StoppedError):
        _work_while_stopped(2, done)
    assert done == []
    assert signal.getsignal(signal.SIGTERM) is _stop


def test_nothing_comes_of_nothing() -> None:
    with put_off(signal.SIGTERM):
        pass
    assert signal.getsignal(signal.SIGTERM) is _stop


def test_what_fails_is_told_as_it_is() -> None:
    with pytest.raises(ValueError, match="no Spark"), put_off(signal.SIGTERM):
        raise ValueError("no Spark")
    assert signal.getsignal(signal.SIGTERM) is _stop


def test_other_threads_get_no_signals() -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with put_off(signal.SIGTERM):
                pass
        except BaseException as error:  # noqa: BLE001  # told by the test
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert problems == []
