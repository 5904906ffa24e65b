"""What machines of a cluster need for a job, and whether they have it.

Spark itself is there. `analytics` is sent to them, as an archive of what is installed here; pyarrow
and the like cannot be sent, an image has them or not.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

import analytics
from analytics.errors import AnalyticsError
from analytics.session import is_local
from analytics.storage.places import is_folder
from analytics.storage.storage import SparkError, Storage, write_text
from dynatops.lake.fields import SUFFIX
from dynatops.lake.store_urls import parse_store_url

# What is imported there.
_NEEDED = ("numpy", "pandas", "pyarrow")
# More than there are cores, as a rule, so that every machine is asked.
_QUESTIONS_MIN = 8


def check_executors(spark: SparkSession, lake: Storage, output: Storage) -> None:
    """That machines of a cluster have what jobs need there. Raises AnalyticsError."""
    if is_local(spark.sparkContext.master):
        return
    with _files_in_folders(lake, output) as files:
        check_machines(spark, files)


def alive(spark: SparkSession) -> set[str]:
    """Executors that the driver knows, the driver among them."""
    context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public name for it
    return set(context.getExecutorMemoryStatus().keySet().mkString(" ").split())


def send_package(spark: SparkSession) -> None:
    """To all executors, those that come later too; before anything of ours is registered in Spark,
    which then goes by what was sent."""
    home = Path(analytics.__file__).parent
    if not home.is_dir():
        # It came in an archive itself (`spark-submit --py-files`), and so it will to executors.
        return
    folder = Path(tempfile.mkdtemp(prefix="dynatops-"))
    # Executors fetch it from there, for as long as there is a session.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(str(archive_of(home, folder / f"analytics-{uuid4().hex[:8]}.zip")))


def archive_of(home: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for path in sorted(home.rglob("*.py")):
            content.write(path, path.relative_to(home.parent))
    return archive


@contextmanager
def _files_in_folders(lake: Storage, output: Storage) -> Iterator[Mapping[str, str]]:
    """By folder of this machine a file in it, for others to see.

    A lake that only the driver sees would be a lake of files that cannot be read.
    """
    files: dict[str, str] = {}
    if is_folder(lake.root):
        for file in lake.found(lake.root, SUFFIX)[:1]:
            files[lake.root] = file.path
    if not is_folder(output.root):
        yield files
        return
    path = f"{output.root}/state/seen-{uuid4().hex}"
    write_text(output, path, "x")
    try:
        yield {**files, output.root: path}
    finally:
        output.delete(path)


def check_machines(spark: SparkSession, files: Mapping[str, str]) -> None:
    """That executors can run what we have in Python, and see these files, as the driver does: of
    each folder one. In one question, as each takes a second. Raises AnalyticsError."""
    needed = _NEEDED
    to_be_seen = {folder: parse_store_url(path).path for folder, path in files.items()}

    def missing(_: Iterable[int]) -> Iterator[tuple[str, str, str, str]]:
        # By value: the package need not be there to say what is missing.
        import importlib  # noqa: PLC0415
        import os  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        here = socket.gethostname(), sys.executable
        for name in needed:
            try:
                importlib.import_module(name)
            except ImportError as error:
                yield *here, name, " ".join(str(error).split())
        for folder, path in to_be_seen.items():
            if not os.path.exists(path):  # noqa: PTH110
                yield *here, folder, ""

    context = spark.sparkContext
    questions = max(_QUESTIONS_MIN, context.defaultParallelism * 2)
    try:
        answers = context.parallelize(range(questions), questions).mapPartitions(missing).collect()
    except SparkError as error:
        raise AnalyticsError(_why_no_python(str(error))) from None
    for host, python, what, why in sorted(answers)[:1]:
        raise AnalyticsError(
            _why_not_seen(host, what) if what in files else _why_no_package(host, python, what, why)
        )


def _why_no_package(host: str, python: str, package: str, why: str) -> str:
    return (
        f"{python} on {host} has no {package} ({why}), which jobs need on every machine: have "
        f"`pip install {' '.join(_NEEDED)}` in the image of executors, or choose another Python "
        "there (--conf spark.pyspark.python=…)"
    )


def _why_not_seen(host: str, folder: str) -> str:
    return (
        f"executors do not see {folder} ({host} does not): on a cluster, have lake and results "
        "where all machines see them, such as s3://bucket/prefix or a folder that all of them share"
    )


def _why_no_python(said: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in said or "have different version" in said:
        return (
            "executors have another version of Python than this machine: have the same in their "
            "image, or choose it (--conf spark.pyspark.python=…)"
        )
    if "Cannot run program" in said:
        return (
            "executors have no Python of that name: have one in their image, or choose it "
            "(--conf spark.pyspark.python=…)"
        )
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("\tat ")]
    return f"executors cannot run Python: {' '.join(lines[-2:])[:500]}"
