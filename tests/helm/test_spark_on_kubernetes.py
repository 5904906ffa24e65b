"""Jobs whose executors are pods: what the chart renders, run against a small fake of Kubernetes'
API.

The driver is the rendered command, and Spark is Spark. Whatever it asks of Kubernetes is judged by
the rendered Role, as RBAC would; and nothing is in the Role that it does not ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import kubernetes_validate
import pyarrow as pa
import pytest

from dynatops.lake.fields import PUBLICATIONS, file_name
from dynatops.lake.files import Lake, arrow_schema
from tests.helm.test_chart import VERSIONS
from tests.support.kubernetes.api_server import ApiServer, Request
from tests.support.kubernetes.chart import NAMESPACE, Object, of_kind, rendered
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.pods import Pod
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

EXECUTORS, ROWS = 2, 500
WAIT_S = 200.0
EXECUTOR = "spark-role=executor"
FAILED: Object = {
    "phase": "Failed",
    "reason": "OOMKilled",
    "containerStatuses": [
        {"name": "executor", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    ],
}


def write_publications(folder: Path, rows: int) -> None:
    """A lake with one file, if anything is to be in it."""
    folder.mkdir()
    if not rows:
        return
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    values = {
        "window_start": start,
        "window_s": 10.0,
        "broker_id": "b0",
        "topic": "quake/ca",
        "events": 3,
        "bytes": 300,
    }
    schema = arrow_schema(PUBLICATIONS)
    columns = {name: [values[name]] * rows for name in schema.names}
    table = pa.table(columns, schema=schema)
    Lake.open(str(folder)).write(PUBLICATIONS, start.timestamp(), file_name("b0", 1, 1), table)


@dataclass(slots=True)
class Driver:
    """A job's pod, and the API that it asks."""

    api: ApiServer
    cluster: Kubelet
    pod: Pod
    # With the exit code of the job's pod.
    ending: asyncio.Task[int]

    def executors(self) -> list[Object]:
        return self.api.objects("pods", EXECUTOR)

    def has_said(self, verb: str) -> bool:
        return any(request.verb == verb for request in self.api.requests)

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            await until(condition, WAIT_S)
        except AssertionError:
            asked = "\n".join(map(str, self.api.requests))
            raise AssertionError(f"{asked}\n{self.api.unknown}\n{self.pod.log()}") from None


