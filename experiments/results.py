"""What has been measured, on disk: a line of JSON for each run and seed, as soon as it is there.

A run that was cut off goes on where it was: whatever is in the folder is not measured again. The
file of each scale begins with the version of what is in it; results of another version are refused
rather than mixed. A line that was being written when the power went is left out, and said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynatops.version import VERSION
from experiments.figures.figure import RunSpec

# Raised whenever a measurement or a workload means something else than before.
RESULTS_VERSION = 3


class ResultsError(Exception):
    """The folder cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    metrics: Mapping[str, float]
    seconds: float


@dataclass(slots=True)
class ResultsFile:
    """All runs of one scale. One process writes it."""

    folder: Path
    scale: float
    torn: int = 0
    _known: dict[tuple[str, int], Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self._read()

    @property
    def path(self) -> Path:
        return self.folder / f"runs-scale-{self.scale:g}.jsonl"

    def get(self, spec: RunSpec, seed: int) -> Outcome | None:
        return self._known.get((spec.key, seed))

    def add(self, spec: RunSpec, seed: int, outcome: Outcome) -> None:
        self._known[spec.key, seed] = outcome
        line = {
            "run": spec.key,
            "seed": seed,
            "seconds": round(outcome.seconds, 3),
            "metrics": dict(outcome.metrics),
        }
        self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            with self.path.open("a", encoding="utf-8") as out:
                if is_new:
                    out.write(json.dumps(_head(self.scale)) + "\n")
                out.write(json.dumps(line) + "\n")
        except OSError as error:
            raise ResultsError(f"{self.path}: {error.strerror}") from None

    def _read(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ResultsError(f"{self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ResultsError(f"{self.path}: not a file of results (no UTF-8)") from None
        _check_head(lines[0], self.path, self.scale)
        whole = [lines[0]]
        for number, line in enumerate(lines[1:], 2):
            if not line:
                continue
            entry = _parsed(line)
            if entry is None:
                if any(lines[number:]):
                    raise ResultsError(f"{self.path}: line {number} is damaged; remove it")
                self.torn += 1
                continue
            whole.append(line)
            outcome = Outcome(entry["metrics"], entry["seconds"])
            self._known[entry["run"], entry["seed"]] = outcome
        if self.torn or lines[-1]:
            # What follows is not to be glued to half a line.
            self.path.write_text("\n".join(whole) + "\n", encoding="utf-8")


def _head(scale: float) -> dict[str, Any]:
    return {"results_version": RESULTS_VERSION, "dynatops": VERSION, "scale": scale}


def _check_head(line: str, path: Path, scale: float) -> None:
    try:
        head = json.loads(line)
        found = (head["results_version"], head["dynatops"], head["scale"])
    except (ValueError, TypeError, KeyError):
        raise ResultsError(f"{path}: not a file of results; name another folder") from None
    if found != (RESULTS_VERSION, VERSION, scale):
        raise ResultsError(
            f"{path}: results of another version (format {found[0]}, dynatops {found[1]}; this is "
            f"format {RESULTS_VERSION}, dynatops {VERSION}); remove it, or name another folder"
        )


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        is_whole = {"run", "seed", "seconds", "metrics"} <= entry.keys()
    except (ValueError, AttributeError):
        return None
    return entry if is_whole else None
