"""What `spark-submit` starts: `spark-submit [...] analytics/main.py run all --lake URL --output
URL`.

The same as `dynatops analytics run`, but for the master, which is spark-submit's to choose.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Started as a file, and not installed beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from analytics.command import DESCRIPTION, EPILOG, FAILED, USAGE, add_options, run
from analytics.errors import AnalyticsError, AnalyticsUsageError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analytics", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser(
        "run",
        help="run jobs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_options(command)
    arguments = parser.parse_args(argv)
    # spark-submit says so to what it starts.
    is_submitted = "SPARK_ENV_LOADED" in os.environ
    try:
        return run(arguments, default_master=None if is_submitted else "local[*]")
    except AnalyticsUsageError as error:
        print(f"analytics: {error}", file=sys.stderr)
        return USAGE
    except AnalyticsError as error:
        print(f"analytics: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
