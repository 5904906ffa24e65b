"""Every object that the chart makes is one that Kubernetes takes, and is as safe as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from analytics.jobs.catalogue import JOBS
from reconfig_manager.model.core_settings import ManagerSettings
from reconfig_manager.model.policy import Mode, Policy, RatesFrom
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

# Of Kubernetes, whose own schemas the package kubernetes-validate brings.
RELEASES = ("1.36", "1.37")
VERSIONS = [
    next(version for version in all_versions() if version.startswith(f"{release}."))
    for release in RELEASES
]
every_values = pytest.mark.parametrize("values", VALUES)

# Kinds that others bring: what their controllers ask for.
FOREIGN: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ("selector", "endpoints"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ("groups",),
    ("cert-manager.io/v1", "Certificate"): ("secretName", "issuerRef", "dnsNames", "usages"),
}


def test_there_are_six_examples() -> None:
    assert VALUES == ("autoscaling", "default", "highly-available", "minimal", "spark", "tls")


@every_values
def test_lint_has_nothing_to_say(values: str) -> None:
    outcome = helm("lint", "--strict", CHART, "-f", CHART / "ci" / f"{values}-values.yaml")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "[WARNING]" not in outcome.stdout


@pytest.mark.parametrize("version", VERSIONS)
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
        # Drivers ask Kubernetes for executors; nobody else has anything to ask it.
        is_driver = spec["serviceAccountName"].endswith("-spark")
        assert spec["automountServiceAccountToken"] is is_driver, name
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
            assert chosen, document["metadata"]["name"]
            # Of one kind: a stateful set's, say, or the jobs' of analytics.
            assert len(chosen) == 1 or {name.split("/")[0] for name in chosen} == {"CronJob"}


def selector_of(document: Object) -> dict[str, str] | None:
    spec: dict[str, Any] = document.get("spec", {})
    match document["kind"]:
        case "Service":
            return without_number(spec["selector"])
        case "PodDisruptionBudget":
            return dict(spec["selector"]["matchLabels"])
        case "NetworkPolicy" if "matchLabels" in spec["podSelector"]:
            return dict(spec["podSelector"]["matchLabels"])
    return None


def without_number(selector: dict[str, str]) -> dict[str, str]:
    """Templates lack it: the controller of stateful sets numbers the pods."""
    return {key: value for key, value in selector.items() if not key.endswith("/pod-index")}


@every_values
def test_services_lead_to_ports_that_pods_have(values: str) -> None:
    objects = rendered(values)
    for service in of_kind(objects, "Service"):
        selector = without_number(service["spec"]["selector"])
        for _, pod in pod_templates(objects):
            if selector.items() <= pod["metadata"]["labels"].items():
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


# ---- clients outside -----------------------------------------------------------------------------


def outside_services(*options: str) -> dict[str, Object]:
    values = ("--set", "broker.outside.enabled=true", *options)
    services = of_kind(rendered("", *values), "Service")
    return {
        s["metadata"]["name"]: s["spec"] for s in services if "-outside" in s["metadata"]["name"]
    }


def test_each_broker_has_a_service_of_its_own_for_clients_outside() -> None:
    services = outside_services("--set", r"broker.outside.advertise=b{ordinal}.example.org:7400")
    assert list(services) == [f"net-dynatops-outside{suffix}" for suffix in ("", "-0", "-1", "-2")]
    numbers = [spec["selector"].get("apps.kubernetes.io/pod-index") for spec in services.values()]
    assert numbers == [None, "0", "1", "2"]
    assert {port["targetPort"] for s in services.values() for port in s["ports"]} == {"outside"}


def test_ports_of_nodes_and_what_brokers_say_of_them_are_the_same() -> None:
    options = ("--set", "broker.outside.type=NodePort,broker.outside.nodePort=31400", "--set",
               "broker.outside.advertise=edge.example.org:{nodePort}")  # fmt: skip
    services = outside_services(*options)
    assert [s["ports"][0]["nodePort"] for s in services.values()] == [31400, 31401, 31402, 31403]
    (brokers, *_) = of_kind(
        rendered("", "--set", "broker.outside.enabled=true", *options), "StatefulSet"
    )
    (told,) = (a for a in broker_arguments(brokers) if a.startswith("advertised.outside="))
    assert told == "advertised.outside=edge.example.org:31401+$(POD_INDEX)"


def test_as_many_services_as_autoscaling_may_want() -> None:
    services = outside_services(
        "--set", "broker.autoscaling.enabled=true,broker.autoscaling.maxReplicas=7",
        "--set", "broker.outside.advertise=n{ordinal}.example.org:7400",
    )  # fmt: skip
    assert len(services) == 1 + 7


def test_the_certificate_has_the_names_that_clients_outside_look_for() -> None:
    (certificate,) = of_kind(rendered("spark"), "Certificate")
    names = certificate["spec"]["dnsNames"]
    assert {"events.example.org", *(f"broker-{i}.events.example.org" for i in range(3))} <= set(
        names
    )
    by_address = ("--set", "broker.outside.advertise=203.0.113.{ordinal}:7400")
    (certificate,) = of_kind(rendered("spark", *by_address), "Certificate")
    addresses = certificate["spec"]["ipAddresses"]
    assert addresses == ["127.0.0.1", *(f"203.0.113.{i}" for i in range(3))]


# ---- executors -----------------------------------------------------------------------------------


def executor_template(objects: tuple[Object, ...]) -> Object:
    (found,) = (m for m in of_kind(objects, "ConfigMap") if "executor.yaml" in m["data"])
    return dict(yaml.safe_load(found["data"]["executor.yaml"]))


def test_executors_are_as_safe_as_other_pods_and_have_what_jobs_have() -> None:
    objects = rendered("spark", "--set", "lake.existingClaim=lake,lake.url=file:///lake/events")
    spec = executor_template(objects)["spec"]
    (container,) = spec["containers"]
    (_, job) = next(pod_templates(of_kind(objects, "CronJob")))
    (driver,) = containers(job)
    assert container["securityContext"] == driver["securityContext"]
    assert spec["securityContext"] == job["spec"]["securityContext"]
    assert container["image"] == driver["image"]
    assert container["envFrom"] == driver["envFrom"]
    assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] != job["spec"]["serviceAccountName"]
    assert "lake" in {mount["name"] for mount in container["volumeMounts"]}
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    assert spec["nodeSelector"] == {"pool": "batch"}


def test_where_executors_are_no_pods_there_is_nothing_for_them() -> None:
    for values in ("autoscaling", "highly-available"):
        kinds = {document["kind"] for document in rendered(values)}
        assert not {"Role", "RoleBinding"} & kinds
        assert "executor.yaml" not in str(rendered(values))


def test_an_account_of_ones_own_gets_the_role_or_brings_its_rights() -> None:
    own = ("--set", "analytics.serviceAccountName=spark")
    (binding,) = of_kind(rendered("spark", *own), "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["spark"]
    names = [a["metadata"]["name"] for a in of_kind(rendered("spark", *own), "ServiceAccount")]
    assert names == ["net-dynatops"]
    without = (*own, "--set", "analytics.spark.kubernetes.rbac=false")
    assert not of_kind(rendered("spark", *without), "Role")


def test_settings_of_spark_go_to_any_master_and_last() -> None:
    option = r"analytics.spark.conf.spark\.executor\.memory=3g"
    for values in ("spark", "highly-available"):
        for _, pod in pod_templates(of_kind(rendered(values, "--set", option), "CronJob")):
            (container,) = containers(pod)
            said = [a for a in container["args"] if a.startswith("--conf=spark.executor.memory=")]
            assert said[-1] == "--conf=spark.executor.memory=3g"


def test_a_first_policy_is_what_managers_take() -> None:
    (manager,) = of_kind(rendered("spark"), "Deployment")
    args = manager["spec"]["template"]["spec"]["containers"][0]["args"]
    (told,) = (a for a in args if a.startswith("manager.first_policy="))
    settings = ManagerSettings.model_validate({"first_policy": told.partition("=")[2]})
    assert settings.first_policy == Policy(
        mode=Mode.AUTO, t_free_s=1800, rates_from=RatesFrom.ADVICE
    )
    assert "first_policy" not in str(rendered("default"))
