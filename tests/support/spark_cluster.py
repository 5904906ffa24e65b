"""A standalone cluster of Spark on this machine: a master and workers, each with a folder of its
own; from what the pyspark package brings along.

Workers are told apart by their processes, which end by their pid. Whoever kills one kills its
executor, which notices that its worker is gone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.waiting import wait_for

_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_HERE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_STARTED_IN_S = 120.0


class SparkCluster:
    def __init__(self, folder: Path, memory: str) -> None:
        self._folder = folder
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begun = 0
        log = self._start("master", _MASTER, *_HERE)
        self.url = _awaited(log, r"Starting Spark master at (spark://\S+)")
        self.workers: list[subprocess.Popen[bytes]] = []

    def add_worker(self) -> None:
        self._begun += 1
        name = f"worker-{self._begun}"
        # An executor that shares nothing: neither a folder, nor what this process has.
        where = ("--work-dir", str(self._folder / name))
        log = self._start(
            name, _WORKER, *_HERE, "--cores", "1", "--memory", self._memory, *where, self.url
        )
        self.workers.append(self._processes[-1])
        _awaited(log, r"(Successfully registered with master)")

    def kill_worker(self) -> None:
        """The oldest, and at once."""
        worker = self.workers.pop(0)
        worker.kill()
        worker.wait()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(timeout=60)

    def _start(self, name: str, kind: str, *arguments: str) -> Path:
        folder = self._folder / name
        folder.mkdir(parents=True)
        log = folder / "log"
        environment = {
            "PATH": os.environ["PATH"],
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            **({"JAVA_HOME": java} if (java := os.environ.get("JAVA_HOME")) else {}),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), kind, *arguments],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return log


def _awaited(log: Path, pattern: str) -> str:
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(pattern, log.read_text(errors="replace"))
        return bool(found)

    wait_for(is_there, _STARTED_IN_S)
    return found[0]


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[SparkCluster]:
    cluster = SparkCluster(folder, memory)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()


def image_python(folder: Path, *packages: str) -> Path:
    """A Python as an image has it: with these packages, and nothing of this checkout."""
    links = folder / "packages"
    links.mkdir(parents=True)
    installed = Path(sysconfig.get_path("purelib"))
    for package in packages:
        for path in installed.glob(f"{package}*"):
            if path.name in (package, f"{package}.libs", f"{package}.py"):
                (links / path.name).symlink_to(path)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{links}" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    return python


def settings(python: Path) -> tuple[str, ...]:
    """What Spark needs to be told for such a cluster: the Python of its image, little memory."""
    return (
        *("--conf", f"spark.pyspark.python={python}"),
        *("--conf", "spark.executor.memory=600m"),
        *("--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false"),
    )
