"""What could not be used, and why: kept for people, never read by a job.

    OUTPUT/quarantine/JOB/files/ID.json     a file: where it was, and what is wrong with it
    OUTPUT/quarantine/JOB/files/ID.parquet  the file itself, as it was
    OUTPUT/quarantine/JOB/rows/NUMBER-…/    rows, with `reason` and the `file` that they were in

A file stays in the lake as well: the lake belongs to brokers, and every job looks for itself. Rows
are there before the commit of their batch, which names their folder; what a crash left of a batch
that has another commit now is swept away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from analytics.storage.storage import BadFile, Storage, write_text
from analytics.transforms.validity import REASON
from dynatops.kit.strict_json import write_json

FILE_COLUMN = "file"
_NUMBER_DIGITS = 12


class Quarantine:
    def __init__(self, lake: Storage, output: Storage, folder: str) -> None:
        self._lake = lake
        self._output = output
        self._folder = folder

    def take_file(self, bad: BadFile) -> None:
        name = hashlib.sha256(bad.path.encode()).hexdigest()[:32]
        path = f"{self._folder}/files/{name}"
        if self._lake.exists(bad.path):
            self._output.put(f"{path}.parquet", self._lake.blocks(bad.path))
        write_text(
            self._output, f"{path}.json", write_json({"file": bad.path, "reason": bad.reason})
        )

    def take_rows(self, judged: DataFrame, table: str, number: int) -> str:
        """Those that have a reason, of the batch that is to have this commit; their folder."""
        name = f"{number:0{_NUMBER_DIGITS}}-{table}-{uuid4().hex[:12]}"
        bad = judged.filter(fn.col(REASON).isNotNull())
        rows = bad.withColumnRenamed(REASON, "reason")
        self._output.save(rows, f"{self._folder}/rows/{name}")
        return name

    def sweep(self, until: int, quarantined_by: Callable[[int], str | None]) -> None:
        """Of commits up to this one, rows in folders that theirs does not name.

        `quarantined_by` says which a commit names; None of one that nobody knows any more.
        """
        for name in self._output.names(f"{self._folder}/rows"):
            number = int(name[:_NUMBER_DIGITS])
            if number <= until and quarantined_by(number) not in (name, None):
                self._output.delete(f"{self._folder}/rows/{name}")
