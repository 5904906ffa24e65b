"""Write what is made from the code: settings, counters, metrics, logs, the dashboard, and what is
told of the rights of tokens and of the jobs of analytics.

python tools/generate_reference.py            write them
python tools/generate_reference.py --check    fail if what is committed is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import cast

from analytics_pages import advising_jobs, analytics_page, chart_values
from chart_schema import chart_schema
from dashboard import dashboard
from metrics_pages import logs_page, metrics_page
from rights_page import security_page

from analytics.analytics_settings import described
from analytics.jobs.catalogue import default_settings
from broker_agent.process_settings import describe_settings
from broker_agent.runtime.listeners.table import describe_doors
from broker_agent.runtime.observing.counter_sets import COUNTER_SETS
from reconfig_manager.model.policy import Policy, SolverOptions
from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.facade import Facade
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.service.process_settings import describe_settings as describe_manager_settings

ROOT = Path(__file__).resolve().parent.parent


def lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made from the code by `tools/generate_reference.py`; change the code, then `make docs`."
    yield ""
    yield "## Settings"
    yield ""
    yield "Set with `dynatops broker --set NAME=VALUE`; `dynatops settings` prints the same."
    yield ""
    yield from setting_table([*describe_settings(), *describe_doors()])
    yield ""
    yield "## Settings of a manager"
    yield ""
    yield "Set with `dynatops manager --set NAME=VALUE`; `dynatops settings --manager` prints them."
    yield ""
    yield from setting_table(describe_manager_settings())
    yield ""
    yield "## Settings of analytics"
    yield ""
    yield "Set with `dynatops analytics run --set NAME=VALUE`: [analytics](analytics.md)."
    yield ""
    yield from setting_table(described(default_settings()))
    yield ""
    yield "## Policy"
    yield ""
    yield "Changed with `dynatops policy set`, or PUT as a whole: [policy](manager.md#policy)."
    yield ""
    yield from policy_table()
    yield ""
    yield "## HTTP of a manager"
    yield ""
    yield "In full: `GET /v1/openapi.json`."
    yield ""
    yield from endpoint_table()
    yield ""
    yield "## Counters"
    yield ""
    yield "Shown by `dynatops brokers --json`. They count since the broker started."
    for counted in COUNTER_SETS:
        yield ""
        yield f"### {counted.title}"
        yield ""
        yield "| counter | meaning |"
        yield "|---|---|"
        for field in fields(counted.kind):
            yield f"| `{field.name}` | {field.metadata['doc']} |"


def policy_table() -> Iterator[str]:
    yield "| part | default | meaning |"
    yield "|---|---|---|"
    for prefix, kind in (("", Policy), ("solver.", SolverOptions)):
        for name, field in kind.model_fields.items():
            if name != "solver":
                default = field.default
                shown = default.value if isinstance(default, Enum) else default
                yield f"| `{prefix}{name}` | {shown} | {field.description} |"


def endpoint_table() -> Iterator[str]:
    """Nobody is asked while the schema is made."""
    schema = create_app(cast("Facade", None), RestSettings()).openapi()
    yield "| endpoint | takes a | does |"
    yield "|---|---|---|"
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            role = operation.get("x-role", "viewer").replace("none", "-")
            summary = " ".join(operation["description"].split("\n\n")[0].split())
            yield f"| `{method.upper()} {path}` | {role} | {summary} |"


def setting_table(settings: Iterable[tuple[str, object, str]]) -> Iterator[str]:
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for name, default, meaning in settings:
        yield f"| `{name}` | {default} | {meaning} |"


PAGES = {
    "docs/reference.md": lines,
    "docs/metrics.md": metrics_page,
    "docs/logs.md": logs_page,
    "docs/analytics.md": analytics_page,
    "docs/security.md": security_page,
    "helm/dynatops/files/dashboard.json": dashboard,
    "helm/dynatops/values.yaml": chart_values,
    "helm/dynatops/values.schema.json": chart_schema,
    "dynatops/kit/advice/advising_jobs.py": advising_jobs,
}


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        target, text = ROOT / name, "\n".join(make()) + "\n"
        if "--check" not in sys.argv:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            stale.append(name)
    if stale:
        print(f"not current: {', '.join(stale)}; run `make docs`")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
