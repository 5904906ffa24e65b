"""`dynatops leave`, as a pod's preStop hook says it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import dynatops
from dynatops.kit.serving.pid_file import PidFile, PidFileError, holder
from dynatops.local.cluster import BrokerProcess
from tests.support.commands import run, run_json
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


async def told_to_leave(pid_file: Path) -> dict[str, object]:
    answer = await asyncio.to_thread(run_json, "leave", "--pid-file", str(pid_file))
    assert isinstance(answer, dict)
    return answer


def test_a_broker_leaves_and_its_process_stays_until_it_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        pid_file = tmp_path / "broker.pid"
        first = await BrokerProcess.start("b0")
        second = await BrokerProcess.start(
            "b1", join=[first.address], options=["--pid-file", str(pid_file)]
        )
        try:
            async with dynatops.connect(second.address, stay=True) as client:
                events = await client.subscribe("quake/#")
                assert client.broker == "b1"
                assert (await told_to_leave(pid_file))["left"] is True
                # It was sent on, and misses nothing.
                await client.publish("quake/ca", b"M5.1")
                assert (await anext(events)).payload == b"M5.1"
                assert client.broker == "b0"
            assert second.process.returncode is None
            # Once more does no harm.
            assert (await told_to_leave(pid_file))["left"] is False
        finally:
            assert await second.stop() == 0
            assert await first.stop() == 0

    asyncio.run(scenario())


def test_a_broker_that_waits_to_be_let_in_gives_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        pid_file = tmp_path / "broker.pid"
        starting = asyncio.create_task(
            BrokerProcess.start("b1", join=["127.0.0.1:1"], options=["--pid-file", str(pid_file)])
        )
        await until(lambda: holder(pid_file) is not None)
        pid = holder(pid_file)
        assert pid is not None
        assert (await told_to_leave(pid_file))["left"] is True
        os.kill(pid, 15)
        await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(scenario())


def test_a_number_that_nobody_holds_is_nobody(tmp_path: Path) -> None:
    stale = tmp_path / "broker.pid"
    stale.write_text(f"{os.getpid()}\n")
    assert holder(stale) is None
    outcome = run("leave", "--pid-file", str(stale))
    assert (outcome.returncode, outcome.stdout) == (0, "no broker is there\n")


def test_two_brokers_do_not_share_a_file(tmp_path: Path) -> None:
    mine = PidFile(tmp_path / "broker.pid")
    with pytest.raises(PidFileError, match="give each its own"):
        PidFile(tmp_path / "broker.pid")
    mine.release()
    PidFile(tmp_path / "broker.pid").release()
