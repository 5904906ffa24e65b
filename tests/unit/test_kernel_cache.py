"""Where compiled kernels are kept depends on the sources of all of them."""

from __future__ import annotations

from pathlib import Path

from dynatops.kit import compiled

PROJECT = Path(__file__).parents[2]


def test_every_folder_with_kernels_counts() -> None:
    sources = [
        path.relative_to(PROJECT)
        for path in PROJECT.glob("*/**/*_kernels.py")
        if not path.relative_to(PROJECT).parts[0].startswith((".", "build"))
    ]
    assert {path.parts[0] for path in sources} == set(compiled._PACKAGES)
