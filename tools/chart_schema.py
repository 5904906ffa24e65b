"""The schema of the chart's values: written by hand, but for what others know better. Jobs are
those of analytics, and a policy is what managers take for one. `generate_reference.py` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analytics.jobs.catalogue import kinds
from reconfig_manager.model.policy import Policy

ROOT = Path(__file__).resolve().parent.parent
_SCHEMA = ROOT / "helm" / "dynatops" / "values.schema.json"
# What pydantic says besides, and what no values file shows.
_LEFT_OUT = {"title", "description", "default", "$defs"}


def chart_schema() -> Iterator[str]:
    """As it is, with these made anew."""
    schema = json.loads(_SCHEMA.read_text())
    analytics = schema["properties"]["analytics"]["properties"]
    analytics["jobs"]["properties"] = {name: {"$ref": "#/definitions/job"} for name in kinds()}
    policy = Policy.model_json_schema()
    schema["definitions"]["policy"] = _plain(policy, policy["$defs"])
    yield json.dumps(schema, indent=2, ensure_ascii=False)


def _plain(part: Any, named: Mapping[str, Any]) -> Any:
    """Without names of its own, and without words."""
    if isinstance(part, list):
        return [_plain(each, named) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _plain(named[part["$ref"].rpartition("/")[2]], named)
    properties = part.get("properties", {})
    inner = {name: _plain(each, named) for name, each in properties.items()}
    rest = {
        key: _plain(value, named)
        for key, value in part.items()
        if key not in _LEFT_OUT and key != "properties"
    }
    return rest | ({"properties": inner} if inner else {})
