"""Wrong values are refused, with a message that says what is wrong and where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_agent.process_settings import BrokerSettings
from tests.support.kubernetes.chart import CHART, NAMESPACE, RELEASE, helm, refusal

# What helm itself hands down.
_NOT_OURS = {"global"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("broker.replica=3", "broker: Additional property replica is not allowed"),
        ("brokers.replicas=3", "Additional property brokers is not allowed"),
        ("broker.replicas=three", "broker.replicas: Invalid type. Expected: integer"),
        ("broker.replicas=0", "broker.replicas: Must be greater than or equal to 1"),
        ("logging.format=xml", 'logging.format must be one of the following: "json", "text"'),
        ("broker.persistence.size=big", "broker.persistence.size: Does not match pattern"),
        ("broker.settings.lease_s=4", "broker.settings: Property name of \"lease_s\" does not"),
        ("analytics.jobs.rate.enabled=true", "analytics.jobs: Additional property rate is not"),
        ("analytics.jobs.rates.schedule=often", "analytics.jobs.rates.schedule: Does not match"),
        ("analytics.spark.master=remote", "analytics.spark.master: Does not match pattern"),
        ("analytics.spark.master=k8s://a/b", "analytics.spark.master: Does not match pattern"),
        ("analytics.spark.conf.memory=1g", "analytics.spark.conf: Property name of \"memory\""),
        ("analytics.spark.kubernetes.executors=0", "executors: Must be greater than or equal"),
        ("analytics.spark.kubernetes.memory=2Gi", "kubernetes.memory: Does not match pattern"),
        ("manager.policy.mode=always", 'manager.policy.mode must be one of the following: "man'),
        ("manager.policy.t_free=60", "manager.policy: Additional property t_free is not allowed"),
        ("manager.policy.solver.algorithm=best", "manager.policy.solver.algorithm must be one of"),
        ("broker.outside.advertise=a:b", "broker.outside.advertise: Does not match pattern"),
        ("redis.url=http://redis", "redis.url: Does not match pattern"),
        ("redis.url=redis://:pw@redis", "redis.url: Does not match pattern"),
        ("image.digest=abc", "image.digest: Does not match pattern"),
        ("security.tls.secretName=No_Name", "security.tls.secretName: Does not match pattern"),
        ("broker.podDisruptionBudget.maxUnavailable=0", "maxUnavailable: Must validate one"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be(option: str, message: str) -> None:
    assert message in refusal("--set", option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "security.insecure=false",
            (
                "anyone could come in: set security.tls (secretName, or certManager.enabled), and "
                "security.tokens.secretName, and security.peerSecret.secretName (or "
                "security.tls.requireClientCertificates); or security.insecure=true"
            ),
        ),
        (
            "security.tls.certManager.enabled=true",
            "security.tls.certManager needs issuerRef.name",
        ),
        (
            "broker.terminationGracePeriodSeconds=20",
            (
                "broker.terminationGracePeriodSeconds (20) must be above broker.leaveTimeoutSeconds"
                " (30): Kubernetes would kill what is still leaving"
            ),
        ),
        (
            "broker.autoscaling.enabled=true,broker.autoscaling.maxReplicas=2",
            "broker.autoscaling.minReplicas is above maxReplicas",
        ),
        ("analytics.enabled=true", "analytics read the lake: set lake.url"),
        (
            (
                "analytics.enabled=true,analytics.spark.master=k8s://https://a,lake.url=s3://b/l,"
                "analytics.output=file:///tmp/out"
            ),
            (
                "analytics.output is a folder (file:///tmp/out), and executors of k8s://https://a "
                "are not where it is: name an object store, or a claim that all mount"
            ),
        ),
        ("broker.outside.enabled=true", "broker.outside needs advertise"),
        (
            "broker.outside.enabled=true,broker.outside.advertise=a.example.org:7400",
            "broker.outside.advertise (a.example.org:7400) is the same for all brokers",
        ),
        (
            (
                "broker.outside.enabled=true,broker.outside.type=NodePort,"
                "broker.outside.advertise=a.example.org:{nodePort}"
            ),
            "broker.outside.type NodePort needs nodePort",
        ),
        (
            "broker.outside.enabled=true,broker.outside.advertise=a.example.org:{nodePort}",
            "are for type NodePort",
        ),
        ("manager.enabled=false,manager.policy.mode=off", "manager.policy needs manager.enabled"),
        ("redis.internal.enabled=false", "managers keep their state in Redis: set redis.url"),
        ("redis.internal.enabled=true,redis.url=redis://r:6379/0", "one of them"),
        ("manager.ingress.enabled=true", "manager.ingress needs hosts"),
    ],
)
def test_values_that_do_not_go_together(options: str, message: str) -> None:
    assert message in refusal("--set", options)


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = refusal("--set", "analytics.enabled=true,security.insecure=false")
    assert "set lake.url" in said
    assert "set analytics.output" in said
    assert "anyone could come in" in said


def test_schema_and_values_have_the_same_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    check_keys("", schema, values, schema["definitions"])


def check_keys(where: str, schema: Any, value: Any, definitions: Any) -> None:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    known = schema.get("properties")
    if known is None or not isinstance(value, dict):
        return
    assert schema["additionalProperties"] is False, where
    # These are Kubernetes' own shapes, or managers', of which values.yaml shows an example.
    if where.endswith((".resources", ".behavior", ".policy")):
        return
    assert known.keys() - _NOT_OURS == value.keys(), where
    for name, inner in value.items():
        check_keys(f"{where}.{name}", known[name], inner, definitions)


def test_every_value_says_what_it_is_for() -> None:
    """Each part begins with a comment, or one of those around it does."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    comments = sum(line.lstrip().startswith("#") for line in lines)
    assert comments > 80


def test_brokers_have_time_to_leave() -> None:
    """What a broker's settings allow it to take fits into what the chart gives it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["broker"]
    settings = BrokerSettings()
    leaving_s = settings.overlay.leave_patience_s + 1.0 + settings.runtime.drain_timeout_s
    assert values["leaveTimeoutSeconds"] > leaving_s + settings.lake.close_timeout_s
    assert values["terminationGracePeriodSeconds"] > values["leaveTimeoutSeconds"]


def notes(folder: Path, *options: str) -> str:
    """What `helm install` would print; it wants a cluster, so the chart is made to render it."""
    copy = folder / "chart"
    if not copy.exists():
        shutil.copytree(CHART, copy)
        shutil.move(copy / "templates" / "NOTES.txt", copy)
        page = 'notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n'
        (copy / "templates" / "notes.yaml").write_text(page)
    outcome = helm(
        "template", RELEASE, copy, "--namespace", NAMESPACE, "-s", "templates/notes.yaml", *options
    )
    assert outcome.returncode == 0, outcome.stderr
    return str(yaml.safe_load(outcome.stdout)["notes"])


def test_notes_warn_of_what_is_open(tmp_path: Path) -> None:
    trial = notes(tmp_path)
    assert "WARNING: security.insecure is true. Nothing is encrypted." in trial
    assert "helm -n events test net" in trial
    safe = notes(tmp_path, "-f", str(CHART / "ci" / "highly-available-values.yaml"))
    assert "WARNING" not in safe
    assert "net-dynatops.events.svc:7400, with TLS, with a token" in safe
