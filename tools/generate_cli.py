"""Generate docs/cli.md from the commands themselves: every command, its arguments and options.

python tools/generate_cli.py            write it
python tools/generate_cli.py --check    fail if what is committed is not current

What many commands take alike is written once. Nothing of argparse's own layout is used: it differs
between Python's versions.
"""

# ruff: noqa: SLF001  # argparse does not tell otherwise what a parser has

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
# Options that so many commands have, word for word, are written once.
_SHARED_FROM = 6
_INTRODUCTION = """\
# Commands

Made from the code by `tools/generate_cli.py`; change the code, then `make docs`. What
`dynatops COMMAND --help` says, on one page.

Exit codes: 0 done, 1 it could not be done, 2 the command line or an input file is wrong, 130
interrupted. Some commands say more about theirs."""


_ACCESS = (
    "Who asks, and whom to believe. [Security](security.md#set-it-up) has the variables for it."
)


class CommandPage:
    """One command: its words, and what it takes."""

    def __init__(self, parser: argparse.ArgumentParser, summary: str) -> None:
        self.name = parser.prog
        self.summary = summary
        self.description = (parser.description or "").strip()
        self.epilog = (parser.epilog or "").strip()
        self.examples = ""
        if self.epilog.startswith("examples:"):
            self.epilog, self.examples = "", self.epilog.removeprefix("examples:").strip("\n")
        actions = [a for a in parser._actions if a.help != argparse.SUPPRESS]
        self.positionals = [Argument(parser, a) for a in actions if not a.option_strings]
        access = [a for g in parser._action_groups if g.title == "access" for a in g._group_actions]
        self.access = [Argument(parser, a) for a in access]
        self.options = [
            Argument(parser, a)
            for a in actions
            if a.option_strings and not isinstance(a, argparse._HelpAction) and a not in access
        ]


class Argument:
    """An option, or what has a place of its own; equal if a reader could not tell them apart."""

    def __init__(self, parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        self.names = action.option_strings
        self.required = action.required
        self.repeated = isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*")
        self.value = "" if action.nargs == 0 else _value(action)
        self.optional = action.nargs in ("?", "*")
        self.help = parser._get_formatter()._expand_help(action) if action.help else ""
        if not self.help and self.names and action.default not in (None, False):
            self.help = f"(default: {action.default})"

    @property
    def written(self) -> str:
        return f"{', '.join(self.names)} {self.value}".strip()

    @property
    def key(self) -> tuple[str, str]:
        return self.written, self.help

    def row(self) -> str:
        notes = [self.help] if self.help else []
        if self.names and self.required:
            notes.append("required")
        return f"| `{_cell(self.written)}` | {_cell(_code_in(_sentence(notes)))} |"


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return action.metavar or (action.dest.upper() if action.option_strings else action.dest)


def _sentence(notes: list[str]) -> str:
    text = "; ".join(notes)
    first = text.partition(" ")[0].rstrip(",;:")
    return text[:1].upper() + text[1:] if first.isalpha() else text


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code_in(text: str) -> str:
    """Options, variables and wildcards that help texts name bare stand out on a page."""
    parts = re.split(r"(`[^`]*`)", text)
    pattern = r"(?<![\w`-])(--[a-z][a-z-]+|\$?DYNATOPS_[A-Z_]+|(?<!\*)\*(?!\*))"
    return "".join(p if p.startswith("`") else re.sub(pattern, r"`\1`", p) for p in parts)


def _wrapped(text: str) -> str:
    whole = _code_in(" ".join(text.split()))
    return textwrap.fill(whole, 120, break_long_words=False, break_on_hyphens=False)


def commands(parser: argparse.ArgumentParser) -> Iterator[CommandPage]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                nested = list(commands(below))
                yield from nested or [CommandPage(below, summaries.get(name, ""))]


def lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    all_commands = list(commands(parser))
    counted = Counter(o.key for c in all_commands for o in c.options)
    shared = {key for key, count in counted.items() if count >= _SHARED_FROM}
    yield from (_INTRODUCTION, "", "| command | |", "|---|---|")
    for command in all_commands:
        anchor = command.name.replace(" ", "-")
        yield f"| [`{command.name}`](#{anchor}) | {_cell(command.summary)} |"
    yield from ("", "## Options of many commands", "", "| option | |", "|---|---|")
    shown = {o.key: o for c in all_commands for o in c.options if o.key in shared}
    yield from (option.row() for option in shown.values())
    yield from ("", "### Access", "", _ACCESS, "", "| option | |", "|---|---|")
    access = {o.key: o for c in all_commands for o in c.access}
    yield from (option.row() for option in access.values())
    for command in all_commands:
        yield from described(command, shared)


def described(command: CommandPage, shared: set[tuple[str, str]]) -> Iterator[str]:
    yield from ("", f"## {command.name}", "", "    " + usage(command), "")
    yield _wrapped(command.description)
    own = [o for o in command.options if o.key not in shared]
    rows = [a.row() for a in command.positionals if a.help] + [o.row() for o in own]
    if rows:
        yield from ("", "| | |", "|---|---|", *rows)
    others = [f"`{o.names[-1]}`" for o in command.options if o.key in shared]
    others += ["[access](#access)"] if command.access else []
    if others:
        yield from ("", f"[As many commands](#options-of-many-commands): {', '.join(others)}.")
    if command.epilog:
        yield from ("", _wrapped(command.epilog))
    if command.examples:
        yield ""
        yield from ("    " + line.removeprefix("  ") for line in command.examples.splitlines())


def usage(command: CommandPage) -> str:
    words = [command.name]
    for argument in command.positionals:
        word = argument.value + ("..." if argument.repeated else "")
        words.append(f"[{word}]" if argument.optional else word)
    required = [o.written for o in command.options if o.required]
    return " ".join([*words, *required, "[options]"])


def main() -> int:
    # Defaults that the environment may change are shown as they are without it.
    for name in [name for name in os.environ if name.startswith("DYNATOPS_")]:
        del os.environ[name]
    from dynatops.cli.main import _parser  # noqa: PLC0415

    text = "\n".join(lines(_parser())) + "\n"
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET.name} is not current: run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
