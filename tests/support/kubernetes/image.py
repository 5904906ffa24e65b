"""The Dockerfile, as far as tests need to know it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field

from tests.support.kubernetes.chart import ROOT

# Of the images in the chart, those that are made here.
OURS = "dynatops"


@dataclass(slots=True)
class Stage:
    name: str
    base: str
    # (instruction, what follows), in order.
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all_of(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]


def stages() -> dict[str, Stage]:
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            for argument, value in arguments.items():
                base = base.replace(f"${{{argument}}}", value)
            found[name] = Stage(name, base)
        else:
            list(found.values())[-1].steps.append((instruction, rest.strip()))
    return found


def last_of(target: str, instruction: str) -> str:
    """What holds in an image: the stage's own, or what it has from those that it is made from."""
    known = stages()
    stage: Stage | None = known[target]
    while stage is not None:
        said = stage.all_of(instruction)
        if said:
            return said[-1]
        stage = known.get(stage.base)
    raise AssertionError(f"{target} has no {instruction}")


def entry_point_of(image: str) -> list[str]:
    """What a container runs that names no command."""
    repository, _, tag = image.partition(":")
    assert repository == OURS, f"{image} is not ours: its containers must say what they run"
    target = "analytics" if tag.endswith("-analytics") else "dynatops"
    return list(json.loads(last_of(target, "ENTRYPOINT")))


def words(step: str) -> list[str]:
    return shlex.split(step)
