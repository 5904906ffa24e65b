"""What is printed can be read, and does nothing else to a terminal."""

from __future__ import annotations

import io
import json
import sys

import pytest

from dynatops.cli.common import print_json, print_table
from dynatops.cli.terminal import OVER_THE_LINE, plain_output, visible, write_control


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("héllo, Ελλάδα, 東京 \U0001f600", "héllo, Ελλάδα, 東京 \U0001f600"),
        # Joined pictures, and scripts that need joiners, stay what they are.
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
        ("\x1b[31mred\x1b[0m", r"\u001b[31mred\u001b[0m"),
        ("\x1b]0;title\x07", r"\u001b]0;title\u0007"),
        ("\x9b31m", r"\u009b31m"),
        ("over\rwritten\b", r"over\u000dwritten\u0008"),
        ("two\nlines\tand columns", r"two\u000alines\u0009and columns"),
        ("\x00\x7f", r"\u0000\u007f"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
        ("a\u2028b", r"a\u2028b"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_no_character_of_unicode_that_controls_gets_through() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = visible(every)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)
    shown.encode()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_and_columns_of_the_command_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    out, errors = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    with plain_output():
        sys.stdout.write("name\tof \x1b[2J\r\nnext\n")
        sys.stderr.write("\x1b\n")
        write_control(OVER_THE_LINE)
        sys.stdout.writelines(["a\x07", "b"])
    assert out.getvalue() == "name\tof \\u001b[2J\\u000d\nnext\n\r\033[Ka\\u0007b"
    assert errors.getvalue() == "\\u001b\n"
    assert sys.stdout is out


def test_nothing_is_asked_of_what_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        write_control(OVER_THE_LINE)
    assert capsys.readouterr().out == ""


def test_a_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "n"), [("a\nb\tc", 1)])
    assert capsys.readouterr().out.splitlines()[2] == r"a\u000ab\u0009c  1"


def test_documents_are_exact_though_they_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    every = "".join(chr(i) for i in range(0x3000) if not 0xD800 <= i < 0xE000) + "\U0001f600\\u001b"
    with plain_output():
        print_json({every: [every, {"deep": every}]})
    out = capsys.readouterr().out
    assert json.loads(out) == {every: [every, {"deep": every}]}
    assert visible(out.rstrip("\n")) == out.rstrip("\n")
