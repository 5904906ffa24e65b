"""What the chart renders, run: its own commands, environment, ports, probes and hooks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import itertools
import json
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

import dynatops
from tests.support.commands import run as command
from tests.support.kubernetes.chart import Object, of_kind, rendered
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.network import Addresses
from tests.support.kubernetes.pods import Pod
from tests.support.kubernetes.secrets import TOKEN, VIEWER, certificate, secrets
from tests.support.waiting import until
from tests.support.witness import Listener, Witness

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

BROKERS = "net-dynatops-broker"
OUTSIDE = "net-dynatops-outside"
TOPICS = [f"quake/{i}" for i in range(6)]
Scenario = Callable[[Kubelet], Awaitable[None]]


def run(folder: Path, scenario: Scenario, values: str = "default", *options: str) -> None:
    async def all_of_it() -> None:
        async with Kubelet(rendered(values, *options), folder) as cluster:
            await cluster.all_ready()
            await scenario(cluster)

    asyncio.run(all_of_it())


def check_that_they_left_by_themselves(pods: list[Pod]) -> None:
    """No SIGKILL was needed, and no container had to be started again."""
    for pod in pods:
        assert not pod.killed, pod.log()
        assert pod.exit_codes == [0], pod.log()
        assert pod.restarts == 0, pod.log()


def fetched(url: str, token: str = "", ca: str = "") -> str:
    request = urllib.request.Request(url)  # noqa: S310  # of this test
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cadata=ca) if ca else None
    if context is not None:
        # Prometheus is told the certificate's name; here a pod has but its address.
        context.check_hostname = False
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
        return str(answer.read().decode())


def brokers_of(cluster: Kubelet) -> list[Pod]:
    return [pod for name, pod in sorted(cluster.pods.items()) if name.startswith(BROKERS)]


@pytest.mark.timeout(240)
def test_all_of_it_comes_up_and_its_own_test_passes(tmp_path: Path) -> None:
    async def scenario(cluster: Kubelet) -> None:
        names = sorted(cluster.pods)
        assert len(brokers_of(cluster)) == 3
        assert len([name for name in names if "-manager-" in name]) == 2
        assert "net-dynatops-redis-0" in names
        pod = await cluster.run_pod("net-dynatops-test")
        assert pod.exit_codes == [0], pod.log()
        assert "published and received" in pod.log()
        # All are one ring, and the manager that leads knows of them.
        manager = f"http://{cluster.address_of('net-dynatops-manager', 7480)}"
        await until(lambda: knows(manager, 3), 60.0, "the manager knows three brokers")
        for pod in brokers_of(cluster):
            page = await asyncio.to_thread(fetched, f"http://{pod.address}:7410/metrics")
            assert "dynatops_" in page
        store = cluster.pods["net-dynatops-redis-0"]
        others = [pod for pod in cluster.pods.values() if pod is not store]
        for stopped in (others, [store]):
            await asyncio.gather(*(pod.stop() for pod in stopped))
            check_that_they_left_by_themselves(stopped)

    run(tmp_path, scenario)


async def knows(manager: str, brokers: int) -> bool:
    """Whichever manager the service leads to: it names the one that leads."""
    outcome = await asyncio.to_thread(command, "status", "--json", "--manager", manager)
    return outcome.returncode == 0 and json.loads(outcome.stdout)["brokers"] == brokers


@contextlib.asynccontextmanager
async def witnessed(cluster: Kubelet) -> AsyncIterator[Witness]:
    """Load, by clients that know the service's address only, or that for clients outside, if there
    is one: all that was acknowledged has come to all, once, and in the order of each publisher."""
    has_outside = cluster.has_service(OUTSIDE)
    sides = itertools.cycle(("net-dynatops", OUTSIDE) if has_outside else ("net-dynatops",))
    async with contextlib.AsyncExitStack() as stack:

        async def client(**options: object) -> dynatops.Client:
            address = cluster.address_of(next(sides), 7400)
            return await stack.enter_async_context(dynatops.connect(address, **options))  # type: ignore[arg-type]

        publishers = {f"p{i}": await client() for i in range(2)}
        # One moves as it likes, one stays while it can, one is kept on its broker's disk.
        readers = [
            await client(), await client(stay=True), await client(client_id="kept", keep_s=60)
        ]  # fmt: skip
        listeners = [Listener(await reader.subscribe("quake/#")) for reader in readers]
        witness = Witness(publishers, TOPICS)
        async with witness.publishing():
            yield witness
        everything = lambda published: True  # noqa: E731
        await until(
            lambda: not any(witness.missing(one.heard, everything) for one in listeners), 30.0
        )
        for listener in listeners:
            witness.check(listener.heard, everything)
            await listener.stop()


@pytest.mark.timeout(240)
def test_a_rolling_restart_of_all_brokers_loses_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Kubelet) -> None:
        before = {pod.name: pod for pod in brokers_of(cluster)}
        async with witnessed(cluster) as witness:
            stopped = await cluster.roll(BROKERS)
        # There was a load all the while.
        assert len(witness.acknowledged) > 500
        check_that_they_left_by_themselves(stopped)
        assert [pod.name for pod in stopped] == [f"{BROKERS}-{i}" for i in (2, 1, 0)]
        assert all("left after" in pod.log() for pod in stopped)
        assert all(cluster.pods[name] is not pod for name, pod in before.items())

    # With two names for each broker, that of its pod and that of its balancer.
    outside = (
        "broker.outside.enabled=true,broker.outside.advertise=net-dynatops-outside-{ordinal}:7400"
    )
    run(tmp_path, scenario, "default", "--set", f"manager.enabled=false,{outside}")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_brokers_that_autoscaling_takes_away_lose_nothing(tmp_path: Path) -> None:
    """Two of five at once: more than its policy ever takes."""

    async def scenario(cluster: Kubelet) -> None:
        async with witnessed(cluster):
            gone = await cluster.shrink(BROKERS, 3)
        assert len(gone) == 2
        check_that_they_left_by_themselves(gone)

    run(tmp_path, scenario, "default", "--set", "manager.enabled=false,broker.replicas=5")


@pytest.mark.timeout(120)
def test_a_single_broker_is_a_ring(tmp_path: Path) -> None:
    async def scenario(cluster: Kubelet) -> None:
        async with witnessed(cluster):
            pod = await cluster.run_pod("net-dynatops-test")
            assert pod.exit_codes == [0], pod.log()
        (pod,) = cluster.pods.values()
        await pod.stop()
        check_that_they_left_by_themselves([pod])

    run(tmp_path, scenario, "minimal", "--set", "tests.enabled=true")


class Tls:
    """The network of ci/tls-values.yaml, whose certificate is for its addresses here."""

    def __init__(self, folder: Path) -> None:
        self.addresses = Addresses()
        objects = rendered("tls", "--set", "security.watchSeconds=1")
        # Named by a first one, which is not run.
        Kubelet(objects, folder / "names", addresses=self.addresses)
        # As of cert-manager's: services, brokers, and the name that all know each other by.
        known = [name for name in self.addresses.names() if "-manager-" not in name]
        places = sorted({self.addresses.of(name) for name in known})
        self.names = ["net-dynatops.events.svc", *places]
        self.certificate = certificate(folder / "certificate", self.names)
        self.kubelet = Kubelet(
            objects, folder / "pods", secrets=secrets(self.certificate), addresses=self.addresses
        )


@pytest.mark.timeout(240)
def test_with_certificates_tokens_and_secrets(tmp_path: Path) -> None:
    async def scenario() -> None:
        tls = Tls(tmp_path)
        async with tls.kubelet as cluster:
            await cluster.all_ready()
            pod = await cluster.run_pod("net-dynatops-test")
            assert pod.exit_codes == [0], pod.log()
            for monitor in of_kind(rendered("tls"), "ServiceMonitor"):
                for page in await scraped(cluster, monitor, tls.certificate["ca.crt"]):
                    assert "dynatops_" in page
            # The certificate is renewed by another authority: nothing is restarted.
            renewed = certificate(tmp_path / "renewed", tls.names)
            cluster.change_secret("dynatops-certificate", renewed)
            for pod in cluster.pods.values():
                if "grpc" in pod.ports:
                    shown = functools.partial(is_shown, renewed["ca.crt"], pod)
                    await until(shown, 20.0, f"{pod.name} shows the new certificate")
            pod = await cluster.run_pod("net-dynatops-test")
            assert pod.exit_codes == [0], pod.log()
            # Nobody comes in without.
            broker = brokers_of(cluster)[0]
            outcome = await asyncio.to_thread(
                command, "ring", "--broker", f"{broker.address}:7400", "--token", TOKEN
            )
            assert outcome.returncode == 1

    asyncio.run(scenario())


async def is_shown(ca: str, pod: Pod) -> bool:
    """Whether the pod's certificate is of this authority."""
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(pod.address, pod.ports["grpc"], ssl=context)
    except ssl.SSLCertVerificationError:
        return False
    writer.transport.abort()
    return True


