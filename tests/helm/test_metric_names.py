"""Whatever dashboard, rules and documents name is exposed by a real broker or manager, and the
documents name everything that is exposed.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import dynatops
from analytics.analytics_settings import RunSettings
from broker_agent.process_settings import describe_settings
from dynatops.cli.main import _parser
from reconfig_manager.model.policy import Policy, SolverOptions
from tests.support.agents import managing
from tests.support.manager_store import storing
from tests.support.ports import free_addresses
from tests.support.security import running
from tests.support.services import attached
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm" / "dynatops" / "files"
NAME = re.compile(r"\bdynatops_[a-z0-9_]+")
MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"")
GROUPING = re.compile(r"\b(?:by|on|without|group_left|ignoring)\s*\(([^)]*)\)")
# What Prometheus adds to each sample.
ADDED = frozenset({"namespace", "instance"})


@dataclass(frozen=True, slots=True)
class Exposed:
    kinds: dict[str, str]
    labels: dict[str, set[str]]
    series: int

    def family_of(self, name: str) -> str:
        """The family that a name in a query belongs to."""
        for suffix in ("", "_bucket", "_sum", "_count"):
            family = name.removesuffix(suffix)
            if name.endswith(suffix) and family in self.kinds:
                assert not suffix or self.kinds[family] == "histogram", name
                return family
        raise AssertionError(f"nobody exposes {name}")


def parsed(text: str) -> Exposed:
    kinds: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    series = 0
    for family in text_string_to_metric_families(text):
        # The parser takes this part of a counter's name for granted.
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in kinds, f"{name} is there twice"
        assert family.documentation
        kinds[name] = family.type
        labels[name] = {label for sample in family.samples for label in sample.labels}
        series += len(family.samples)
    return Exposed(kinds, labels, series)


async def fetched(url: str) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return str(answer.read().decode())

    return await asyncio.to_thread(fetch)


async def scrape(folder: Path) -> tuple[Exposed, Exposed]:
    """Of a broker and of the manager that leads it, with something to do."""
    async with storing(folder) as (server, _), managing(server.url) as service:
        broker = running(http={"listen": "127.0.0.1:0"}, manager={"addresses": (service.address,)})
        async with broker as agent, dynatops.connect(agent.address) as client:
            async with client.subscribe("a/#") as events:
                for number in range(50):
                    await client.publish(f"a/{number}", b"x")
                for _ in range(50):
                    await events.__anext__()

                async def is_known() -> bool:
                    return await attached(service) == 1

                await until(is_known)
                await until(lambda: agent.watch.census.last.node.member_trees >= 50)
                assert agent.http is not None
                # Once more, with what the first one counted.
                await fetched(f"http://{agent.http.address}/metrics")
                of_broker = await fetched(f"http://{agent.http.address}/metrics")
                await fetched(f"{service.http_url}/v1/metrics")
                of_manager = await fetched(f"{service.http_url}/v1/metrics")
    assert "a/1" not in of_broker
    return parsed(of_broker), parsed(of_manager)


async def scrape_in_tree(folder: Path) -> Exposed:
    """Of a broker that is a tree by itself."""
    (address,) = free_addresses(1)
    topology = folder / "tree.yaml"
    topology.write_text(f"brokers: {{alone: {address}}}")
    values: dict[str, Any] = {"listen": address, "topology": str(topology)}
    async with running("alone", http={"listen": "127.0.0.1:0"}, **values) as agent:
        assert agent.http is not None
        return parsed(await fetched(f"http://{agent.http.address}/metrics"))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exposed, Exposed]:
    return asyncio.run(scrape(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def in_tree(tmp_path_factory: pytest.TempPathFactory) -> Exposed:
    return asyncio.run(scrape_in_tree(tmp_path_factory.mktemp("tree")))


@pytest.fixture(scope="module")
def exposed(scraped: tuple[Exposed, Exposed], in_tree: Exposed) -> Exposed:
    """A broker is on a ring or in a tree: what it has of neither is the same."""
    broker, manager = scraped
    assert not broker.kinds.keys() & manager.kinds.keys()
    assert broker.kinds.keys() - in_tree.kinds.keys()
    assert in_tree.kinds.keys() - broker.kinds.keys()
    return Exposed(
        {**in_tree.kinds, **broker.kinds, **manager.kinds},
        {**in_tree.labels, **broker.labels, **manager.labels},
        broker.series + manager.series,
    )


SCRAPED_EVERY_S = 30


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels by name, as docs/metrics.md has it."""
    rows = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and (found := re.fullmatch(r"`(dynatops_\w+)`", cells[1])):
            labels = set(re.findall(r"`(\w+)`", cells[4]))
            assert found[1] not in rows, found[1]
            rows[found[1]] = (cells[2], labels)
    return rows


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "rules.yaml").read_text())
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
    return document


def queries() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["expr"]
    for rule in rules():
        yield rule["expr"]


