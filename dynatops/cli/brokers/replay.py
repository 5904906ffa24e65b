"""`dynatops replay`: tell a broker again what was recorded of another, and see where it fails."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dynatops.cli.common import Commands, add_command, positive, print_json
from dynatops.cli.errors import CommandError

if TYPE_CHECKING:
    from broker_agent.recording.replaying import ReplayReport, Strike

# Inputs between two looks at what must hold; where it does not, each is looked at.
_CHECK_EVERY = 100
_MENDED_SHOWN = 20


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "replay",
        run,
        summary="tell a broker again what was recorded of another, and see where it fails",
        description="Make a broker as a recorded one was made, and tell it all that one was told, "
        "at the same times of a clock of its own: no network, no disk, no waiting. It says which "
        "input raised, and after which one something does not hold that always must; and from "
        "which one on this program does something else than the recorded one did.",
        epilog="A broker records with `dynatops broker --set record.dir=DIR`. Exit code 1: "
        "something raised, or did not hold.",
    )
    parser.add_argument("file", metavar="FILE", help="a file of `record.dir`")
    parser.add_argument("--until", type=positive(int), metavar="N", help="stop after the Nth input")


def run(arguments: argparse.Namespace) -> int:
    report = _replayed(Path(arguments.file), arguments.until)
    if arguments.json:
        print_json(_document(report))
    else:
        for line in report_lines(report):
            print(line)
    return 1 if report.strikes else 0


def _replayed(path: Path, until: int | None) -> ReplayReport:
    from broker_agent.recording.records import LogError
    from broker_agent.recording.replaying import search

    try:
        return search(lambda: path.open("rb"), until=until, check_every=_CHECK_EVERY)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except LogError as error:
        raise CommandError(f"{path} cannot be replayed: {error}") from None


# ---- as text -------------------------------------------------------------------------------------


def report_lines(report: ReplayReport) -> list[str]:
    beginning = report.beginning
    began = datetime.fromtimestamp(beginning.began_ms / 1000, UTC)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.inputs.most_common())
    broker = f"broker {report.broker_id} at {report.address}, version {beginning.version}"
    return [
        f"{broker}, recorded from {began:%Y-%m-%d %H:%M:%S} UTC on",
        f"{report.count:,} inputs in {report.seconds:.3f} s: {kinds or 'none'}",
        _end(report),
        _comparison(report),
        *(line for strike in report.strikes for line in _strike_lines(report, strike)),
        *([f"and {report.strikes_left_out:,} more"] if report.strikes_left_out else []),
        *_mended_lines(report),
        *([] if report.strikes else ["nothing raised, and all holds that must"]),
    ]


def _end(report: ReplayReport) -> str:
    from broker_agent.recording.replaying import LogEnd

    return {
        LogEnd.CLOSED: "the log ends with its broker",
        LogEnd.FULL: "the log ends because it is full (record.bytes_max); its broker went on",
        LogEnd.BREAKS_OFF: "the log breaks off: its broker was killed, or still runs",
        LogEnd.UNREAD: "the log goes on",
    }[report.end]


def _comparison(report: ReplayReport) -> str:
    if report.differs_at is None:
        return f"effects {report.digest}, as recorded"
    return (
        f"effects {report.digest}; from input {report.differs_at:,} on they are not those that "
        "were recorded"
    )


def _mended_lines(report: ReplayReport) -> list[str]:
    mended = list(report.mended.items())
    lines = [
        f"input {number:,} raised {error} when it was recorded, and does not any more"
        for number, error in mended[:_MENDED_SHOWN]
    ]
    left = len(mended) - len(lines)
    return [*lines, f"and so do {left:,} more"] if left else lines


def _strike_lines(report: ReplayReport, strike: Strike) -> list[str]:
    where = f"input {strike.number:,} ({strike.what}, at {strike.at_s:.3f} s)"
    if not strike.traceback:
        return [f"after {where}: {strike.message}"]
    before = "as when it was recorded" if strike.number in report.raised_before else "unlike then"
    trace = [f"    {line}" for line in strike.traceback.rstrip().splitlines()]
    return [f"{where} raised {strike.message}, {before}", *trace]


# ---- as JSON -------------------------------------------------------------------------------------


def _document(report: ReplayReport) -> dict[str, object]:
    return {
        "broker_id": report.broker_id,
        "address": report.address,
        "version": report.beginning.version,
        "began_ms": report.beginning.began_ms,
        "inputs": dict(report.inputs),
        "count": report.count,
        "seconds": round(report.seconds, 6),
        "end": report.end.value,
        "digest": report.digest,
        "differs_at": report.differs_at,
        "strikes": [
            {
                "input": strike.number,
                "what": strike.what,
                "at_s": round(strike.at_s, 6),
                "kind": strike.kind.value,
                "message": strike.message,
                "traceback": strike.traceback,
            }
            for strike in report.strikes
        ],
        "strikes_left_out": report.strikes_left_out,
        "mended": {str(number): error for number, error in report.mended.items()},
    }
