"""What the project's files say of each other: nothing that is not there, nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "analytics", "benchmarks", "broker_agent", "docs", "dynatops", "helm", "overlay", "proto",
    "reconfig_manager", "simulator", "experiments", "tests", "tools",
)  # fmt: skip
KINDS = {".py", ".md", ".proto", ".toml", ".yaml", ".tpl", ".json", ".txt"}
# Papers of other places, and notes of whoever wrote the project.
_ELSEWHERE = re.compile(r"\b(DESIGN|EXPERIMENTS|STYLE|ROADMAP)\b(?!_)|\bissues? #?\d|\bshared/")
_PAGE = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*[\w-]+\.md)\b")


def texts() -> Iterator[tuple[Path, str]]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in [*files, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]:
        known = path.suffix in KINDS or path.name == "Makefile"
        if path.is_file() and known and path != Path(__file__):
            yield path, path.read_text()


def test_no_document_is_named_that_is_not_there() -> None:
    pages = {path.name.lower() for path, _ in texts() if path.suffix == ".md"}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts()
        for name in [
            *(match[0] for match in _ELSEWHERE.finditer(text)),
            # Tests make pages up.
            *(
                page
                for page in _PAGE.findall(text)
                if Path(page).name.lower() not in pages and "tests" not in path.parts
            ),
        ]
    ]
    assert found == []


def test_every_benchmark_runs_once() -> None:
    lines = (ROOT / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]
    run = re.findall(r"-m (benchmarks\.\w+)", lines)
    assert run
    assert len(run) == len(set(run))
