"""The compiled build: what must be there for it, and that it does what the sources do.

Here is a small part, which fits into `make test`; `make test-compiled` runs all tests of the cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compiled_modules import ROOT, compiled_table

BACKEND = "import setuptools.build_meta as backend; print(backend.{}({!r}))"


def run(
    *arguments: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


class TestAskedFor:
    @pytest.fixture
    def sources(self, tmp_path: Path) -> Path:
        """As much of them as a build looks at before it compiles."""
        (tmp_path / "dynatops").mkdir()
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "dynatops/version.py"):
            shutil.copy(ROOT / name, tmp_path / name)
        return tmp_path

    def ask(self, sources: Path, hook: str, **environment: str) -> tuple[int, str]:
        where = None if "requires" in hook else "built"
        done = run("-c", BACKEND.format(hook, where), folder=sources, **environment)
        return done.returncode, done.stdout + done.stderr

    def test_without_asking_nothing_more_is_needed(self, sources: Path) -> None:
        for value in ("", "0"):
            code, told = self.ask(sources, "get_requires_for_build_wheel", DYNATOPS_COMPILE=value)
            assert (code, told.splitlines()[-1]) == (0, "[]")

    def test_the_compiler_is_the_one_that_tests_ran(self, sources: Path) -> None:
        requires = compiled_table()["requires"]
        assert set(requires) < set((ROOT / "constraints.txt").read_text().split())
        code, told = self.ask(sources, "get_requires_for_build_wheel", DYNATOPS_COMPILE="1")
        assert (code, told.splitlines()[-1]) == (0, str(requires))

    def test_without_a_compiler_it_says_so(self, sources: Path) -> None:
        code, told = self.ask(sources, "build_wheel", DYNATOPS_COMPILE="1", CC="no-such-cc -O2")
        assert code
        assert "the C compiler 'no-such-cc' is not found; install one" in told

    def test_without_mypyc_it_says_so(self, sources: Path) -> None:
        (sources / "hidden").mkdir()
        (sources / "hidden" / "mypyc.py").write_text("raise ImportError")
        code, told = self.ask(
            sources, "build_wheel", DYNATOPS_COMPILE="1", CC=sys.executable, PYTHONPATH="hidden"
        )
        assert code
        assert "mypyc is not installed; leave --no-build-isolation out" in told

    def test_an_editable_install_is_refused(self, sources: Path) -> None:
        code, told = self.ask(sources, "build_editable", DYNATOPS_COMPILE="1")
        assert code
        assert "an editable install is pure Python" in told

    def test_another_value_is_refused(self, sources: Path) -> None:
        code, told = self.ask(sources, "build_wheel", DYNATOPS_COMPILE="yes")
        assert code
        assert "it is 'yes'; say 1 for compiled modules" in told


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A compiled wheel, unpacked."""
    folder = tmp_path_factory.mktemp("compiled")
    built = run(str(ROOT / "tools" / "build_wheels.py"), "compiled", "--into", str(folder / "dist"))
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    yield folder / "unpacked"
    shutil.rmtree(folder)


@pytest.mark.xdist_group("compiled")
@pytest.mark.timeout(900)
class TestBuilt:
    def on_compiled(self, unpacked: Path, *arguments: str) -> str:
        """What that writes. The sources are found behind it: tests are there."""
        done = run(
            *arguments,
            folder=ROOT, PYTHONSAFEPATH="1", PYTHONPATH=f"{unpacked}{os.pathsep}{ROOT}",
            DYNATOPS_EXPECT_COMPILED="1",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def test_it_has_compiled_what_is_listed(self, unpacked: Path) -> None:
        found = {
            str(path.relative_to(unpacked)).partition(".")[0].replace("/", ".")
            for path in unpacked.rglob("*.so")
        }
        assert found == {*compiled_table()["modules"], "dynatops__mypyc"}
        assert "(compiled)" in self.on_compiled(unpacked, "-m", "dynatops", "--version")

    def test_written_down_conversations_go_on_alike(self, unpacked: Path) -> None:
        pytest_options = ("-q", "-o", "pythonpath=", "-p", "no:cacheprovider", "-p", "no:xdist")
        told = self.on_compiled(unpacked, "-m", "pytest", *pytest_options, "tests/golden")
        assert " passed" in told

    def test_a_seed_has_the_same_trace(self, unpacked: Path, tmp_path: Path) -> None:
        """Brokers that crash, and clients of all kinds, in virtual time."""
        command = ("-m", "dynatops", "simulate", "--seed", "7", "--brokers", "8", "--minutes", "1")
        pure, compiled = tmp_path / "pure", tmp_path / "compiled"
        assert run(*command, "--trace", str(pure), folder=ROOT).returncode == 0
        self.on_compiled(unpacked, *command, "--trace", str(compiled))
        assert pure.stat().st_size > 100_000
        assert compiled.read_bytes() == pure.read_bytes()
