"""Solvers at work in a process of their own, so that a leader hears its brokers meanwhile.

One process, started when the manager starts and kept warm; one problem at a time, the others wait.
What is sent either way is pickled: both sides are this program, connected by pipes. A solver that
does not end in time is killed, and the process started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dynatops.kit.background import Supervisor
from dynatops.kit.observing.log_operations import SOLVED
from dynatops.kit.observing.metrics import Histogram
from reconfig_manager.placement.problem import PlacementProblem, Solution, Task
from reconfig_manager.ports import PlaceTopics, Solve
from reconfig_manager.service.process_settings import ServiceSettings
from reconfig_manager.storing.problem import StoringProblem, StoringSolution, StoringTask

log = logging.getLogger(__name__)

HEADER = struct.Struct(">Q")
WAITING_MAX = 50
_RESTART_S = 1.0
_STOP_TIMEOUT_S = 2.0
_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# A planner of stores says no time: it ends after so many steps. It is ended after this.
_PLACING_MAX_S = 300.0

Work = Solve | PlaceTopics
# Of a placement, or of stores; or what went wrong as a sentence.
Answer = Solution | StoringSolution | str
Solved = Callable[[str, Answer], None]


@dataclass(frozen=True, slots=True)
class SolveRequest:
    algorithm: str
    problem: PlacementProblem
    task: Task


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    planner: str
    problem: StoringProblem
    task: StoringTask


class _WorkerError(Exception):
    """The process ended, or did not answer in time."""


class SolverProcess:
    def __init__(self, settings: ServiceSettings, on_solved: Solved) -> None:
        self._settings = settings
        self._on_solved = on_solved
        self._waiting: deque[Work] = deque()
        self._stirred = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[object] | None = None
        # The answer to the one being solved is not wanted any more.
        self._dropped = False
        self._busy = False
        self.ready = asyncio.Event()
        self.failures = 0
        self.seconds = Histogram(_BOUNDS_S)

    def start(self, supervisor: Supervisor) -> None:
        self._running = supervisor.start("the solver's process", self._run())

    def submit(self, work: Work) -> None:
        if len(self._waiting) >= WAITING_MAX:
            problem = f"{WAITING_MAX} problems wait for the solver already"
            asyncio.get_running_loop().call_soon(self._on_solved, work.plan_id, problem)
            return
        self._waiting.append(work)
        self._stirred.set()

    def drop_problems(self) -> None:
        """This manager leads no longer: nobody wants the answers."""
        self._waiting.clear()
        if self._busy:
            self._dropped = True
            self._kill()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._end()

    # ---- the loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._start_process()
                await self._serve()
            except (_WorkerError, OSError) as error:
                log.warning("the solver's process: %s; starting it again", error)
            await self._end()
            await asyncio.sleep(_RESTART_S)

    async def _start_process(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "reconfig_manager.service.solver_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is for the manager.
            start_new_session=True,
        )
        await self._answer(self._settings.solver_start_s)
        self.ready.set()

    async def _serve(self) -> None:
        while True:
            await self._stirred.wait()
            if not self._waiting:
                self._stirred.clear()
                continue
            work = self._waiting.popleft()
            self._busy, self._dropped = True, False
            problem, began_s = "", time.monotonic()
            answer: Answer = ""
            try:
                answer = await self._solve(work)
            except _WorkerError as error:
                answer = problem = str(error)
                self.failures += 1
            finally:
                self._busy = False
            self._log_solved(work, answer, time.monotonic() - began_s)
            if not self._dropped:
                self._on_solved(work.plan_id, answer)
            if problem:
                raise _WorkerError(problem)

    def _log_solved(self, work: Work, answer: Answer, seconds: float) -> None:
        self.seconds.observe(seconds)
        SOLVED.log(
            log,
            plan=work.plan_id,
            algorithm=work.algorithm if isinstance(work, Solve) else work.planner,
            brokers=work.problem.brokers,
            seconds=round(seconds, 3),
            outcome=f"failed: {answer}" if isinstance(answer, str) else "solved",
        )

    async def _solve(self, work: Work) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        request: SolveRequest | PlaceRequest
        if isinstance(work, Solve):
            request = SolveRequest(work.algorithm, work.problem, work.task)
            budget_s = min(work.task.time_limit_s, 3600.0)
        else:
            request = PlaceRequest(work.planner, work.problem, work.task)
            budget_s = _PLACING_MAX_S
        raw = await asyncio.to_thread(pickle.dumps, request, pickle.HIGHEST_PROTOCOL)
        limit_s = budget_s + self._settings.solver_grace_s
        try:
            process.stdin.write(HEADER.pack(len(raw)) + raw)
            async with asyncio.timeout(limit_s):
                await process.stdin.drain()
        except (OSError, TimeoutError) as error:
            raise _WorkerError(f"it took no problem: {error}") from error
        answer = await self._answer(limit_s)
        wanted = Solution if isinstance(work, Solve) else StoringSolution
        if not isinstance(answer, wanted | str):
            raise _WorkerError("it answered something else")
        return answer

    async def _answer(self, limit_s: float) -> object:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                raw = await process.stdout.readexactly(size)
        except TimeoutError:
            raise _WorkerError(f"no solution within {limit_s:g} s") from None
        except asyncio.IncompleteReadError:
            raise _WorkerError("it ended without an answer") from None
        return pickle.loads(raw)  # noqa: S301  # from our own child

    # ---- its end --------------------------------------------------------------------------------

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self) -> None:
        process = self._process
        self.ready.clear()
        if process is None:
            return
        self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        self._process = None
