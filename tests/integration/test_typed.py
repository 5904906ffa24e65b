"""Type checkers see the package's types, from an editable install too."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dynatops

PROJECT = Path(dynatops.__file__).parents[1]
BUILD = (
    "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"
)

RIGHT = """
from collections.abc import Sequence
import dynatops
from dynatops import Ack, Batch, Client, Event, Gap, Subscription, SyncClient

async def main() -> None:
    async with dynatops.connect("127.0.0.1:7400", keep_s=60, client_id="a") as client:
        await client.publish("a", bytearray(b"x"), ack="rp", attributes={"price": 5, "new": True})
        await client.publish_many("a", (b"%d" % i for i in range(3)), ack=Ack.NONE)
        await client.publish_many([("a", b"x"), ("b", bytearray(b"y"))], ack="rp")
        async with client.subscribe("a", "b/#", on_gap=tell) as events:
            async for event in events:
                text: str = event.topic
                data: bytes = event.payload
            async for batch in events.batches():
                same: Batch = batch[1:]
                several: Sequence[Event] = batch
                topics: Sequence[str] = batch.topics
                payloads: Sequence[bytes] = batch.payloads

def tell(gap: Gap) -> None:
    count: int = gap.count

def wait() -> None:
    with dynatops.connect_sync() as client:
        same: SyncClient = client
        client.publish_many("a", [b"x"])
        client.publish_many((topic, b"x") for topic in ("a", "b"))
        event: Event = client.subscribe("a").next(timeout_s=1.0)
"""

WRONG = """
import dynatops

async def main() -> None:
    client = await dynatops.connect("127.0.0.1:7400")
    await client.publish("a", "text")
    await client.publish("a", b"x", ack="all")
    await client.publish_many([("a", "text")])
    await client.publish_many("a")
    await client.publish_many([("a", b"x")], [b"y"])
    client.subscribe(["a"])
    dynatops.connect("127.0.0.1:7400").publish
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_editable_install_has_types(tmp_path: Path) -> None:
    wheels, environment, consumer = (tmp_path / n for n in ("wheels", "environment", "consumer"))
    wheels.mkdir()
    consumer.mkdir()
    built = _run([sys.executable, "-c", BUILD, str(wheels)], PROJECT)
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)], tmp_path)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheels / built.splitlines()[-1]) as wheel:
        (path_file,) = [name for name in wheel.namelist() if name.endswith(".pth")]
        wheel.extract(path_file, packages)
    # What it depends on is where this runs.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    (consumer / "right.py").write_text(RIGHT)
    (consumer / "wrong.py").write_text(WRONG)
    check = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
        *("--python-executable", str(environment / "bin" / "python")),
    ]
    right = subprocess.run([*check, "right.py"], cwd=consumer, capture_output=True, text=True)
    assert (right.stdout, right.returncode) == ("", 0)
    wrong = subprocess.run([*check, "wrong.py"], cwd=consumer, capture_output=True, text=True)
    lines = [line for line in wrong.stdout.splitlines() if ": error:" in line]
    assert [int(line.split(":")[1]) for line in lines] == [6, 7, 8, 9, 10, 11, 12], wrong.stdout


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ}
    )
    return done.stdout
