"""Commands as a person types them, and a cluster to type them at."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

COMMAND = [sys.executable, "-m", "dynatops"]


def run(
    *arguments: str, stdin: str = "", timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_json(*arguments: str, **options: Any) -> Any:
    outcome = run(*arguments, "--json", **options)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


class Cluster:
    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--port", "0", "--json", *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.addresses = json.loads(self.process.stdout.readline())["addresses"]

    def stop(self, signal_: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(signal_)
        self.process.communicate(timeout=30)
        return self.process.returncode
