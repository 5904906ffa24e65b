"""Compiled kernels are kept for the next process, where that is possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import json
import numba
import numpy as np
from overlay.placement.cost_kernels import grow_routes

roots = np.zeros(1, dtype=np.int32)
first = np.array([0, 1, 2], dtype=np.int64)
offsets = np.ones(2, dtype=np.int32)
parents = np.empty((1, 2), dtype=np.int32)
grow_routes(roots, first, offsets, parents, np.empty((1, 2), dtype=np.uint8))
print(json.dumps({
    "parents": parents.tolist(),
    "hits": sum(grow_routes.stats.cache_hits.values()),
    "numba_dir": numba.config.CACHE_DIR,
}))
"""


def run(cache: Path) -> dict[str, object]:
    outcome = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, object] = json.loads(outcome.stdout)
    return answer


def test_a_second_process_does_not_compile(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert (first["hits"], second["hits"]) == (0, 1)
    assert first["parents"] == second["parents"] == [[-1, 0]]
    # Other users of numba keep the place that is theirs.
    assert first["numba_dir"] == str(tmp_path)


def test_where_nothing_can_be_written_it_works_all_the_same(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert run(occupied)["parents"] == [[-1, 0]]