@contextlib.asynccontextmanager
async def driver(folder: Path, *options: str, rows: int = 0) -> AsyncIterator[Driver]:
    """Of the job `rates`, which has begun; so many rows are in its lake."""
    with ApiServer(NAMESPACE, ()) as api:
        objects = rendered(
            "spark",
            *("--set", f"analytics.spark.master=k8s://{api.url}"),
            *("--set", f"analytics.spark.kubernetes.executors={EXECUTORS}"),
            # A folder in place of the bucket.
            *("--set", "lake.existingClaim=lake,lake.url=file:///lake/events"),
            *("--set", "analytics.output=file:///lake/analytics"),
            # Nobody to advise.
            *("--set", "manager.enabled=false,manager.policy=null,redis.internal.enabled=false"),
            *options,
        )
        (role,) = of_kind(objects, "Role")
        api.rules = role["rules"]
        secrets = {"dynatops-bucket": {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3"}}
        cluster = Kubelet(objects, folder, secrets=secrets)
        write_publications(cluster.claim("lake") / "events", rows)
        pod = cluster.job_pod("net-dynatops-rates")
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        found = {"name": pod.name, "labels": dict(pod.labels)}
        api.add("pods", {"metadata": found, "spec": pod.spec, "status": running})
        ending = asyncio.create_task(pod.run())
        try:
            yield Driver(api, cluster, pod, ending)
        finally:
            await pod.kill()
            await ending


@pytest.mark.timeout(500)
def test_a_driver_asks_for_what_its_role_allows_and_for_all_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver(tmp_path) as running:
            await running.until(lambda: len(running.executors()) == EXECUTORS)
            first, second = running.executors()
            check_executor(running, first)
            # One fails: it is taken away, and another one asked for.
            running.api.add("pods", {**first, "status": FAILED})
            failed, left = first["metadata"]["name"], second["metadata"]["name"]

            def is_replaced() -> bool:
                names = {pod["metadata"]["name"] for pod in running.executors()}
                return len(names) == EXECUTORS and left in names and failed not in names

            await running.until(is_replaced)
            # The job is ended, and gives back what it asked for.
            await running.pod.stop()
            assert running.has_said("deletecollection")
            assert running.executors() == []
        check_role(running.api)

    asyncio.run(scenario())


def check_role(api: ApiServer) -> None:
    """It suffices, for exactly what is asked for."""
    assert api.unknown == []
    assert api.refused == []
    (rule,) = api.rules
    assert {(request.resource, request.namespace) for request in api.requests} == {
        ("pods", NAMESPACE)
    }
    assert {request.verb for request in api.requests} == set(rule["verbs"])
    assert Request("get", "pods", NAMESPACE, "net-dynatops-rates-29384756-x7k2p") in api.requests


def check_executor(running: Driver, executor: Object) -> None:
    """What Spark made of the template."""
    requested = next(
        pod for pod in running.api.created
        if pod["metadata"]["name"] == executor["metadata"]["name"]
    )  # fmt: skip
    for version in VERSIONS:
        assert kubernetes_validate.validate(requested, version, strict=True)
    (owner,) = requested["metadata"]["ownerReferences"]
    (driver_pod,) = running.api.objects("pods", "dynatops/job=rates")
    assert (owner["kind"], owner["uid"]) == ("Pod", driver_pod["metadata"]["uid"])
    spec = requested["spec"]
    assert spec["serviceAccountName"] == "net-dynatops"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["nodeSelector"] == {"pool": "batch"}
    assert requested["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
    (container,) = spec["containers"]
    assert [*container["command"], *container["args"]] == ["dynatops", "analytics", "executor"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["envFrom"] == [{"secretRef": {"name": "dynatops-bucket"}}]
    assert container["resources"]["requests"] == {"cpu": "1500m", "memory": "5120Mi"}
    said = {entry["name"]: entry.get("value") for entry in container["env"]}
    place = running.pod.address
    assert said["SPARK_DRIVER_URL"] == f"spark://CoarseGrainedScheduler@{place}:7078"
    assert said["AWS_REGION"] == "eu-central-1"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert sorted(mounts) == ["/lake", "/spill", "/tmp"]  # noqa: S108  # in the container
    assert said["SPARK_LOCAL_DIRS"] == "/spill"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_that_are_asked_for_do_the_work(tmp_path: Path) -> None:
    """The pods are run, too: what Spark asked for, as processes with the image's command."""

    async def scenario() -> None:
        async with driver(tmp_path, rows=ROWS) as running:
            await running.until(lambda: len(running.executors()) == EXECUTORS)
            pods = [running.cluster.requested_pod(pod) for pod in running.api.created]
            runs = [asyncio.create_task(pod.run()) for pod in pods]
            for requested, pod in zip(running.api.created, pods, strict=True):
                status = {"phase": "Running", "podIP": pod.address}
                running.api.add("pods", {**requested, "status": status})
            try:
                code = await running.ending
                logs = "\n".join(pod.log() for pod in (running.pod, *pods))
                assert code == 0, logs
                (line,) = (x for x in running.pod.log().splitlines() if x.startswith('{"jobs"'))
                (summary,) = json.loads(line)["jobs"]
                assert (summary["status"], summary["rows_in"]) == ("done", ROWS)
                assert list(running.cluster.claim("lake").glob("analytics/rates/**/*.parquet"))
                # They were told to end, and did.
                assert running.executors() == []
                await asyncio.gather(*runs)
            finally:
                await asyncio.gather(*(pod.kill() for pod in pods))

    asyncio.run(scenario())
