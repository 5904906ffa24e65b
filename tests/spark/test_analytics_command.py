"""`analytics run` as a cron sees it; in this process, with the session that is there."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.analytics_settings import SettingsError, with_values
from analytics.command import (
    DONE,
    FAILED,
    NOTHING_NEW,
    USAGE,
    add_options,
    spark_settings,
)
from analytics.errors import AnalyticsUsageError
from analytics.jobs.catalogue import default_settings
from analytics.main import main
from dynatops.lake.fields import PUBLICATIONS
from tests.spark.test_runner import lake_of_all
from tests.support.running_analytics import Running, close
from tests.support.spark_frames import START_S, at, write_file


def arguments(folder: Path, *more: str) -> list[str]:
    return ["run", "rates", "--lake", str(folder / "lake"), "--output", str(folder / "out"), *more]


def test_exit_codes_and_summary(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path)) == FAILED
    assert "there is no lake at" in capsys.readouterr().out
    (tmp_path / "lake").mkdir()
    assert main(arguments(tmp_path, "--json")) == NOTHING_NEW
    capsys.readouterr()
    lake_of_all(tmp_path / "lake")
    assert main(arguments(tmp_path, "--json", "--set", "rates.late_s=0")) == DONE
    (summary,) = json.loads(capsys.readouterr().out)["jobs"]
    seconds = summary.pop("seconds")
    assert seconds > 0
    assert summary == {
        "job": "rates", "status": "done", "version": 2, "files_in": 3, "rows_in": 120,
        "rows_out": {"brokers": 10, "topics": 5}, "quarantined_files": 0, "quarantined_rows": 0,
        "late_rows": 0, "dropped_rows": 0, "advice": None,
    }  # fmt: skip
    assert main(arguments(tmp_path)) == NOTHING_NEW
    assert capsys.readouterr().out == "rates: nothing new\n"
    assert main(arguments(tmp_path, "--nothing-new-is-fine")) == DONE
    assert "Spark is there" in capsys.readouterr().err
    assert main(arguments(tmp_path, "--redis", f"unix://{tmp_path}/nobody")) == FAILED
    assert "results are kept" in capsys.readouterr().out
    assert main(arguments(tmp_path, "--explain")) == DONE
    assert "== Physical Plan ==" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("rates.period_s", "no SETTING=VALUE"),
        ("rates.speed=1", "no SETTING=VALUE"),
        ("rates.period_s=soon", "must be a number"),
        ("rates.period_s=0", "must be above 0"),
        ("rates.alpha=1.5", "at most 1"),
        ("clusters.size=nan", "must be a number"),
        ("selection.capacity=0.9", "at least 1"),
    ],
)
def test_settings_that_cannot_be(
    assignment: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--set", assignment)) == USAGE
    assert complaint in capsys.readouterr().err
    with pytest.raises(SettingsError, match=complaint):
        with_values(default_settings(), [assignment])


# ---- killed --------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "analytics.main"]
SLICES = 6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments_it_comes_to_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL to the whole process group, JVM and all; then again, until it is done."""
    running, whole = Running(spark, tmp_path), Running(spark, tmp_path, name="whole")
    for number in range(SLICES):
        rows = [
            (at(START_S + number * 600 + i), 1.0, f"b{i % 3}", f"t{i % 50}", i % 9 + 1, 9)
            for i in range(600)
        ]
        write_file(running.lake, PUBLICATIONS, f"b-1-{number}", rows)
    command = [
        *COMMAND,
        *arguments(tmp_path, "--master", "local[1]", "--set", "run.files_per_batch=1"),
    ]
    rng = random.Random(7)
    kills = 0
    for _ in range(4):
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=rng.uniform(6.0, 25.0))
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills > 0
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=600)
    assert done.returncode in {DONE, NOTHING_NEW}, done.stderr
    whole.run("rates")
    assert close(running.results("rates"), whole.results("rates"))


# ---- settings of Spark ---------------------------------------------------------------------------


def parsed(*more: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return spark_settings(parser.parse_args(["all", "--lake", "l", "--output", "o", *more]))


def test_settings_of_spark_pass_through(tmp_path: Path) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("# ours\n\nspark.a=1\nspark.b 2\nspark.c : x=y z\nspark.d\t4\n")
    settings = parsed(
        *("--properties-file", str(file), "--conf", "spark.a=9", "--conf", "spark.e=k=v"),
        *("--packages", "org:name:1", "--jars", "a.jar,b.jar"),
    )
    assert settings == {
        "spark.a": "9", "spark.b": "2", "spark.c": "x=y z", "spark.d": "4", "spark.e": "k=v",
        "spark.jars.packages": "org:name:1", "spark.jars": "a.jar,b.jar",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--conf", "spark.a"), "no spark.KEY=VALUE"),
        (("--conf", "master=x"), "no spark.KEY=VALUE"),
        (("--properties-file", "/nowhere"), "--properties-file"),
    ],
)
def test_settings_that_are_none_of_spark(options: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(AnalyticsUsageError, match=complaint):
        parsed(*options)
