"""Jobs on a small lake, cut off where a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from analytics.analytics_settings import with_values
from analytics.jobs.catalogue import default_settings, jobs
from analytics.runner import Place, Runner, Summary
from tests.support.object_store import ObjectStore
from tests.support.spark_frames import START_S, tuples


class Cut(BaseException):
    """Nothing that a job could catch and go on after, like a killed process."""


class Running:
    """Runs jobs; one file of the lake is one batch, unless told."""

    def __init__(
        self, spark: SparkSession, folder: Path, *values: str, redis: str = "", name: str = "out"
    ) -> None:
        self.lake = folder / "lake"
        self.output = folder / name
        self.settings = with_values(default_settings(), ["run.files_per_batch=1", *values])
        self._spark = spark
        self._redis = redis

    def runner(self, step: Callable[[str], None] = lambda name: None) -> Runner:
        place = self.place()
        return Runner(
            self._spark, place, self.settings, step=step, now_s=lambda: START_S + 86_400.0
        )

    def place(self) -> Place:
        return Place(lake=str(self.lake), output=str(self.output), redis=self._redis)

    def run(self, job: str, step: Callable[[str], None] = lambda name: None) -> Summary:
        return self.runner(step).run(jobs(self.settings)[job])

    def results(self, job: str) -> dict[str, list[tuple[Any, ...]]]:
        """Tables of the newest version."""
        versions = {
            table: max(table.glob("version=*"), key=_number)
            for table in (self.output / job).iterdir()
            if table.is_dir()
        }
        return {
            table.name: tuples(self._spark.read.parquet(str(version)))
            for table, version in versions.items()
        }

    def run_cut_everywhere(self, job: str) -> tuple[Summary, list[str]]:
        """Again and again, each time until a step where it was not cut off yet."""
        been: list[str] = []
        for _ in range(50):
            # What was committed says how far the job is, whatever is left over from attempts.
            def step(name: str) -> None:
                where = f"{name} {self._commits()}"
                if where not in been:
                    been.append(where)
                    raise Cut(where)

            try:
                return self.run(job, step), been
            except Cut:
                continue
        raise AssertionError(been)

    def _commits(self) -> int:
        return len(list(self.output.glob("state/*/commits/[0-9]*.json")))


class RunningOnStore(Running):
    """The same in a bucket: what is in the folder is brought there before each run."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        *values: str,
        store: ObjectStore,
        bucket: str,
        name: str = "out",
    ) -> None:
        super().__init__(spark, folder, *values, name=name)
        self._store = store
        self._bucket = bucket

    def place(self) -> Place:
        self._store.upload(self.lake, f"{self._bucket}/lake")
        return Place(lake=f"{self._bucket}/lake", output=f"{self._bucket}/{self.output.name}")

    def results(self, job: str) -> dict[str, list[tuple[Any, ...]]]:
        """Of what is there as a whole, brought here."""
        self._store.download(f"{self._bucket}/{self.output.name}", self.output)
        return super().results(job)

    def _commits(self) -> int:
        paths = self._store.paths(f"{self._bucket}/{self.output.name}")
        return sum("/commits/" in path for path in paths)


def _number(version: Path) -> int:
    return int(version.name.removeprefix("version=").partition("-")[0])


def close(some: dict[str, list[tuple[Any, ...]]], others: dict[str, list[tuple[Any, ...]]]) -> bool:
    """Equal, but for the last digits of sums in another order."""
    return some.keys() == others.keys() and all(
        len(some[t]) == len(others[t]) and all(map(_alike, some[t], others[t])) for t in some
    )


def _alike(row: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(
        abs(a - b) <= 1e-9 * max(abs(a), abs(b))
        if isinstance(a, float) and isinstance(b, float)
        else a == b
        for a, b in zip(row, other, strict=True)
    )
