"""Generate docs/reference.md from the code: every setting and every counter, with its meaning.

python tools/generate_reference.py            write it
python tools/generate_reference.py --check    fail if what is committed is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from broker_agent.core.advice import AdviceCounters
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.selection_counters import SelectionCounters
from broker_agent.runtime.links import LinkCounters
from broker_agent.runtime.uplink import UplinkCounters
from broker_agent.settings import describe_settings
from dynatops.lake.counters import LakeCounters
from overlay.counters import OverlayCounters
from reconfig_manager.process_settings import describe_settings as describe_manager_settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
COUNTERS = (
    ("Clients", BrokerCounters),
    ("Broker selection", SelectionCounters),
    ("Advice", AdviceCounters),
    ("Lake", LakeCounters),
    ("Overlay node", OverlayCounters),
    ("Links", LinkCounters),
    ("Managers", UplinkCounters),
)


def lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Made from the code by `tools/generate_reference.py`; change the code, then `make docs`."
    yield ""
    yield "## Settings"
    yield ""
    yield "Set with `dynatops broker --set NAME=VALUE`; `dynatops settings` prints the same."
    yield ""
    yield from setting_table(describe_settings())
    yield ""
    yield "## Settings of a manager"
    yield ""
    yield "Set with `dynatops manager --set NAME=VALUE`; `dynatops settings --manager` prints them."
    yield ""
    yield from setting_table(describe_manager_settings())
    yield ""
    yield "## Counters"
    yield ""
    yield "Shown by `dynatops brokers --json`. They count since the broker started."
    for title, kind in COUNTERS:
        yield ""
        yield f"### {title}"
        yield ""
        yield "| counter | meaning |"
        yield "|---|---|"
        for field in fields(kind):
            yield f"| `{field.name}` | {field.metadata['doc']} |"


def setting_table(settings: Iterable[tuple[str, object, str]]) -> Iterator[str]:
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for name, default, meaning in settings:
        yield f"| `{name}` | {default} | {meaning} |"


def main() -> int:
    text = "\n".join(lines()) + "\n"
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET.name} is not current: run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
