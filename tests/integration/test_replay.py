"""Brokers that run are recorded, and what they were told is told again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import dynatops
from broker_agent.core.clients.serving import Serving
from broker_agent.recording.replaying import LogEnd, ReplayReport, StrikeKind, search
from broker_agent.runtime.disk.stimulus_file import SUFFIX
from dynatops.cli.main import main
from dynatops.kit.background import EXIT_CODE
from dynatops.kit.serving.start_errors import StartError
from tests.support.security import running, table
from tests.support.waiting import until

TOKEN = "ann's token"
PATIENCE_S = 30.0


def log_in(folder: Path) -> Path:
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def replayed(path: Path) -> ReplayReport:
    return search(lambda: path.open("rb"), check_every=10)


def test_replay_comes_to_what_the_broker_did(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(table("ann", TOKEN, publish='["#"]', subscribe='["#"]'))

    def settings(name: str) -> dict[str, Any]:
        return {
            "security": {"tokens": str(tokens)},
            "data_dir": str(tmp_path / name),
            "record": {"dir": str(tmp_path / f"log-{name}")},
            "lake": {"url": str(tmp_path / "lake"), "window_s": 1},
        }

    async def scenario() -> None:
        async with (
            running("b0", **settings("b0")) as one,
            running("b1", join=(one.address,), **settings("b1")) as other,
            dynatops.connect(one.address, token=TOKEN, stay=True) as publisher,
            dynatops.connect(
                other.address, token=TOKEN, client_id="ann", keep_s=60, stay=True
            ) as subscriber,
            subscriber.subscribe("app/+") as events,
        ):
            for number in range(20):
                await publisher.publish(f"app/{number % 3}", b"%d" % number)
            assert sorted([int((await anext(events)).payload) for _ in range(20)]) == list(
                range(20)
            )
            other.reload()
            other.save_recording()

    asyncio.run(scenario())
    for name in ("b0", "b1"):
        path = log_in(tmp_path / f"log-{name}")
        report = replayed(path)
        assert report.strikes == []
        assert report.differs_at is None
        assert report.end is LogEnd.CLOSED
        assert report.broker_id == name
        assert {"peer_frame", "from_client", "output_taken", "ticked"} <= report.inputs.keys()
        assert TOKEN.encode() not in path.read_bytes()


def test_the_frame_that_made_a_broker_fail_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Serving.on_frame

    def fail_for_mallory(self: Serving, connection: Any, frame: Any, now_s: float) -> None:
        original(self, connection, frame, now_s)
        if any(message.subscribe.filters for message in frame.messages):
            raise ZeroDivisionError

    monkeypatch.setattr(Serving, "on_frame", fail_for_mallory)

    async def scenario() -> list[str]:
        async with running("b0", record={"dir": str(tmp_path)}) as agent:
            async with dynatops.connect(agent.address, client_id="mallory") as client:
                subscribing = client.subscribe("app/x")
                entering = asyncio.ensure_future(subscribing.__aenter__())
                await until(lambda: agent.core.counters.inputs_failed > 0)
                # It is on its way to disk already.
                failing = [s.what for s in replayed(log_in(tmp_path)).strikes]
                entering.cancel()
                await asyncio.gather(entering, return_exceptions=True)
            return failing

    assert asyncio.run(scenario())[0] == "from_client"
    path = log_in(tmp_path)
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert "(from_client, at " in said
    assert "raised ZeroDivisionError(), as when it was recorded" in said
    assert "in fail_for_mallory" in said
    assert main(["replay", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    first = document["strikes"][0]
    assert (first["kind"], first["what"]) == (StrikeKind.RAISED.value, "from_client")
    assert main(["replay", str(path), "--until", str(first["input"] - 1)]) == 0
    capsys.readouterr()

    monkeypatch.undo()
    assert main(["replay", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"input {first['input']} raised ZeroDivisionError() when it was recorded, and" in said
    assert f"from input {first['input']} on they are not those that were recorded" in said


def test_a_signal_has_it_on_disk(tmp_path: Path) -> None:
    async def scenario() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dynatops", "broker", "--listen", "127.0.0.1:0", "--json",
            "--set", f"record.dir={tmp_path}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            await process.stdout.readline()
            process.send_signal(signal.SIGUSR2)
            said = (await process.stderr.readline()).decode()
            process.kill()
            await process.communicate()
        return said

    said = asyncio.run(scenario())
    assert "inputs, and goes on" in said
    report = replayed(log_in(tmp_path))
    assert report.end is LogEnd.BREAKS_OFF
    assert report.inputs["started"] == 1
    assert report.strikes == []
    assert report.differs_at is None


def test_a_broker_that_ends_because_it_fails_has_written_why(tmp_path: Path) -> None:
    async def scenario() -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.failing_process",
            "broker_agent.core.broker:Broker.tick", "20",
            "broker", "--listen", "127.0.0.1:0", "--json", "--set", f"record.dir={tmp_path}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate()
        return process.returncode

    assert asyncio.run(scenario()) == EXIT_CODE
    report = replayed(log_in(tmp_path))
    ((number, error),) = report.mended.items()
    assert "Broker.tick was made to fail" in error
    assert report.inputs["ticked"] == 20
    assert number in (report.count, report.count - 1, report.count - 2)


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        async with running("b0", record={"dir": str(tmp_path / "file")}):
            pass

    with pytest.raises(StartError, match=r"cannot record to .*\(record\.dir\)"):
        asyncio.run(scenario())


def test_nothing_is_recorded_unless_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running("b0") as agent:
            agent.save_recording()

    asyncio.run(scenario())
    assert "nothing is recorded: set record.dir" in caplog.text


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot read"), (b"x" * 100, "cannot be replayed: "), (b"", "cannot be replayed: ")],
)
def test_what_is_no_log_is_told(
    content: bytes | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 1
    assert problem in capsys.readouterr().err
