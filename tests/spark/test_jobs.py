"""What jobs declare of themselves is so."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.job import Clock, JobOutcome
from analytics.jobs import catalogue
from dynatops.kit.advice.advising_jobs import JOB_TABLES

JOBS = catalogue.jobs(catalogue.default_settings())


def test_every_module_is_registered_once_under_its_own_name() -> None:
    folder = Path(catalogue.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "catalogue"}
    assert sorted(catalogue.JOBS) == sorted(modules)
    assert [kind.name for kind in catalogue.kinds().values()] == list(catalogue.JOBS)


def test_what_uses_another_comes_after_it() -> None:
    for name, kind in catalogue.kinds().items():
        for used in kind.uses.values():
            assert catalogue.JOBS.index(used.job) < catalogue.JOBS.index(name)
            assert used.table in catalogue.kinds()[used.job].results


def test_every_setting_says_what_it_is_for() -> None:
    for kind in catalogue.kinds().values():
        for entry in fields(kind.settings):
            assert len(entry.metadata["help"]) > 10, entry.name


def test_managers_look_for_what_jobs_advise() -> None:
    """Otherwise: `make docs`."""
    assert {
        name: tuple(kind.advice_tables.values()) for name, kind in catalogue.kinds().items()
    } == JOB_TABLES


@pytest.mark.parametrize("name", catalogue.JOBS)
def test_tables_are_those_declared(spark: SparkSession, name: str) -> None:
    job = JOBS[name]
    state = {table: spark.createDataFrame([], schema) for table, schema in job.state.items()}
    outcome = JobOutcome(state, dict.fromkeys(job.kind.uses))
    results = job.results(outcome)
    assert set(results) == set(job.kind.results)
    clocks = {fold.table.name: Clock(None, None, None) for fold in job.folds}
    advice = job.advice(results, clocks)
    assert advice.kind is job.kind
    assert set(advice.tables) == set(job.kind.advice_tables)
