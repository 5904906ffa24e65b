"""What brokers were told once, told again: each log of `stimuli` with what `dynatops replay` says.

A log of a production incident (`record.dir`) goes there with a name that says what went wrong.
`pytest tests/golden --rewrite-golden` rewrites what is said, and records `told_everything` anew.
"""

from __future__ import annotations

import gzip
from io import BytesIO
from pathlib import Path

import pytest

from broker_agent.recording.log_format import StimulusLog
from broker_agent.recording.replaying import replay
from dynatops.cli.brokers.replay import report_lines
from tests.support.recording import MemoryLog, told_everything

FOLDER = Path(__file__).parent / "stimuli"
EVERYTHING = FOLDER / "told_everything.gz"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.gz")), ids=lambda path: path.stem)
def test_stimuli(path: Path, request: pytest.FixtureRequest) -> None:
    rewrites = request.config.getoption("--rewrite-golden")
    if rewrites and path == EVERYTHING:
        path.write_bytes(recorded())
    report = replay(StimulusLog(BytesIO(path.read_bytes())))
    # Without the first line, that says which version recorded it.
    said = "\n".join(report_lines(report)[1:]) + "\n"
    expected = path.with_suffix(".txt")
    if rewrites:
        expected.write_text(said)
    assert said == expected.read_text()
    assert report.strikes == []


def recorded() -> bytes:
    log = MemoryLog()
    told_everything(log)
    log.close()
    return gzip.compress(log.raw, mtime=0)


def test_there_are_logs() -> None:
    assert EVERYTHING.is_file()
