"""Labels of metrics, with their values in words for operators: a line declares one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LABELS: Mapping[str, str] = MappingProxyType(
    {
        # The reference names them.
        "advice": "analytics jobs",
        "broker": "the broker's own id, one value in a process",
        "build": "`pure Python`, `compiled`; one value in a process",
        "end": "of a run of an analytics job `done`, `nothing_new`, `failed`",
        "le": "upper bound, of histograms' `_bucket`",
        "manager": "the manager's own id, one value in a process",
        "method": "HTTP methods that exist, and `other`",
        "mode": "`manual`, `auto`, `off`",
        "of": "`a`, `b`, `c`",
        "outcome": "how Algorithm 3 can end; eight values",
        "path": "`/livez`, `/readyz`, `/metrics`, `other`",
        "phase": "phases of a plan, in lower case; six values",
        "reason": "of HTTP connections `slow`, `crowded`; of managers' also `stalled`, `malformed`",
        "state": "of sessions `connected`, `absent`; of plans their eight states, in lower case",
        "status": "of HTTP the status code; of a node `joining`, `member`, `leaving`, `left`",
        "table": "of advice",
        "version": "of the program, one value in a process",
    }
)
