"""What README and quick start tell their readers to type does what they say."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
import sys

import pytest

from tests.docs.pages import PAGES, ROOT, loose_commands, sections
from tests.docs.terminals import NOT_TYPED

# Of those that pages use.
_PORTS = (*range(7400, 7416), 7470, 7471, 7480, 7481, 7500)
# Processes of its own, too: when the test is cut off, none of them stays.
_ALONE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def network_of_its_own() -> bool:
    try:
        return subprocess.run([*_ALONE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def taken_ports() -> list[int]:
    taken = []
    for port in _PORTS:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                taken.append(port)
    return taken


def type_it(page: str, *options: str) -> None:
    command = [sys.executable, "-m", "tests.docs.terminals", page, *options]
    if network_of_its_own():
        command = [*_ALONE, *command, "--alone"]
    elif taken := taken_ports():
        pytest.skip(f"ports {taken} are in use, and there is no network of its own (unshare)")
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def one_at_a_time(page: str) -> pytest.MarkDecorator:
    """Without networks of their own pages would be in each other's way."""
    return pytest.mark.xdist_group(page if network_of_its_own() else "default-ports")


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [pytest.param(p, marks=one_at_a_time(p)) for p in PAGES])
def test_commands_do_what_the_page_says(page: str) -> None:
    type_it(page)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=one_at_a_time(page))
        for page in PAGES
        if any(section.is_long for section in sections(page))
    ],
)
def test_long_commands_do_what_the_page_says(page: str) -> None:
    type_it(page, "--long")


@pytest.mark.parametrize("page", PAGES)
def test_no_command_is_passed_over(page: str) -> None:
    assert loose_commands(page) == []


def test_what_is_not_typed_is_a_target_that_a_page_names() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = {step.text for page in PAGES for section in sections(page) for step in section.steps}
    for command in NOT_TYPED:
        assert command.removeprefix("make ") in targets
        assert command in named
