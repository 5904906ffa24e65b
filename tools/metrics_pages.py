"""docs/metrics.md and docs/logs.md, from the code: `generate_reference.py` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from analytics.jobs.catalogue import kinds
from broker_agent.runtime.observing.broker_metrics import SECTIONS as BROKER
from broker_agent.runtime.observing.narrating import OPERATIONS as BROKER_OPERATIONS
from dynatops.kit.observing.log_lines import Operation
from dynatops.kit.observing.log_operations import ALWAYS, FIELDS
from dynatops.kit.observing.metric_labels import LABELS
from dynatops.kit.observing.metrics import Metric
from reconfig_manager.rest.serving.admission import TRAFFIC
from reconfig_manager.service.observing.metrics import SECTIONS as KNOWN
from reconfig_manager.service.observing.operation_log import OPERATIONS as MANAGER_OPERATIONS
from reconfig_manager.service.observing.process_metrics import SECTIONS as COUNTED

Section = tuple[str, Sequence[Metric[Any]]]
MANAGER: tuple[Section, ...] = (*KNOWN, *COUNTED, ("HTTP", TRAFFIC))


def _label(name: str) -> str:
    """Its values; those that only analytics know are added."""
    try:
        text = LABELS[name]
    except KeyError:
        raise ValueError(
            f"the label {name} is not declared: dynatops/kit/observing/metric_labels.py"
        ) from None
    declared = kinds()
    if name == "advice":
        text += f": {_quoted(declared)}"
    elif name == "table":
        text += f": {_quoted({t for k in declared.values() for t in k.advice_tables.values()})}"
    return text


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


_MADE = "Made from the code by `tools/generate_reference.py`; change the code, then `make docs`."
_UNITS = ("seconds", "bytes", "ratio", "events", "rows", "topics", "per_second")


def metrics_page() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield _MADE
    yield ""
    yield from _how_to_get_them()
    yield ""
    yield "## Labels"
    yield ""
    yield "Their values are few and known in advance: no topic, user or address is among them."
    yield ""
    yield "| label | values |"
    yield "|---|---|"
    used = {label for _, metrics in (*BROKER, *MANAGER) for m in metrics for label in m.labels}
    for label in sorted({*used, "le"}):
        yield f"| `{label}` | {_label(label)} |"
    for title, sections in (("Brokers", BROKER), ("Managers", MANAGER)):
        yield ""
        yield f"## {title}"
        for section, metrics in sections:
            yield ""
            yield f"### {section}"
            yield ""
            yield from _table(metrics)


def _how_to_get_them() -> Iterator[str]:
    yield "| process | where | asks for |"
    yield "|---|---|---|"
    yield "| `dynatops broker --http HOST:PORT` | `/metrics` | nothing |"
    yield "| `dynatops manager` | `/v1/metrics` | a viewer's token, where tokens are used |"
    yield ""
    yield "A broker's listener speaks plain HTTP, answers `GET` and `HEAD`, and changes nothing:"
    yield ""
    yield "| path | answers |"
    yield "|---|---|"
    yield (
        "| `/livez` | 200 while the broker looks at the time as often as it should; 503 once it is "
        "late by `http.late_max_s` |"
    )
    yield (
        "| `/readyz` | 200 while the broker is a member of the ring with its range in hand; 503 "
        "before, while it leaves, and while its disk takes no sessions, with the reason |"
    )
    yield "| `/metrics` | what is below |"
    yield ""
    yield from _NOTES.splitlines()


_NOTES = """\
Nothing there names topics or users, and no token is asked for, wherever it listens: let only those
reach it who look after brokers. A manager's probes are in [manager.md](manager.md#http). What would
have to be counted at a scrape (queues, trees) is counted a little at a time: such figures are some
seconds old. Counters begin at 0 when the process does.

Alerts and a dashboard made of these: `helm/dynatops/files/rules.yaml`, `dashboard.json`. They use
the labels `namespace` and `instance`, which Prometheus adds."""


def _table(metrics: Iterable[Metric[Any]]) -> Iterator[str]:
    yield "| metric | kind | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        text = (
            f"| `{metric.name}` | {metric.kind} | {_unit_of(metric)} | {labels} | {metric.help} |"
        )
        yield text.replace("  |", " |")


def _unit_of(metric: Metric[Any]) -> str:
    name = metric.name.removesuffix("_total").removesuffix("_limit")
    found = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
    if found == "per_second":
        return "events/s"
    return found


def logs_page() -> Iterator[str]:
    yield "# Logs"
    yield ""
    yield _MADE
    yield ""
    yield "Brokers and managers log to standard error. `--log-format json` makes each line a JSON"
    yield "object, `--log-format text` (the default) is for people. `--log-level` is `warning` by"
    yield "default; operations are told from `info` on."
    yield ""
    yield "An operation is one line, with all that belongs to it. Events are not logged, however"
    yield "they end: they are counted ([metrics.md](metrics.md)). Tokens, secrets and payloads are"
    yield "never logged; passwords within URLs are blotted out. Clients' ids are logged."
    yield ""
    yield "    " + _EXAMPLE
    yield ""
    yield "## Fields of every line"
    yield ""
    yield from _fields(ALWAYS)
    for title, operations in (
        ("Operations of a broker", BROKER_OPERATIONS),
        ("Operations of a manager", MANAGER_OPERATIONS),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield from _operations(operations)
    yield ""
    yield "## Fields of operations"
    yield ""
    yield "Those that do not apply are left out."
    yield ""
    yield from _fields(FIELDS)


_EXAMPLE = (
    '{"time": "2026-11-18T20:17:09.481Z", "level": "info", "operation": "reconfigured", '
    '"broker": "b3", "plan": "p1-1", …}'
)


def _operations(operations: Iterable[Operation]) -> Iterator[str]:
    yield "| operation | level | means | fields |"
    yield "|---|---|---|---|"
    for operation in operations:
        level = operation.level.name.lower()
        fields = ", ".join(f"`{name}`" for name in operation.fields)
        text = f"| `{operation.name}` | {level} | {operation.meaning} | {fields} |"
        yield text.replace("  |", " |")


def _fields(fields: Mapping[str, str]) -> Iterator[str]:
    yield "| field | means |"
    yield "|---|---|"
    for name, meaning in fields.items():
        yield f"| `{name}` | {meaning} |"
