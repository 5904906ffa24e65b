"""The site is strict: whatever leads nowhere fails. (`make check` builds the real one.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

_PAGES = {
    "README.md": "[docs](docs/index.md)",
    "ARCHITECTURE.md": "# Architecture\n\n[the protocol](docs/other.md#words)",
    "CHANGELOG.md": "# Changelog",
    "CONTRIBUTING.md": "# Contributing",
    "docs/index.md": "# Index\n\n[a](../ARCHITECTURE.md) [b](other.md) ![c](images/c.svg)\n\n"
    "[`wire.proto`](../proto/wire.proto)\n\n`[code](is/no/link.md)`",
    "docs/other.md": "# Other\n\n## Words\n\n[index](index.md#index)",
    "docs/images/c.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "proto/wire.proto": "",
}
_NAMES = ("index.md", "other.md", "architecture.md", "changelog.md", "contributing.md")
_CONFIGURATION = f"""\
[project]
site_name = "test"
docs_dir = "build/site/pages"
site_dir = "build/site/html"
use_directory_urls = false
nav = {list(_NAMES)}
[project.theme]
font = false
""".replace("'", '"')


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {**_PAGES, "zensical.toml": _CONFIGURATION}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def build(repository: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "build_site.py"), "--root", str(repository)]
    return subprocess.run(command, capture_output=True, text=True)


def test_pages_from_all_over_become_one_site(repository: Path) -> None:
    outcome = build(repository)
    assert outcome.returncode == 0, outcome.stderr
    index = (repository / "build/site/html/index.html").read_text()
    assert 'href="architecture.html"' in index
    # A source is no page of the site: its name is enough.
    assert "<code>wire.proto</code>" in index
    assert "wire.proto)" not in index
    assert "[code](is/no/link.md)" in index


@pytest.mark.parametrize(
    ("page", "added", "message"),
    [
        ("docs/other.md", "[x](nope.md)", "docs/other.md:7: nope.md leads nowhere"),
        ("docs/other.md", "[x](../nope.py)", "../nope.py leads nowhere"),
        ("docs/other.md", "![x](images/nope.svg)", "images/nope.svg leads nowhere"),
        ("docs/other.md", "[x](index.md#nope)", "anchor does not exist"),
        ("docs/other.md", "[x](#nope)", "anchor does not exist"),
        ("docs/other.md", "[x][nope]\n\n[nope]: nope.md", "page does not exist"),
        ("docs/other.md", '<a href="nope.html">x</a>', "nope.html leads nowhere"),
        ("docs/other.md", '<img src="https://example.org/x.png">', "loads https://example.org"),
        ("ARCHITECTURE.md", "[x](docs/nope.md)", "ARCHITECTURE.md:5: docs/nope.md leads nowhere"),
        ("README.md", "[x](docs/nope.md)", "README.md:3: docs/nope.md leads nowhere"),
        ("docs/hidden.md", "# Hidden", "no door has hidden.md"),
    ],
)
def test_what_leads_nowhere_fails(repository: Path, page: str, added: str, message: str) -> None:
    path = repository / page
    before = path.read_text() + "\n\n" if path.exists() else ""
    path.write_text(before + added + "\n")
    outcome = build(repository)
    assert outcome.returncode == 1
    assert message in outcome.stderr


def test_a_door_to_a_page_that_is_not_there_fails(repository: Path) -> None:
    (repository / "docs/other.md").unlink()
    (repository / "docs/index.md").write_text("# Index")
    (repository / "ARCHITECTURE.md").write_text("# Architecture")
    outcome = build(repository)
    assert outcome.returncode == 1
    assert "there is no other.md" in outcome.stderr
