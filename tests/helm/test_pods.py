"""What the chart renders, run: its own commands, environment, ports, probes and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import dynatops
from tests.support.kubernetes.chart import rendered
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.witness import Listener, Witness

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

BROKERS = "net-dynatops-broker"
TOPICS = [f"quake/{i}" for i in range(6)]
Scenario = Callable[[Kubelet], Awaitable[None]]


def run(folder: Path, scenario: Scenario, values: str = "default", *options: str) -> None:
    async def all_of_it() -> None:
        async with Kubelet(rendered(values, *options), folder) as cluster:
            await cluster.all_ready()
            await scenario(cluster)

    asyncio.run(all_of_it())


@pytest.mark.timeout(240)
def test_all_of_it_comes_up_and_its_own_test_passes(tmp_path: Path) -> None:
    async def scenario(cluster: Kubelet) -> None:
        names = sorted(cluster.pods)
        assert len([name for name in names if name.startswith(BROKERS)]) == 3
        assert len([name for name in names if "-manager-" in name]) == 2
        assert "net-dynatops-redis-0" in names
        pod = await cluster.run_pod("net-dynatops-test")
        assert pod.exit_codes == [0], pod.log()
        assert "published and received" in pod.log()
        assert "leads" in pod.log()
        print({n: p.restarts for n, p in cluster.pods.items()})

    run(tmp_path, scenario)