async def scraped(cluster: Kubelet, monitor: Object, ca: str) -> list[str]:
    """As the Prometheus operator would: each pod of the services that the monitor names."""
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    scheme = endpoint.get("scheme", "http")
    token = VIEWER if "authorization" in endpoint else ""
    component: Mapping[str, str] = {
        key: wanted[key] for key in wanted if key.startswith("app.kubernetes.io/")
    }
    pods = [pod for pod in cluster.pods.values() if component.items() <= pod.labels.items()]
    assert pods
    return [
        await asyncio.to_thread(
            fetched,
            f"{scheme}://{pod.address}:{pod.ports[endpoint['port']]}{endpoint['path']}",
            token,
            ca if scheme == "https" else "",
        )
        for pod in pods
    ]


@pytest.mark.skipif(
    importlib.util.find_spec("analytics") is None, reason="needs the analytics package"
)
@pytest.mark.timeout(400)
def test_brokers_write_a_lake_and_an_analytics_job_reads_it(tmp_path: Path) -> None:
    async def scenario(cluster: Kubelet) -> None:
        pod = await cluster.run_pod("net-dynatops-test")
        assert pod.exit_codes == [0], pod.log()
        # Whoever leaves writes all that it has.
        await asyncio.gather(*(pod.stop() for pod in brokers_of(cluster)))
        assert list(cluster.claim("dynatops-lake").glob("events/publications/**/*.parquet"))
        job = await cluster.run_job("net-dynatops-rates")
        assert job.exit_codes == [0], job.log()
        (line,) = (line for line in job.log().splitlines() if line.startswith("{"))
        (summary,) = json.loads(line)["jobs"]
        assert (summary["job"], summary["status"]) == ("rates", "done")
        assert summary["rows_in"] > 0
        assert summary["advice"] is not None

    run(tmp_path, scenario, "autoscaling", "--set", "manager.enabled=false")
