"""The process in which solvers work: problems come by standard input, solutions leave by standard
output, until the manager closes the one, or is no more. See `solving.py`.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import BinaryIO

from reconfig_manager.placement.problem import UnsuitableProblemError
from reconfig_manager.service.solving import HEADER, PlaceRequest, SolveRequest
from reconfig_manager.solvers import SOLVERS
from reconfig_manager.solvers.warm_up import warm_up
from reconfig_manager.storing.planners import STORE_PLANNERS

# Brokers, and the manager, come first.
_NICENESS = 5


def serve(problems: BinaryIO, solutions: BinaryIO) -> None:
    while (raw := _read(problems)) is not None:
        _write(solutions, _solve(pickle.loads(raw)))  # noqa: S301  # from our own parent


def _solve(request: SolveRequest | PlaceRequest) -> object:
    try:
        if isinstance(request, PlaceRequest):
            return STORE_PLANNERS[request.planner](request.problem, request.task)
        return SOLVERS[request.algorithm](request.problem, request.task)
    except (UnsuitableProblemError, ValueError, MemoryError) as error:
        return str(error) or type(error).__name__


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    raw = stream.read(size)
    return raw if len(raw) == size else None


def _write(stream: BinaryIO, answer: object) -> None:
    raw = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(raw)) + raw)
    stream.flush()


def main() -> None:
    os.nice(_NICENESS)
    # Whatever is printed by accident must not come between the solutions.
    solutions = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warm_up()
    _write(solutions, "ready")
    serve(sys.stdin.buffer, solutions)


if __name__ == "__main__":
    main()
