"""What reaches a terminal: text of others only as it can be read, control sequences only our own.

Names of topics, clients and brokers, payloads, reasons: somebody else made all of it, and it could
move the cursor, set the title, or pretend to be other output. What commands print goes through
`plain_output`, and what is to stay on its line through `visible`; `write_control` is the way
around, for what a command itself wants of the terminal. What is exact is in `--json`, and in files
and pipes of `sub --raw`.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

OVER_THE_LINE = "\r\033[K"
CLEAR_SCREEN = "\033[H\033[J"

# Control characters, separators of lines, what turns the direction of writing, and halves of pairs.
_UNREADABLE = r"\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_LINE = re.compile(rf"[\x00-\x1f{_UNREADABLE}]")
# Lines and columns are those of the command that prints.
_IN_OUTPUT = re.compile(rf"[\x00-\x08\x0b-\x1f{_UNREADABLE}]")


def visible(text: str) -> str:
    """On one line, with escapes for what cannot be read."""
    return _IN_A_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    """As JSON has it: a document remains what it was."""
    return f"\\u{ord(found[0]):04x}"


class _PlainStream:
    """A text stream that lets no control character through."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_IN_OUTPUT.sub(_escaped, text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def write_control(self, sequence: str) -> None:
        self._stream.write(sequence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_control(sequence: str, stream: TextIO | None = None) -> None:
    """What this program wants of a terminal; nothing where there is none."""
    stream = stream or sys.stdout
    if stream.isatty():
        write = getattr(stream, "write_control", stream.write)
        write(sequence)


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """All that is printed meanwhile can be read, and does nothing else."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_plain(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _plain(stream: TextIO) -> Any:
    return stream if isinstance(stream, _PlainStream) else _PlainStream(stream)
