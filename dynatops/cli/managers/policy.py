"""`dynatops policy`: when and how the manager reconfigures by itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dynatops.cli.common import Commands, add_command, print_json
from dynatops.cli.errors import UsageError
from dynatops.cli.managers.manager_client import ManagerClient, add_manager
from dynatops.kit.strict_json import JsonError, parse_json, write_json

_PATH = "/v1/policy"
_EXAMPLES = """\
examples:
  dynatops policy set mode=auto t_free_s=1800 --reason "evenings are quiet"
  dynatops policy set solver.max_moves=10 solver.delay_weight=2 --reason "gently"
  dynatops policy set 'windows=[{"days": ["sat", "sun"], "start": "02:00", "end": "05:00"}]' \\
      --reason "weekends only"
"""


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "policy",
        help="show or change when the manager reconfigures",
        description="Show or change when and how the manager reconfigures.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_manager(add_command(kinds, "show", run_show, summary="show the policy"))
    change = add_command(
        kinds,
        "set",
        run_set,
        summary="change parts of the policy",
        description="Change parts of the policy; the rest stays. If somebody else changed it in "
        "between, nothing happens. `dynatops policy show` has all names; values are JSON, or text.",
        epilog=_EXAMPLES,
    )
    change.add_argument("assignments", metavar="NAME=VALUE", nargs="+")
    change.add_argument(
        "--reason", required=True, metavar="TEXT", help="what for; it is kept in the audit log"
    )
    add_manager(change)


def run_show(arguments: argparse.Namespace) -> int:
    found = ManagerClient.of(arguments).get(_PATH)
    _show(arguments, found)
    return 0


def run_set(arguments: argparse.Namespace) -> int:
    client = ManagerClient.of(arguments)
    found, headers = client.ask("GET", _PATH)
    policy = changed(found["policy"], arguments.assignments)
    body = {"policy": policy, "reason": arguments.reason}
    answer, _ = client.ask("PUT", _PATH, body=body, headers={"If-Match": headers["ETag"]})
    _show(arguments, answer)
    return 0


def _show(arguments: argparse.Namespace, found: Mapping[str, Any]) -> None:
    if arguments.json:
        print_json(found)
        return
    print(f"policy, version {found['version']}")
    for name, value in flat(found["policy"]):
        print(f"  {name} = {_written(value)}")


def flat(policy: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names as `set` takes them."""
    for name, value in policy.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _written(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value)


def changed(policy: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Raises UsageError for names that a policy does not have; values the manager checks."""
    result: dict[str, Any] = json.loads(json.dumps(policy))
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"{assignment}: write NAME=VALUE")
        part = result
        *groups, field = name.split(".")
        for group in groups:
            part = part.get(group, {}) if isinstance(part, dict) else {}
        if not isinstance(part, dict) or field not in part or isinstance(part[field], dict):
            known = ", ".join(known_name for known_name, _ in flat(policy))
            raise UsageError(f"a policy has no {name!r}, only {known}")
        part[field] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except JsonError:
        return text
