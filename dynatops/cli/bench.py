"""`dynatops bench`: how fast it is here."""

from __future__ import annotations

import argparse
from typing import Any

from dynatops.cli.common import Commands, add_command, positive, print_json, run_async


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench", help="measure throughput and latency", description="Measure on this machine."
    )
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    pubsub = add_command(
        kinds,
        "pubsub",
        run_pubsub,
        summary="one publisher, one subscriber, brokers: each in its own process",
        description="Publish as fast as the subscriber keeps up, and time each event from publish "
        "to delivery. Publisher, subscriber and brokers are processes of their own.",
    )
    pubsub.add_argument(
        "--events", type=positive(int), default=1_000_000, metavar="N", help="(default: 1,000,000)"
    )
    pubsub.add_argument(
        "--bytes", type=positive(int), default=100, metavar="B", help="payload size (default: 100)"
    )
    pubsub.add_argument(
        "--brokers", type=positive(int), default=1, metavar="N", help="(default: 1)"
    )
    pubsub.add_argument(
        "--ack", choices=("none", "rp", "replicated"), default="none", help="(default: none)"
    )
    pubsub.add_argument(
        "--window",
        type=positive(int),
        default=20_000,
        metavar="N",
        help="events under way at most (default: 20,000); fewer mean less latency",
    )


def run_pubsub(arguments: argparse.Namespace) -> int:
    from dynatops.bench.pubsub import PubSubPlan, run

    plan = PubSubPlan(
        events=arguments.events,
        payload_bytes=arguments.bytes,
        brokers=arguments.brokers,
        ack=arguments.ack,
        window=arguments.window,
    )
    result: dict[str, Any] = run_async(run(plan))
    if arguments.json:
        print_json(result)
        return 0
    print(
        f"{result['events']:,} events of {result['bytes']} bytes, {result['brokers']} brokers, "
        f"acknowledgement {result['ack']}\n"
        f"  {result['events_per_s']:>12,.0f} events/s\n"
        f"  {result['p50_ms']:>12.2f} ms median from publish to delivery\n"
        f"  {result['p99_ms']:>12.2f} ms for 99 of 100\n"
        f"  {result['missed']:>12,} missed"
    )
    return 0
