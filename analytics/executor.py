"""An executor of Spark on Kubernetes, in the container that Spark asks for.

Spark says everything in the environment, and starts images with the one word `executor`; Apache's
own images have a script for it. In ours this becomes the process that Spark means, with the jars
that the driver has, too: those of the package pyspark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from analytics.errors import AnalyticsError, AnalyticsUsageError

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Options of the backend, and the variables that they are in.
_OPTIONS = {
    "driver-url": "SPARK_DRIVER_URL",
    "executor-id": "SPARK_EXECUTOR_ID",
    "cores": "SPARK_EXECUTOR_CORES",
    "app-id": "SPARK_APPLICATION_ID",
    "hostname": "SPARK_EXECUTOR_POD_IP",
    "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY = "SPARK_EXECUTOR_MEMORY"
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def executor_command(environment: Mapping[str, str], jars: Path) -> list[str]:
    """What to run; raises AnalyticsUsageError where Spark has not asked for it."""
    missing = [name for name in (_MEMORY, *_OPTIONS.values()) if name not in environment]
    if missing:
        raise AnalyticsUsageError(
            "executors are started by Spark, in the pods that it asks Kubernetes for: "
            f"{', '.join(missing)} is not set"
        )
    numbered = {
        int(found[1]): option
        for name, option in environment.items()
        if (found := _JAVA_OPTION.fullmatch(name)) is not None
    }
    home, memory = environment.get("JAVA_HOME"), environment[_MEMORY]
    places = [
        environment.get("SPARK_CONF_DIR", ""),
        environment.get("HADOOP_CONF_DIR", ""),
        str(jars / "*"),
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
    ]
    return [
        f"{home}/bin/java" if home else "java",
        *(numbered[number] for number in sorted(numbered)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        os.pathsep.join(filter(None, places)),
        _BACKEND,
        *(word for option, name in _OPTIONS.items() for word in (f"--{option}", environment[name])),
    ]


def become_executor() -> int:
    """It does not return, but for what cannot be begun."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise AnalyticsError("pyspark is not installed: pip install 'dynatops[analytics]'")
    command = executor_command(os.environ, Path(spark.origin).parent / "jars")
    try:
        os.execvp(command[0], command)  # noqa: S606  # what Spark asked for
    except OSError as error:
        raise AnalyticsError(f"Java could not be started ({command[0]}: {error})") from None
