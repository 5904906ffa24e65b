"""A process that is told to end waits for Spark's: that one gives back what a cluster was asked
for."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from analytics import session


def spark_is(monkeypatch: pytest.MonkeyPatch, *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    return process


def test_spark_ends_when_nobody_can_tell_it_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    process = spark_is(monkeypatch, "cat")
    session.await_end(30.0)
    assert process.returncode == 0


def test_what_does_not_end_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with spark_is(monkeypatch, "sleep", "60") as process:
        begun_s = time.monotonic()
        session.await_end(0.05)
        assert time.monotonic() - begun_s < 30.0
        assert process.poll() is None
        process.kill()


def test_where_spark_never_began_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    session.await_end(30.0)
