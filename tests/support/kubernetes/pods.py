"""A pod: its containers' commands, run as processes of this machine.

What a container's file system and network namespace would do is done by replacing words: mount
paths by folders, 0.0.0.0 by the pod's own address, names by addresses. Everything else is taken as
it is written. What this does not know it refuses, so that nothing of a chart is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.support.kubernetes.chart import NAMESPACE, Object
from tests.support.kubernetes.probes import Prober

_NUMBERS = count(1)

_POD_KEYS = {
    "containers", "initContainers", "volumes", "serviceAccountName", "securityContext",
    "automountServiceAccountToken", "enableServiceLinks", "terminationGracePeriodSeconds",
    "topologySpreadConstraints", "restartPolicy", "activeDeadlineSeconds", "imagePullSecrets",
    "nodeSelector", "tolerations", "affinity", "priorityClassName", "hostname", "subdomain",
}  # fmt: skip
_CONTAINER_KEYS = {
    "name", "image", "imagePullPolicy", "command", "args", "env", "ports", "startupProbe",
    "livenessProbe", "readinessProbe", "lifecycle", "securityContext", "resources", "volumeMounts",
    "workingDir", "resizePolicy", "envFrom",
}  # fmt: skip
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_BACKOFF_S = 0.3


@dataclass(frozen=True, slots=True)
class Node:
    """What a pod needs of the machine that it runs on."""

    folder: Path
    # Of claims and secrets, by name.
    claim: Callable[[str], Path]
    secrets: Mapping[str, Mapping[str, str]]
    # By name, as rendered.
    config_maps: Mapping[str, Mapping[str, str]]
    # By image: what runs without a command, and what else is to be in the environment.
    entry_point: Callable[[str], list[str]]
    environment: Mapping[str, str]
    resolved: Callable[[str], str]
    # Seconds of the chart are this many here.
    pace: float


@dataclass(slots=True)
class Pod:
    name: str
    address: str
    spec: Object
    labels: Mapping[str, str]
    node: Node
    # Volumes from claim templates.
    claims: Mapping[str, str] = field(default_factory=dict)
    ready: bool = False
    terminating: bool = False
    # Whether SIGKILL was needed, and what its processes ended with.
    killed: bool = False
    exit_codes: list[int] = field(default_factory=list)
    restarts: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _volumes: dict[str, Path] = field(default_factory=dict)
    # No other pod has it, whatever it is called and however long it lives.
    _number: int = field(default_factory=_NUMBERS.__next__)

    def __post_init__(self) -> None:
        assert self.spec.keys() <= _POD_KEYS, self.spec.keys() - _POD_KEYS
        for container in (*self.spec.get("initContainers", ()), *self.spec["containers"]):
            assert container.keys() <= _CONTAINER_KEYS, container.keys() - _CONTAINER_KEYS
        self._home.mkdir(parents=True)
        for volume in self.spec.get("volumes", ()):
            self._volumes[volume["name"]] = self._mounted(volume)
        for name, claim in self.claims.items():
            self._volumes[name] = self.node.claim(claim)

    # ---- what a container finds ------------------------------------------------------------------

    @property
    def _home(self) -> Path:
        return self.node.folder / f"{self.name}-{self._number}"

    @property
    def ports(self) -> dict[str, int]:
        return {
            port["name"]: port["containerPort"]
            for container in self.spec["containers"]
            for port in container.get("ports", ())
        }

    def _mounted(self, volume: Object) -> Path:
        folder = self._home / str(volume["name"])
        match volume:
            case {"emptyDir": _}:
                folder.mkdir()
                return folder
            case {"persistentVolumeClaim": {"claimName": claim}}:
                return self.node.claim(claim)
            case {"secret": {"secretName": secret, "defaultMode": mode}}:
                folder.mkdir()
                self._write(folder, secret, mode)
                return folder
            case {"configMap": {"name": name}}:
                folder.mkdir()
                for key, content in self.node.config_maps[name].items():
                    (folder / key).write_text(content)
                return folder
        raise AssertionError(f"no such volumes here: {volume}")

    def _write(self, folder: Path, secret: str, mode: int) -> None:
        for key, content in self.node.secrets[secret].items():
            written = self._home / "written"
            written.write_text(content)
            written.chmod(mode)
            written.replace(folder / key)

    def refresh(self, secret: str) -> None:
        for volume in self.spec.get("volumes", ()):
            if volume.get("secret", {}).get("secretName") == secret:
                self._write(self._volumes[volume["name"]], secret, volume["secret"]["defaultMode"])

    def _localised(self, container: Object, text: str) -> str:
        """As the container means it, on this machine."""
        text = self.node.resolved(text).replace("0.0.0.0", self.address)  # noqa: S104
        mounts = {
            m["mountPath"]: self._volumes[m["name"]] for m in container.get("volumeMounts", ())
        }
        for path, folder in sorted(mounts.items(), reverse=True):
            before, after = r"^|file://|[\s=\"'(>]", r"$|[/\s\"')]"
            pattern = rf"({before}){re.escape(path)}(?={after})"
            text = re.sub(pattern, rf"\g<1>{folder}", text)
        return text

    def _environment(self, container: Object) -> dict[str, str]:
        values: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            values.update(self.node.secrets[source["secretRef"]["name"]])
        for entry in container.get("env", ()):
            values[entry["name"]] = self._localised(
                container, _expanded(self._value(entry), values)
            )
        return values

    def _value(self, entry: Object) -> str:
        match entry:
            case {"value": str(value)}:
                return value
            case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                if path.startswith("metadata.labels['"):
                    return self.labels[path.split("'")[1]]
                fields = {
                    "metadata.name": self.name,
                    "metadata.namespace": NAMESPACE,
                    "status.podIP": self.address,
                }
                return fields[path]
            case {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}:
                return self.node.secrets[secret][key]
        raise AssertionError(f"no such environment here: {entry}")

    def command(self, container: Object) -> list[str]:
        environment = self._environment(container)
        words = [
            *(container.get("command") or self.node.entry_point(container["image"])),
            *container.get("args", ()),
        ]
        return [self._localised(container, _expanded(word, environment)) for word in words]

    # ---- processes -------------------------------------------------------------------------------

    async def _spawn(self, container: Object, words: list[str]) -> asyncio.subprocess.Process:
        with (self._home / f"{container['name']}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *words,
                env={**self._environment(container), **self.node.environment},
                cwd=self._home,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _run_in(self, container: Object, command: list[str]) -> int:
        """A command of a probe or hook, within the container."""
        words = [self._localised(container, word) for word in command]
        return await (await self._spawn(container, words)).wait()

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._live()))

    async def _live(self) -> None:
        await self._initialise()
        for container in self.spec["containers"]:
            self._tasks.append(asyncio.create_task(self._keep(container)))

    async def _initialise(self) -> None:
        for container in self.spec.get("initContainers", ()):
            process = await self._spawn(container, self.command(container))
            assert await process.wait() == 0, self.log()

    async def _keep(self, container: Object) -> None:
        """Run, probe, and run again."""
        while not self.terminating:
            process = await self._spawn(container, self.command(container))
            self._processes[container["name"]] = process
            probing = asyncio.create_task(self._probe(container, process))
            code = await process.wait()
            self.ready = False
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            if self.terminating:
                self.exit_codes.append(code)
                return
            self.restarts += 1
            await asyncio.sleep(_BACKOFF_S)

    async def _probe(self, container: Object, process: asyncio.subprocess.Process) -> None:
        prober = Prober(self.address, self.ports, lambda words: self._run_in(container, words))
        startup = container["startupProbe"]
        for _ in range(startup["failureThreshold"]):
            if await prober.passes(startup):
                break
            await self._pause(startup)
        else:
            process.kill()

        def tell_alive(alive: bool) -> None:
            if not alive:
                process.kill()

        await asyncio.gather(
            self._watch(prober, container["livenessProbe"], tell_alive),
            self._watch(prober, container["readinessProbe"], self._become_ready),
        )

    def _become_ready(self, ready: bool) -> None:
        self.ready = ready and not self.terminating

    async def _watch(self, prober: Prober, probe: Object, tell: Callable[[bool], None]) -> None:
        failures = 0
        while True:
            failures = 0 if await prober.passes(probe) else failures + 1
            if failures in (0, probe.get("failureThreshold", 3)):
                tell(failures == 0)
            await self._pause(probe)

    async def _pause(self, probe: Object) -> None:
        await asyncio.sleep(probe.get("periodSeconds", 10) * self.node.pace)

    async def run(self) -> int:
        """As a job's pod: until its only container has ended."""
        await self._initialise()
        (container,) = self.spec["containers"]
        process = await self._spawn(container, self.command(container))
        self._processes[container["name"]] = process
        try:
            async with asyncio.timeout(self.spec.get("activeDeadlineSeconds", 600)):
                return await process.wait()
        finally:
            self._signal(process, signal.SIGKILL)

    # ---- its end ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """As when it is deleted: the hook, SIGTERM, and SIGKILL to what is then left."""
        self.terminating, self.ready = True, False
        deadline_s = time.monotonic() + self.spec.get("terminationGracePeriodSeconds", 30)
        running = [c for c in self.spec["containers"] if c["name"] in self._processes]
        await asyncio.gather(*(self._stop(container, deadline_s) for container in running))
        await self._end()

    async def _stop(self, container: Object, deadline_s: float) -> None:
        process = self._processes[container["name"]]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                if hook is not None:
                    code = await self._run_in(container, hook["command"])
                    assert code == 0, f"preStop of {self.name} failed: {self.log()}"
                    assert process.returncode is None, "the hook must leave stopping to SIGTERM"
                self._signal(process, signal.SIGTERM)
                await process.wait()
        except TimeoutError:
            self.killed = True

    async def kill(self) -> None:
        """As when its node is lost."""
        self.terminating, self.ready = True, False
        await self._end()

    async def _end(self) -> None:
        for process in self._processes.values():
            self._signal(process, signal.SIGKILL)
            await process.wait()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                await asyncio.wait([task], timeout=5.0)
                task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert not isinstance(outcome, Exception), outcome

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """SIGKILL to all that a container ran, as its namespace would end."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def log(self) -> str:
        """What its containers wrote, the last of it."""
        logs = (path.read_text("utf-8", "replace") for path in self._home.glob("*.log"))
        return f"{self.name}:\n" + "\n".join(log[-4_000:] for log in logs)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """$(NAME) as Kubernetes expands it: unknown ones stay."""

    def value(found: re.Match[str]) -> str:
        return "$" if found.group() == "$$" else values.get(found.group(1), found.group())

    return _REFERENCE.sub(value, text)
