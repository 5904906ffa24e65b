"""helm/dynatops/files/dashboard.json, for Grafana: `generate_reference.py` writes it.

What it shows is in `dashboard_rows.py`, by the names of metrics that brokers and managers declare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from dashboard_panels import PICK, Panel
from dashboard_rows import ROWS
from metrics_pages import BROKER, MANAGER

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
# Of a histogram.
_PARTS = ("bucket", "sum", "count")


def dashboard() -> Iterator[str]:
    """The lines of the file."""
    document = {
        "title": "DYNATOPS",
        "uid": "dynatops",
        "tags": ["dynatops"],
        "description": "Brokers and managers. Every metric is explained in docs/metrics.md.",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": _annotations()},
        "panels": list(_panels()),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    _check_names(text)
    return iter(text.splitlines())


def _check_names(text: str) -> None:
    declared = {
        metric.name: metric.kind for _, metrics in (*BROKER, *MANAGER) for metric in metrics
    }
    parts = {f"{n}_{p}" for n, k in declared.items() if k == "histogram" for p in _PARTS}
    unknown = set(re.findall(r"\bdynatops_[a-z0-9_]+", text)) - declared.keys() - parts
    if unknown:
        raise ValueError(f"the dashboard names what nobody declares: {', '.join(sorted(unknown))}")


def _variables() -> list[dict[str, Any]]:
    namespace = "label_values(dynatops_broker_info, namespace)"
    return [
        {
            "name": "datasource", "label": "Prometheus", "type": "datasource",
            "query": "prometheus", "current": {}, "hide": 0,
        },
        {
            "name": "namespace", "label": "Namespace", "type": "query", "datasource": _SOURCE,
            "query": {"query": namespace, "refId": "namespace"}, "definition": namespace,
            "refresh": 2, "sort": 1, "includeAll": True, "multi": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}, "hide": 0,
        },
    ]  # fmt: skip


def _annotations() -> list[dict[str, Any]]:
    """Plans that ended, drawn across all panels."""
    return [
        {
            "name": "Plans", "datasource": _SOURCE, "enable": True, "iconColor": "orange",
            "expr": f"sum by (state) (increase(dynatops_plans_ended_total{PICK}[1m])) > 0",
            "step": "60s", "titleFormat": "plan {{state}}", "textFormat": "",
        }
    ]  # fmt: skip


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in ROWS:
        number += 1
        yield {
            "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }  # fmt: skip
        y += 1
        x = 0
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + panel.height
            number += 1
            yield _panel(panel, number, x, y)
            x += panel.width
        y += row.panels[-1].height


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    is_stat = panel.kind == "stat"
    custom = {
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {} if is_stat else custom},
            "overrides": [],
        },
        "options": (
            {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
            if is_stat
            else {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        ),
        "targets": [
            {
                "refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query,
                "legendFormat": legend or "__auto",
            }
            for i, (query, legend) in enumerate(panel.lines)
        ],
    }  # fmt: skip
