"""Every object that the chart makes is one that Kubernetes takes, and is as safe as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions

from analytics.jobs.catalogue import JOBS
from tests.support.kubernetes.chart import (
    CHART,
    NAMESPACE,
    VALUES,
    Object,
    containers,
    helm,
    of_kind,
    pod_templates,
    rendered,
)

NEWEST = sorted(set(all_versions()), key=lambda v: [int(n) for n in v.split(".")])[-2:]
every_values = pytest.mark.parametrize("values", VALUES)

# Kinds that others bring: what their controllers ask for.
FOREIGN: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ("selector", "endpoints"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ("groups",),
    ("cert-manager.io/v1", "Certificate"): ("secretName", "issuerRef", "dnsNames", "usages"),
}


def test_there_are_five_examples() -> None:
    assert VALUES == ("autoscaling", "default", "highly-available", "minimal", "tls")


@every_values
def test_lint_has_nothing_to_say(values: str) -> None:
    outcome = helm("lint", "--strict", CHART, "-f", CHART / "ci" / f"{values}-values.yaml")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "[WARNING]" not in outcome.stdout


@pytest.mark.parametrize("version", NEWEST)
@every_values
def test_kubernetes_takes_it(values: str, version: str) -> None:
    checked = 0
    for document in rendered(values):
        if (document["apiVersion"], document["kind"]) in FOREIGN:
            check_foreign(document)
        else:
            assert kubernetes_validate.validate(document, version, strict=True)
            checked += 1
    assert checked > 2


def check_foreign(document: Object) -> None:
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    spec = document["spec"]
    for field in FOREIGN[document["apiVersion"], document["kind"]]:
        assert spec[field], f"{document['metadata']['name']} has no {field}"
    for endpoint in spec.get("endpoints", []):
        assert endpoint.keys() <= {
            "port", "path", "interval", "scheme", "tlsConfig", "authorization"
        }  # fmt: skip
    for group in spec.get("groups", []):
        assert group["name"]
        for rule in group["rules"]:
            assert rule["expr"]
            assert ("alert" in rule) != ("record" in rule)
    if document["kind"] == "Certificate":
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["issuerRef"].keys() == {"name", "kind", "group"}
        assert len(spec["commonName"]) <= 64
        assert len(set(spec["dnsNames"])) == len(spec["dnsNames"])


@every_values
def test_names_are_unique_and_short_and_in_the_namespace(values: str) -> None:
    objects = rendered(values)
    names = Counter((document["kind"], document["metadata"]["name"]) for document in objects)
    assert max(names.values()) == 1
    for document in objects:
        # CronJobs' pods, and those of a StatefulSet, have some more letters.
        assert len(document["metadata"]["name"]) <= 52
        assert document["metadata"]["namespace"] == NAMESPACE


def test_names_stay_short_however_long_the_release() -> None:
    outcome = helm("template", "a" * 53, CHART)
    assert outcome.returncode == 0, outcome.stderr
    assert f"name: {'a' * 40}-manager\n" in outcome.stdout


@every_values
def test_pods_may_do_nothing_that_they_need_not(values: str) -> None:
    for name, pod in pod_templates(rendered(values)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@every_values
def test_what_pods_name_is_there(values: str) -> None:
    """Volumes, ports of probes, accounts: what the schema does not look at."""
    objects = rendered(values)
    accounts = {document["metadata"]["name"] for document in of_kind(objects, "ServiceAccount")}
    for name, pod in pod_templates(objects):
        spec = pod["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= claims_of(objects, name)
        assert spec["serviceAccountName"] in accounts | {"default"}
        for container in containers(pod):
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= volumes, name
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                for kind in ("httpGet", "tcpSocket"):
                    if kind in container.get(probe, {}):
                        assert container[probe][kind]["port"] in ports


def claims_of(objects: tuple[Object, ...], name: str) -> set[str]:
    (owner,) = (o for o in objects if f"{o['kind']}/{o['metadata']['name']}" == name)
    return {c["metadata"]["name"] for c in owner["spec"].get("volumeClaimTemplates", [])}


@every_values
def test_selectors_select_the_pods_they_are_for(values: str) -> None:
    objects = rendered(values)
    pods = {name: pod["metadata"].get("labels", {}) for name, pod in pod_templates(objects)}
    for document in objects:
        kind, spec = document["kind"], document.get("spec", {})
        if kind in ("StatefulSet", "Deployment"):
            own = pods[f"{kind}/{document['metadata']['name']}"]
            assert spec["selector"]["matchLabels"].items() <= own.items()
        selector = selector_of(document)
        if selector is not None:
            chosen = [name for name, labels in pods.items() if selector.items() <= labels.items()]
            assert len(chosen) == 1, (document["metadata"]["name"], chosen)


def selector_of(document: Object) -> dict[str, str] | None:
    spec: dict[str, Any] = document.get("spec", {})
    match document["kind"]:
        case "Service":
            return dict(spec["selector"])
        case "PodDisruptionBudget":
            return dict(spec["selector"]["matchLabels"])
        case "NetworkPolicy":
            return dict(spec["podSelector"]["matchLabels"])
    return None


@every_values
def test_services_lead_to_ports_that_pods_have(values: str) -> None:
    objects = rendered(values)
    for service in of_kind(objects, "Service"):
        selector = service["spec"]["selector"]
        (pod,) = (
            pod
            for _, pod in pod_templates(objects)
            if selector.items() <= pod["metadata"]["labels"].items()
        )
        there = {port["name"] for c in containers(pod) for port in c["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= there


def test_monitors_find_their_services() -> None:
    objects = rendered("highly-available")
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (service,) = (
            s for s in of_kind(objects, "Service")
            if wanted.items() <= s["metadata"]["labels"].items()
        )  # fmt: skip
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_brokers_scale_by_load_alone_where_they_do() -> None:
    objects = rendered("autoscaling")
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    (brokers,) = (
        o for o in of_kind(objects, "StatefulSet")
        if o["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]
    )  # fmt: skip
    # Else each upgrade would undo what the scaler did.
    assert "replicas" not in brokers["spec"]
    joined = [a for a in broker_arguments(brokers) if a.startswith("--join=")]
    assert len(joined) == scaler["spec"]["minReplicas"]


def broker_arguments(stateful_set: Object) -> list[str]:
    return list(stateful_set["spec"]["template"]["spec"]["containers"][0]["args"])


def test_more_brokers_do_not_restart_those_that_are_there() -> None:
    def template_of(*options: str) -> Object:
        (brokers,) = (
            o for o in of_kind(rendered("", *options), "StatefulSet")
            if o["metadata"]["name"].endswith("-broker")
        )  # fmt: skip
        return dict(brokers["spec"]["template"])

    assert template_of() == template_of("--set", "broker.replicas=9")


def test_there_is_a_job_for_each_kind_of_analysis() -> None:
    jobs = of_kind(rendered("autoscaling"), "CronJob")
    assert {job["metadata"]["labels"]["dynatops/job"] for job in jobs} == set(JOBS)
    for job in jobs:
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["successfulJobsHistoryLimit"] == 3
        ((_, pod),) = pod_templates((job,))
        (container,) = containers(pod)
        assert {"--master=local[2]", "--nothing-new-is-fine"} <= set(container["args"])


def test_large_numbers_stay_numbers() -> None:
    (brokers, *_) = of_kind(rendered("highly-available"), "StatefulSet")
    assert "overlay.log_total_bytes_max=536870912" in broker_arguments(brokers)


def test_passwords_are_in_no_command_line() -> None:
    """Not even by way of the environment, which Kubernetes puts into arguments."""
    read = 0
    for _, pod in pod_templates(rendered("highly-available")):
        for container in containers(pod):
            words = [*container.get("command", ()), *container.get("args", ())]
            assert not [
                word for word in words if "PASSWORD" in word or 'requirepass "$(cat' in word
            ]
            read += any("/run/dynatops/redis/" in word for word in words)
    # Brokers, managers, each job of analytics.
    assert read >= 3
