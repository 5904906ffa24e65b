"""What a page tells its reader to type, and what it says will come of it.

- A ```sh block is typed into a terminal: a command a line, more lines if they end with a backslash.
- A command whose remark says `until Ctrl-C` goes on; what follows is typed elsewhere meanwhile.
- A command whose remark says that it takes a minute or minutes makes its section a long one.
- A ```python block is a program.
- A ```text block is what can be read by then, line by line; `…` stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/quickstart.md")

_FENCE = re.compile(r"```(\w*)$")
_REMARK = re.compile(r"\s+#\s(?P<remark>[^'\"]*)$")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the reader does or reads."""

    kind: str  # command, program, output
    text: str
    remark: str
    line: int

    @property
    def goes_on(self) -> bool:
        return "until Ctrl-C" in self.remark

    @property
    def is_long(self) -> bool:
        return re.search(r"\bminutes?\b", self.remark) is not None


@dataclass(slots=True)
class Section:
    """What is between two headings; its steps belong together."""

    title: str
    steps: list[Step] = field(default_factory=list)

    @property
    def is_long(self) -> bool:
        return any(step.is_long for step in self.steps)


def sections(page: str) -> list[Section]:
    """Those with something to do."""
    found = [Section("")]
    lines = iter(enumerate((ROOT / page).read_text().splitlines(), start=1))
    for number, line in lines:
        if line.startswith("## "):
            found.append(Section(line.removeprefix("## ")))
        if fence := _FENCE.match(line):
            body = list(_until_fence(lines))
            found[-1].steps += steps(fence[1], body, number + 1)
    return [section for section in found if section.steps]


def _until_fence(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line == "```":
            return
        yield line


def steps(language: str, body: list[str], first: int) -> Iterator[Step]:
    if language == "sh":
        yield from _commands(body, first)
    elif language == "python":
        yield Step("program", "\n".join(body), "", first)
    elif language == "text":
        yield from (Step("output", line, "", first + i) for i, line in enumerate(body))


def _commands(body: list[str], first: int) -> Iterator[Step]:
    begun = ""
    for number, line in enumerate(body, start=first):
        if line.endswith("\\"):
            begun += line[:-1].rstrip() + " "
            continue
        whole, begun = begun + line.strip(), ""
        remark = _REMARK.search(whole)
        if whole:
            yield Step(
                "command",
                whole[: remark.start()] if remark else whole,
                remark["remark"] if remark else "",
                number,
            )


def loose_commands(page: str) -> list[str]:
    """Lines that look like code and are in no block of the kinds above: nobody would run them."""
    blocks = re.compile(r"^```(?:sh|python|text)\n.*?^```$", re.MULTILINE | re.DOTALL)
    text = blocks.sub("", (ROOT / page).read_text())
    return [line for line in text.splitlines() if line.startswith(("    ", "\t", "```"))]
