"""The compiled build: `DYNATOPS_COMPILE=1 pip install .` makes C of the modules that
`pyproject.toml` lists, with mypyc. Without the variable nothing of this file matters, and no
compiler is needed.

Asked for and not possible is an error: nobody is to believe that compiled modules run where they do
not. An editable install stays pure, as would be run from the sources: compiled modules beside them
would go on running when a source changes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

VARIABLE = "DYNATOPS_COMPILE"
_PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
COMPILED: dict[str, list[str]] = _PROJECT["tool"]["dynatops"]["compiled"]


def _is_asked_for() -> bool:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        _refuse(f"it is {value!r}", "say 1 for compiled modules, 0 or nothing for pure Python")
    return value == "1"


def _refuse(what: str, remedy: str) -> None:
    raise SystemExit(f"dynatops: {VARIABLE}: {what}; {remedy}")


def _check_compiler() -> None:
    pure = f"or leave {VARIABLE} out: all works in pure Python, too"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        _refuse(f"the C compiler {compiler!r} is not found", f"install one (gcc, clang), {pure}")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        _refuse(f"{headers} is not there", f"install Python's headers (python3-dev), {pure}")


def _extensions() -> list[Extension]:
    _check_compiler()
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  # only here is it needed
    except ImportError:
        missing = " ".join(COMPILED["requires"])
        _refuse(
            "mypyc is not installed", f"leave --no-build-isolation out, or pip install {missing}"
        )
    modules = [f"{name.replace('.', '/')}.py" for name in COMPILED["modules"]]
    # What is imported and is not there has no types; `make check` has seen it with them.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    extensions: list[Extension] = mypycify(
        [*options, *modules], opt_level="3", debug_level="0", group_name="dynatops"
    )
    return extensions


def _arguments() -> dict[str, Any]:
    if not _is_asked_for():
        return {}
    if "editable_wheel" in sys.argv:
        _refuse("an editable install is pure Python", "leave one of the two out")
    # Metadata and source distributions are the same for both builds.
    extensions = _extensions() if "bdist_wheel" in sys.argv else []
    return {"setup_requires": COMPILED["requires"], "ext_modules": extensions}


setup(**_arguments())