class TestNames:
    def test_what_is_documented_is_exposed_and_nothing_else(self, exposed: Exposed) -> None:
        assert {name: kind for name, (kind, _) in documented().items()} == exposed.kinds

    def test_labels_are_the_documented_ones(self, exposed: Exposed) -> None:
        table = documented()
        for name, labels in exposed.labels.items():
            promised = table[name][1] | ({"le"} if exposed.kinds[name] == "histogram" else set())
            assert labels <= promised, name

    def test_every_metric_of_dashboard_and_rules_is_exposed(self, exposed: Exposed) -> None:
        texts = [(FILES / name).read_text() for name in ("dashboard.json", "rules.yaml")]
        names = {name for text in texts for name in NAME.findall(text)}
        assert len(names) > 80
        for name in sorted(names):
            exposed.family_of(name)

    def test_every_label_of_a_query_is_one_of_its_metrics(self, exposed: Exposed) -> None:
        table = documented()
        for query in queries():
            families = [exposed.family_of(name) for name in NAME.findall(query)]
            known = {"le", *ADDED}.union(*(table[family][1] for family in families))
            used = set(MATCHER.findall(query))
            for names in GROUPING.findall(query):
                used |= {name.strip() for name in names.split(",") if name.strip()}
            assert used <= known, query

    def test_counters_are_asked_for_their_rate(self, exposed: Exposed) -> None:
        for query in queries():
            for name in NAME.findall(query):
                family = exposed.family_of(name)
                assert name != family or exposed.kinds[family] != "histogram", query
                if exposed.kinds[family] != "gauge":
                    assert re.search(rf"(rate|increase)\({name}\b", query), query

    def test_names_end_in_their_unit(self, exposed: Exposed) -> None:
        for name, kind in exposed.kinds.items():
            assert name.endswith("_total") == (kind == "counter"), name
            assert not re.search(r"_(ms|s|kb|mb|us|percent)(_total)?$", name), name
            if kind == "histogram":
                assert name.endswith("_seconds"), name

    def test_series_are_few(self, scraped: tuple[Exposed, Exposed]) -> None:
        broker, manager = scraped
        assert broker.series < 400
        assert manager.series < 400


class TestRules:
    def test_each_says_what_it_means_and_what_to_do(self) -> None:
        names = [rule["alert"] for rule in rules()]
        assert len(names) == len(set(names)) > 20
        for rule in rules():
            assert re.fullmatch(r"Dynatops[A-Z]\w+", rule["alert"])
            assert rule["labels"]["severity"] in ("critical", "warning")
            notes = rule["annotations"]
            assert set(notes) == {"summary", "description", "runbook"}
            assert all(len(text) > 10 for text in notes.values())
            assert len(notes["runbook"]) > 80, rule["alert"]

    def test_alerts_that_send_to_others_name_some_that_exist(self) -> None:
        names = {rule["alert"] for rule in rules()}
        for rule in rules():
            assert set(re.findall(r"\bDynatops[A-Z]\w+", rule["annotations"]["runbook"])) <= names

    def test_commands_and_settings_of_runbooks_exist(self) -> None:
        commands = set(_parser()._subparsers._group_actions[0].choices or ())  # type: ignore[union-attr]
        settings = {name for name, _, _ in describe_settings()}
        settings |= {f"solver.{name}" for name in SolverOptions.model_fields}
        groups = {name.partition(".")[0] for name in settings}
        for rule in rules():
            text = rule["annotations"]["runbook"]
            assert set(re.findall(r"\bdynatops ([a-z]+)\b", text)) <= commands, rule["alert"]
            for name in re.findall(r"\b([a-z]+\.[a-z_]+)\b", text):
                assert name.partition(".")[0] not in groups or name in settings, name
            for name in re.findall(r"policy set (\w+)=", text):
                assert name in Policy.model_fields, name

    @pytest.mark.parametrize("expiry_s", [900.0, RunSettings().expiry_s, 86_400.0])
    def test_old_advice_is_told_of_before_it_is_gone(self, expiry_s: float) -> None:
        """Not before the second of the two runs that should fit into its time is due."""
        (rule,) = (rule for rule in rules() if rule["alert"] == "DynatopsAdviceOld")
        left, factor, right = re.fullmatch(r"(\w+) > (\d+) \* (\w+)", rule["expr"]).groups()  # type: ignore[union-attr]
        assert rule["for"] == "1m"
        pending: list[float] = []
        for age_s in range(0, int(expiry_s), SCRAPED_EVERY_S):
            told = {
                "dynatops_advice_age_seconds": age_s,
                "dynatops_advice_expires_seconds": expiry_s - age_s,
            }
            if told[left] > int(factor) * told[right]:
                pending.append(age_s)
        assert pending[0] > expiry_s / 2
        assert pending[-1] - pending[0] >= 60


class TestDashboard:
    def test_panels_have_their_own_places(self) -> None:
        panels = dashboard()["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: dict[tuple[int, int], str] = {}
        for panel in panels:
            place = panel["gridPos"]
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert x < 24
                    assert (x, y) not in taken, (panel["title"], taken[x, y])
                    taken[x, y] = panel["title"]

    def test_there_is_a_row_for_each_subject(self) -> None:
        rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
        assert rows == [
            "At a glance",
            "Traffic",
            "Latency",
            "Ring and trees",
            "Queues and drops",
            "Sessions and selection",
            "Reconfiguration",
            "Analytics",
        ]
