"""Small files beside the data: through Hadoop's file systems, as Spark's own.

One URL, one set of credentials, for data and for what is known about them. Nothing here overwrites
what somebody else wrote, unless told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class AlreadyThereError(Exception):
    """Somebody else has written the file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already")
        self.path = path


class Files:
    """File systems that Spark knows. Paths are URLs, or paths of this machine."""

    def __init__(self, spark: SparkSession) -> None:
        # The gateway is how PySpark itself reaches Hadoop; there is no public name for it.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001

    def exists(self, path: str) -> bool:
        return bool(self._system(path).exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """Names of files and folders in a folder, sorted; none if it does not exist."""
        if not self.exists(folder):
            return []
        found = self._system(folder).listStatus(self._path(folder))
        return sorted(status.getPath().getName() for status in found)

    def bytes_in(self, paths: Iterable[str]) -> int:
        """Of files, and of folders with all that is in them."""
        summaries = (self._system(path).getContentSummary(self._path(path)) for path in paths)
        return sum(summary.getLength() for summary in summaries)

    def read(self, path: str) -> str:
        stream = self._system(path).open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Replace the file as a whole."""
        self._write(path, text)

    def create(self, path: str, text: str) -> None:
        """Write a file that must not be there yet, and that is there as a whole or not at all."""
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.{uuid4().hex}"
        self._write(unfinished, text)
        options = self._gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 1)
        options[0] = self._jvm.org.apache.hadoop.fs.Options.Rename.NONE
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(path).toUri(), self._configuration
        )
        try:
            context.rename(self._path(unfinished), self._path(path), options)
        except Py4JJavaError as error:
            self.delete(unfinished)
            if "FileAlreadyExists" in str(error.java_exception):
                raise AlreadyThereError(path) from None
            raise

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it; nothing if it is not there."""
        self._system(path).delete(self._path(path), True)

    def copy(self, source: str, target: str) -> None:
        """Replace `target`."""
        self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            self._system(source),
            self._path(source),
            self._system(target),
            self._path(target),
            False,
            True,
            self._configuration,
        )

    def _write(self, path: str, text: str) -> None:
        stream = self._system(path).create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._configuration)


def spark_url(url: str) -> str:
    """As Spark names file systems: what brokers write to as s3://, it reads as s3a://."""
    url = url.rstrip("/")
    return f"s3a://{url.removeprefix('s3://')}" if url.startswith("s3://") else url
