"""Types what a page says, as its reader would, and reads what comes.

`python -m tests.docs.terminals PAGE` types the sections that are done in seconds, with `--long`
those that take minutes. Pages use the ports that everybody uses, and one folder: with `--alone` it
has been put into a network and a namespace of mounts of its own, and finishes these.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.pages import ROOT, Section, Step, sections

# Where pages make what they make.
FOLDER = Path("/tmp/dynatops")  # noqa: S108  # as pages say

# What they say once they are of use to those who type on.
READY = {
    "broker": "Ctrl-C",
    "manager": "Ctrl-C",
    "sub": "subscribed to",
    "up": "Ctrl-C",
    "watch": "",
}
# Not typed, with the reason; but each is to be a target of the Makefile.
NOT_TYPED = {
    "make demo": "the tests of the demo run it",
    "make setup": "it has been done, or nothing would run",
    "make test": "that is what is running",
}
READY_WITHIN_S = 60.0
SHOWN_WITHIN_S = 20.0
DONE_WITHIN_S = 1800.0
ENDED_WITHIN_S = 30.0
# What a person who is told so asks again: a manager has not watched for long enough.
_TRY_AGAIN = re.compile(r"are needed|registered: two at least|heard of lately")
_TRY_AGAIN_FOR_S = 240.0
_PLAN = re.compile(r"plan (p\d+-\d+): PROPOSED")


class PageError(AssertionError):
    """The page does not say what is so."""


class Screen:
    """What all terminals show, so far."""

    def __init__(self) -> None:
        self._text = ""
        self._changed = threading.Condition()

    @property
    def text(self) -> str:
        with self._changed:
            return self._text

    def show(self, text: str) -> None:
        with self._changed:
            self._text += text
            self._changed.notify_all()

    def wait_for(self, fulfilled: Callable[[str], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: fulfilled(self._text), timeout_s)


class Terminal:
    """One command that runs in a terminal of its own."""

    def __init__(self, command: str, screen: Screen, environment: Mapping[str, str]) -> None:
        self.command = command
        self.own = Screen()
        self._screen = screen
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.own.show(line)
            self._screen.show(line)
        self.own.show("\0")

    def wait_until_ready(self) -> None:
        word = READY[self.command.split()[1]]
        shown = self.own.wait_for(lambda text: word in text or "\0" in text, READY_WITHIN_S)
        if not shown or "\0" in self.own.text:
            raise PageError(f"it did not begin:\n{self.own.text}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            code = self.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise PageError(f"{self.command}: Ctrl-C does not end it") from None
        self._reading.join()
        if code not in (0, 130):
            raise PageError(f"{self.command}: exit code {code}\n{self.own.text}")


class Reader:
    """Does what a page says, step by step."""

    def __init__(self, page: str, scratch: str) -> None:
        """`scratch` is where `mktemp` makes folders."""
        self._page = page
        self._screen = Screen()
        self._open: list[Terminal] = []
        # Widths of a terminal, and nothing that would lead elsewhere.
        kept = {name: value for name, value in os.environ.items() if "DYNATOPS" not in name}
        own = {"COLUMNS": "120", "PYTHONPATH": str(ROOT), "TMPDIR": scratch}
        self._environment = {**kept, **own}

    def read(self, chosen: list[Section]) -> None:
        try:
            for section in chosen:
                for step in section.steps:
                    self._do(step)
        finally:
            self.close()

    def _do(self, step: Step) -> None:
        began_s = time.monotonic()
        try:
            if step.kind == "output":
                self._expect(step.text)
            elif step.kind == "program":
                self._run([sys.executable, "-c", step.text])
            elif step.goes_on:
                self._begin(step.text)
            elif step.text not in NOT_TYPED:
                self._run_until_possible(step.text)
        except (PageError, subprocess.TimeoutExpired) as error:
            raise PageError(f"{self._page}:{step.line}: {step.text}\n{error}") from None
        took_s = time.monotonic() - began_s
        sys.stdout.write(f"{took_s:6.1f} s  {self._page}:{step.line}  {step.text}\n")
        sys.stdout.flush()

    def _expect(self, line: str) -> None:
        parts = [re.escape(part) for part in re.split(r"\s+", line.strip())]
        wanted = re.compile(r"\s+".join(parts).replace("…", ".*"))
        if not self._screen.wait_for(lambda text: bool(wanted.search(text)), SHOWN_WITHIN_S):
            raise PageError(f"not to be read anywhere in\n{self._screen.text}")

    def _begin(self, command: str) -> None:
        if command.split()[1] == "up":
            self.close()
        self._open.append(Terminal(command, self._screen, self._environment))
        self._open[-1].wait_until_ready()

    def _run_until_possible(self, command: str) -> None:
        if " PLAN" in command:
            command = command.replace(" PLAN", f" {_PLAN.findall(self._screen.text)[-1]}")
        ends_s = time.monotonic() + _TRY_AGAIN_FOR_S
        while True:
            try:
                return self._run(["bash", "-c", command])
            except PageError as error:
                if time.monotonic() > ends_s or not _TRY_AGAIN.search(str(error)):
                    raise

    def _run(self, arguments: list[str]) -> None:
        outcome = subprocess.run(
            arguments, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=DONE_WITHIN_S,
        )  # fmt: skip
        self._screen.show(outcome.stdout)
        if outcome.returncode != 0:
            raise PageError(f"exit code {outcome.returncode}\n{outcome.stdout}")

    def close(self) -> None:
        """Ctrl-C in all terminals, the last one first."""
        failures = []
        while self._open:
            try:
                self._open.pop().interrupt()
            except PageError as error:
                failures.append(str(error))
        if failures:
            raise PageError("\n".join(failures))


def bring_loopback_up() -> None:
    """In a new network namespace even 127.0.0.1 is down."""
    get, change, up = 0x8913, 0x8914, 1
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, get, request))
        fcntl.ioctl(any_socket, change, struct.pack("16sh14x", b"lo", flags | up))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--long", action="store_true", help="those that take minutes, only")
    arguments = parser.parse_args()
    # Whoever started this in the background may have left Ctrl-C ignored, for children as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments.alone:
        bring_loopback_up()
        FOLDER.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(FOLDER)], check=True)
    elif FOLDER.exists():
        sys.stderr.write(f"{FOLDER} is there already: remove it, and what is in it\n")
        return 1
    chosen = [s for s in sections(arguments.page) if s.is_long == arguments.long]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            Reader(arguments.page, scratch).read(chosen)
    except PageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
