"""How the numeric kernels are compiled, and where the outcome is kept.

numba keeps what it compiled, and compiles anew when the file of a function changes; but not when a
function that it calls changes in another file. So the sources of all kernels are part of the
cache's place: whatever is found there was compiled from them. It is `$NUMBA_CACHE_DIR` if set, else
the user's cache folder. Where nothing can be written every process compiles for itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


# Packages with kernels, beside this one.
_PACKAGES = ("experiments", "overlay", "reconfig_manager")


def _cache_dir() -> Path:
    digest = hashlib.sha256()
    beside = Path(__file__).parents[2]
    for package in _PACKAGES:
        for source in sorted((beside / package).rglob("*_kernels.py")):
            digest.update(source.read_bytes())
    return _base_dir() / "dynatops" / digest.hexdigest()[:16]


def _base_dir() -> Path:
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        # A user without a home, as in some containers.
        return Path(__file__).parent / "__pycache__"


_CACHE_DIR = str(_cache_dir())
# Its names are made when numba is loaded; type checkers do not see them.
_numba_config: Any = numba.config


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled when first called, and kept."""
    return _compiled(function, inline="never")


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A part of a kernel that is copied into it.

    A call of a compiled function counts references to every table it is given: far more than what
    the small functions of inner loops cost themselves.
    """
    return _compiled(function, inline="always")


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    before = _numba_config.CACHE_DIR
    # Read at this moment only; other users of numba in this process keep their own.
    _numba_config.CACHE_DIR = _CACHE_DIR
    try:
        return cast("Callable[P, R]", njit(cache=True, **options)(function))
    except RuntimeError:
        return cast("Callable[P, R]", njit(**options)(function))
    finally:
        _numba_config.CACHE_DIR = before
