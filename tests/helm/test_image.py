"""The Dockerfile, without Docker: what it copies is there, and what it runs can be run."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dynatops.version import VERSION
from tests.support.kubernetes.chart import (
    CHART,
    ROOT,
    VALUES,
    containers,
    pod_templates,
    rendered,
)
from tests.support.kubernetes.image import OURS, last_of, stages, words

IMAGES = ("dynatops", "analytics")


def wanted(path: str) -> bool:
    """Whether .dockerignore lets it in."""
    let_in = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            if fnmatch.fnmatch(path.split("/", 1)[0], pattern) or pattern == "*":
                let_in = line.startswith("!")
    return let_in


def test_without_a_target_it_is_the_small_one() -> None:
    assert list(stages())[-1] == "dynatops"


def test_bases_are_pinned() -> None:
    known = stages()
    for stage in known.values():
        if stage.base not in known:
            image, _, tag = stage.base.partition(":")
            assert image == "python"
            version = tag.split("-")[0].split(".")
            assert len(version) == 3, f"{stage.base}: name a patch version"
            assert (int(version[0]), int(version[1])) >= (3, 11)


def test_what_is_copied_is_there() -> None:
    known = stages()
    for stage in known.values():
        for copy in stage.all_of("COPY"):
            first, *more = words(copy)
            if first.startswith("--from="):
                assert first.removeprefix("--from=") in known
                continue
            for source in [first, *more][:-1]:
                assert (ROOT / source).exists()


def test_what_is_installed_is_let_in_and_nothing_else() -> None:
    for path in (
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "setup.py",
        "dynatops/version.py",
    ):
        assert wanted(path), path
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]:
        assert wanted(pattern.removesuffix("*")), pattern
    for path in (".git", ".venv", "tests", "docs", "helm", "build", "tokens.toml"):
        assert not wanted(path), path


def test_versions_are_those_of_the_lock() -> None:
    installs = [
        step for stage in stages().values() for step in stage.all_of("RUN") if "pip install" in step
    ]
    assert installs
    assert all("-c constraints.txt" in step for step in installs)


@pytest.mark.parametrize("image", IMAGES)
def test_it_runs_the_command_as_nobody_special(image: str) -> None:
    assert json.loads(last_of(image, "ENTRYPOINT")) == ["dynatops"]
    user, _, group = last_of(image, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_pods_are_the_image_s_user() -> None:
    user = int(last_of("dynatops", "USER").partition(":")[0])
    for _, pod in pod_templates(rendered("autoscaling")):
        assert pod["spec"]["securityContext"]["runAsUser"] == user


def test_the_chart_has_the_images_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
    allowed = {f"{OURS}:{VERSION}", f"{OURS}:{VERSION}-analytics"}
    for values in VALUES:
        for _, pod in pod_templates(rendered(values)):
            for container in containers(pod):
                image = container["image"]
                assert image in allowed or image.startswith("valkey/valkey:")


def test_only_analytics_need_java() -> None:
    with_java = {
        stage.name for stage in stages().values() if any("jre" in s for s in stage.all_of("RUN"))
    }
    assert with_java == {"analytics"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_build_stage_can_be_run(tmp_path: Path) -> None:
    """Its own commands, in a folder that has what `COPY . .` would bring."""
    environment = {
        **os.environ,
        **dict(word.split("=") for word in stages()["build"].all_of("ENV")),
    }
    source, target = tmp_path / "build", tmp_path / "opt"
    source.mkdir()
    for path in ROOT.iterdir():
        if wanted(path.name) and path.is_dir():
            shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif wanted(path.name):
            shutil.copy(path, source)
    for step in stages()["build"].all_of("RUN"):
        command = [
            word.replace("/opt/dynatops", str(target)).replace("python", sys.executable)
            if word == "python" or "/opt/" in word
            else word
            for word in words(step)
        ]
        subprocess.run(command, cwd=source, check=True, env=environment)
    dynatops = target / "bin" / "dynatops"
    instance = str(tmp_path / "i.json.gz")
    for arguments in (
        ["--version"],
        ["settings", "--manager"],
        ["lake", "generate", str(tmp_path / "lake"), "--users", "100", "--days", "1"],
        ["instance", "--brokers", "10", "--topics", "5", "--output", instance],
        ["solve", instance, "--time-limit", "1"],
    ):
        outcome = subprocess.run(
            [dynatops, *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stderr
        assert arguments != ["--version"] or "(compiled)" in outcome.stdout
