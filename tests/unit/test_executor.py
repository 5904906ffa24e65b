"""What becomes of a container that Spark on Kubernetes has asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.errors import AnalyticsUsageError
from analytics.executor import executor_command

# As Spark writes it.
SAID = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@rates.net-dynatops-spark:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "x-exec-3",
    **{f"SPARK_JAVA_OPT_{i}": f"-Doption={i}" for i in range(12)},
}


def test_options_are_in_their_order_and_all_is_said() -> None:
    command = executor_command(SAID, Path("/spark/jars"))
    assert command[0] == "java"
    assert command[1:13] == [f"-Doption={i}" for i in range(12)]
    assert command[13:18] == [
        "-Xms1024m",
        "-Xmx1024m",
        "-cp",
        "/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]
    options = dict(zip(command[18::2], command[19::2], strict=True))
    assert options["--driver-url"] == SAID["SPARK_DRIVER_URL"]
    assert (options["--executor-id"], options["--cores"]) == ("3", "2")
    assert (options["--hostname"], options["--podName"]) == ("10.1.2.3", "x-exec-3")


def test_where_java_and_further_classes_are() -> None:
    places = {
        "JAVA_HOME": "/java",
        "HADOOP_CONF_DIR": "/hadoop",
        "SPARK_EXTRA_CLASSPATH": "/more/*",
    }
    command = executor_command({**SAID, **places}, Path("/jars"))
    assert command[0] == "/java/bin/java"
    assert "/hadoop:/jars/*:/more/*" in command


def test_by_hand_it_is_none() -> None:
    with pytest.raises(AnalyticsUsageError, match=r"started by Spark.*SPARK_EXECUTOR_ID"):
        executor_command({"SPARK_EXECUTOR_MEMORY": "1g"}, Path())
