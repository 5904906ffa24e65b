"""Every command that the chart renders is one that `dynatops` takes, with all its settings.

For what no test can run: Spark's cluster, object stores, a load balancer's names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import pytest

from dynatops.cli.brokers import broker
from dynatops.cli.main import _parser
from dynatops.cli.managers import manager
from tests.support.kubernetes.chart import (
    VALUES,
    Object,
    containers,
    of_kind,
    pod_templates,
    rendered,
)
from tests.support.kubernetes.image import OURS, entry_point_of

every_values = pytest.mark.parametrize("values", VALUES)


def commands_of(container: Object) -> Iterator[list[str]]:
    if not container["image"].startswith(f"{OURS}:"):
        return
    if "command" not in container:
        yield [*entry_point_of(container["image"]), *container["args"]]
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
    if hook is not None:
        yield hook["command"]


def all_commands(objects: Sequence[Object]) -> Iterator[list[str]]:
    for _, pod in pod_templates(objects):
        for container in containers(pod):
            yield from commands_of(container)


@every_values
def test_it_is_taken(values: str) -> None:
    seen = set()
    for program, *words in all_commands(rendered(values)):
        assert program == "dynatops"
        if words[0] == "analytics" and importlib.util.find_spec("analytics") is None:
            continue
        arguments = _parser().parse_args([word.replace("$(POD_IP)", "10.1.2.3") for word in words])
        seen.add(words[0])
        if words[0] == "broker":
            broker.settings_from(arguments)
        elif words[0] == "manager":
            manager.settings_from(arguments)
    assert {"broker", "leave"} <= seen


def test_brokers_record_on_the_volume_of_their_pod() -> None:
    option = r"broker.settings.record\.dir=/data/record"
    (pod,) = (
        pod for name, pod in pod_templates(rendered("default", "--set", option))
        if name.startswith("StatefulSet/") and name.endswith("-broker")
    )  # fmt: skip
    (container,) = containers(pod)
    settings = broker.settings_from(_parser().parse_args(container["args"]))
    assert settings.record.dir == "/data/record"
    assert "/data" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_ports_are_those_that_are_listened_at() -> None:
    for name, pod in pod_templates(rendered("default")):
        for container in containers(pod):
            for port in container.get("ports", []):
                words = " ".join([*container.get("command", []), *container["args"]])
                number = str(port["containerPort"])
                assert f":{number}" in words or f"--port {number}" in words, name


def test_all_brokers_are_told_the_same() -> None:
    """Who founds the ring is decided by it."""
    (brokers,) = (
        o for o in of_kind(rendered("default"), "StatefulSet")
        if o["metadata"]["name"].endswith("-broker")
    )  # fmt: skip
    args = brokers["spec"]["template"]["spec"]["containers"][0]["args"]
    joined = [a.removeprefix("--join=") for a in args if a.startswith("--join=")]
    advertised = "--advertise=$(POD_NAME)."
    (own,) = (a.removeprefix(advertised) for a in args if a.startswith(advertised))
    name = brokers["metadata"]["name"]
    assert joined == [f"{name}-{i}.{own}" for i in range(3)]
    assert "--found-if-alone" in args
