"""What messages, help and guides tell people to type exists: commands, their options, settings."""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynatops.cli.main import _MODULES, _parser, command_module

PROJECT = Path(__file__).parents[2]
PACKAGES = ("dynatops", "broker_agent", "reconfig_manager", "analytics", "simulator", "experiments")
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
# Of other programs, that guides tell people to run.
FOREIGN = {
    *("--version", "--help"),
    *("--create-namespace", "--glob", "--from-file", "--from-literal", "--namespace", "--set-file"),
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_COMMAND = re.compile(r"\bdynatops ([a-z][a-z-]+(?: [a-z][a-z-]+)?)\b")


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command, by its words after `dynatops`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield name, child
                yield from ((f"{name} {rest}", sub) for rest, sub in commands(child))


COMMANDS = dict(commands(_parser()))
OPTIONS = {
    option
    for parser in [_parser(), *COMMANDS.values()]
    for action in parser._actions
    for option in action.option_strings
}


@functools.cache
def texts() -> list[tuple[str, str]]:
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    """Texts of the code, with where they are; f-strings with a blank for what is put in."""
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            if "v1" in path.parts:
                continue
            tree = ast.parse(path.read_text())
            # Of drawings and rules for whoever reads the code.
            docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            for node in ast.walk(tree):
                if id(node) in docstrings:
                    continue
                where = f"{path.relative_to(PROJECT)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield where, node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = [v.value if isinstance(v, ast.Constant) else " " for v in node.values]
                    yield where, "".join(map(str, parts))


def test_there_is_something_to_look_at() -> None:
    assert {"sub", "token", "policy set", "manager"} <= COMMANDS.keys()
    assert {"--keep", "--client-id", "--json"} <= OPTIONS
    assert sum(1 for _, text in texts() if _OPTION.search(text)) > 100


def test_options_in_messages_exist() -> None:
    unknown = [
        f"{where}: {option}"
        for where, text in texts()
        for option in _OPTION.findall(text)
        if option not in OPTIONS | FOREIGN and not _is_of_another_program(where)
    ]
    assert unknown == []


def _is_of_another_program(where: str) -> bool:
    """Modules that are programs of their own, with options of their own."""
    path = where.partition(":")[0]
    return "add_argument" in (PROJECT / path).read_text() and "/cli/" not in path


def test_commands_in_messages_exist() -> None:
    first_words = {name.split()[0] for name in COMMANDS}
    unknown = [
        f"{where}: dynatops {words}"
        for where, text in texts()
        for words in re.findall(r"`dynatops ([a-z][a-z-]+)", text)
        if words not in first_words
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_guides_tell_people_to_type_exists(page: Path) -> None:
    unknown = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for typed in re.findall(r"\bdynatops ([a-z][^`|;]*)", re.sub(r"\s# .*", "", line)):
            parser = _command_of(typed)
            if parser is None:
                continue
            known = {option for action in parser._actions for option in action.option_strings}
            unknown += [
                f"{page.name}:{number}: {option} of dynatops {typed}"
                for option in _OPTION.findall(typed)
                if option not in known | FOREIGN
            ]
    assert unknown == []


def _command_of(typed: str) -> argparse.ArgumentParser | None:
    words = typed.split()
    return COMMANDS.get(" ".join(words[:2])) or COMMANDS.get(words[0])


def test_every_module_with_commands_is_registered_once() -> None:
    folder = PROJECT / "dynatops" / "cli"
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if "\ndef add_commands(" in path.read_text()
    }
    assert sorted(_MODULES) == sorted(found)


@pytest.mark.parametrize("module", _MODULES)
def test_a_command_names_its_own_options(module: str) -> None:
    own = argparse.ArgumentParser()
    command_module(module).add_commands(own.add_subparsers())
    path = f"dynatops/cli/{module.replace('.', '/')}.py"
    said = [(where, text) for where, text in texts() if where.rpartition(":")[0] == path]
    # And of other commands that it speaks of.
    named = [_command_of(words) for _, text in said for words in _COMMAND.findall(text)]
    parsers = [*(parser for _, parser in commands(own)), *(p for p in named if p is not None)]
    known = {option for p in parsers for a in p._actions for option in a.option_strings}
    unknown = [f"{w}: {o}" for w, text in said for o in _OPTION.findall(text) if o not in known]
    assert unknown == []
