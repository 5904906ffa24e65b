"""`dynatops settings`: everything that `--set` takes, of brokers and of managers."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

from dynatops.cli.common import Commands, add_command, print_json


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "settings",
        run,
        summary="list every setting of a broker, its default and its meaning",
        description="List every setting of a broker: `dynatops broker --set NAME=VALUE`.",
    )
    parser.add_argument(
        "--manager", action="store_true", help="those of `dynatops manager --set` instead"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.manager:
        from reconfig_manager.service.process_settings import describe_settings

        settings = list(describe_settings())
    else:
        settings = list(_of_brokers())
    if arguments.json:
        print_json(
            [
                {"name": name, "default": default, "meaning": meaning}
                for name, default, meaning in settings
            ]
        )
        return 0
    for name, default, meaning in settings:
        print(f"{name} = {default}")
        print(textwrap.indent(textwrap.fill(meaning, 76), "    "))
    return 0


def _of_brokers() -> Iterator[tuple[str, object, str]]:
    from broker_agent.process_settings import describe_settings
    from broker_agent.runtime.listeners.table import describe_doors

    yield from describe_settings()
    yield from describe_doors()
