"""Build wheels: pure Python, and compiled for this Python and this kind of machine (`setup.py`).

python tools/build_wheels.py                       both, into dist/
python tools/build_wheels.py compiled --into DIR   one of them, elsewhere

Each is built in a folder of its own, from sources alone: nothing compiled gets beside the sources
of the checkout, where everything that is run from there would take it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILDS = {"pure": "0", "compiled": "1"}


def copy_sources(into: Path) -> None:
    """What a build needs of the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]:
        package = pattern.removesuffix("*")
        left_out = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / package, into / package, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into)


def build_wheel(build: str, into: Path) -> Path:
    """With what is installed here: the compiler of a compiled one is that of `make setup`."""
    with tempfile.TemporaryDirectory() as folder:
        sources, built = Path(folder, "sources"), Path(folder, "built")
        sources.mkdir()
        copy_sources(sources)
        command = [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", str(built), "."),
        ]
        # The same sources are the same wheel, byte for byte: files in it have no time of their own.
        environment = {"SOURCE_DATE_EPOCH": "315532800", **os.environ}
        environment["DYNATOPS_COMPILE"] = BUILDS[build]
        subprocess.run(command, cwd=sources, env=environment, check=True)
        (wheel,) = built.iterdir()
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, into))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builds", nargs="*", metavar="pure|compiled", choices=[*BUILDS, []])
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    for build in arguments.builds or BUILDS:
        began_s = time.monotonic()
        wheel = build_wheel(build, arguments.into)
        seconds, kib = time.monotonic() - began_s, wheel.stat().st_size / 1024
        print(f"{build:8}  {seconds:5.1f} s  {kib:6.0f} KiB  {wheel}", flush=True)


if __name__ == "__main__":
    main()
