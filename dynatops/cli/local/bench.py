"""`dynatops bench`: how fast it is here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, TypeVar

from dynatops.cli.access import add_access, credentials_of
from dynatops.cli.common import Commands, add_command, positive, print_json, run_async
from dynatops.cli.errors import CommandError

# As `dynatops.local.bench` calls them.
ROUTINGS = ("rendezvous", "forwarding")
# A hub, and a leaf each for publisher and subscriber.
_IN_TREE_MIN = 3
Result = dict[str, Any]
P = TypeVar("P")

# What a person reads: (name in the result, unit).
_LINES = (
    ("events_per_s", "events/s"),
    ("deliveries_per_s", "deliveries/s"),
    ("changes_per_s", "changes of subscriptions/s"),
    ("p50_ms", "ms median"),
    ("p99_ms", "ms for 99 of 100"),
    ("max_ms", "ms at most"),
    ("missed", "missed"),
    ("ack_p99_ms", "ms until acknowledged, for 99 of 100"),
    ("broker_cpu_us_per_event", "microseconds of the brokers' processors for an event"),
    ("publisher_cpu_us_per_event", "microseconds of the publisher's"),
    ("subscriber_cpu_us_per_delivery", "microseconds of the subscribers', for a delivery"),
)
_FRACTIONS = frozenset(key for key, _ in _LINES if "_ms" in key or "_us_per_" in key)


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure throughput and latency",
        description="Measure on this machine, or against brokers that run already (--broker). "
        "A missed event fails a benchmark.",
    )
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_pubsub(kinds)
    _add_topics(kinds)
    _add_fanout(kinds)
    _add_latency(kinds)
    _add_churn(kinds)


def _add(
    kinds: Commands,
    name: str,
    run: Callable[[argparse.Namespace], Coroutine[Any, Any, Result]],
    brokers: int,
    *,
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    parser = add_command(
        kinds, name, lambda a: _report(name, a, run), summary=summary, description=description
    )
    parser.add_argument(
        "--broker", metavar="HOST:PORT[,…]", help="measure these, instead of starting some"
    )
    parser.add_argument(
        "--routing",
        choices=ROUTINGS,
        default=ROUTINGS[0],
        help="how events travel between brokers that are started: along a ring (rendezvous, the "
        "default), or in a tree (forwarding): a hub with leaves, where what goes from the "
        "publisher to a subscriber at another leaf passes the hub",
    )
    in_tree = max(brokers, _IN_TREE_MIN)
    also = f"; in a tree {in_tree}" if in_tree != brokers else ""
    parser.add_argument(
        "--brokers",
        type=positive(int),
        metavar="N",
        help=f"brokers to start (default: {brokers}{also})",
    )
    parser.set_defaults(brokers_by_routing=dict(zip(ROUTINGS, (brokers, in_tree), strict=True)))
    add_access(parser)
    return parser


def _number(
    parser: argparse.ArgumentParser, name: str, default: float, meaning: str, dest: str = ""
) -> None:
    parser.add_argument(
        name,
        dest=dest or name.strip("-").replace("-", "_"),
        type=positive(type(default)),
        default=default,
        metavar="N",
        help=f"{meaning} (default: {default:,})",
    )


def _plan(kind: Callable[..., P], arguments: argparse.Namespace) -> P:
    """What was asked for, as a plan whose fields are named as the options are."""
    return kind(**{name: getattr(arguments, name) for name in signature(kind).parameters})


def _report(
    name: str,
    arguments: argparse.Namespace,
    run: Callable[[argparse.Namespace], Coroutine[Any, Any, Result]],
) -> int:
    from dynatops.kit.security.credentials import Credentials

    if arguments.brokers is None:
        arguments.brokers = arguments.brokers_by_routing[arguments.routing]
    # Brokers started for the purpose ask for nothing; workers are told by the environment.
    credentials = credentials_of(arguments) if arguments.broker else Credentials()
    os.environ.update(credentials.as_environment())
    try:
        result: Result = run_async(run(arguments))
    except RuntimeError as error:
        raise CommandError(str(error)) from None
    missed = result.get("missed", 0)
    if arguments.json:
        print_json(result)
        return 1 if missed else 0
    shown = {key for key, _ in _LINES}
    setting = ", ".join(f"{key} {value}" for key, value in result.items() if key not in shown)
    print(f"{name}: {setting}")
    for key, unit in _LINES:
        if (value := result.get(key)) is not None:
            number = f"{value:,.2f}" if key in _FRACTIONS else f"{value:,.0f}"
            print(f"  {number:>14} {unit}")
    if missed:
        raise CommandError(
            f"{missed:,} events were missed: these figures are of a flow that does not last; make "
            "--window smaller, or the brokers' queues larger"
        )
    return 0


def _add_pubsub(kinds: Commands) -> None:
    parser = _add(
        kinds,
        "pubsub",
        _pubsub,
        1,
        summary="one publisher, one subscriber, as fast as it goes",
        description="Publish as fast as the subscriber keeps up, and time each event from publish "
        "to delivery. Publisher, subscriber and brokers are processes of their own. The processor "
        "time of brokers that are started for it is measured, too.",
    )
    _number(parser, "--events", 1_000_000, "events to publish")
    _number(parser, "--topics", 1, "topics that events are spread over")
    _number(parser, "--bytes", 100, "bytes of a payload", "payload_bytes")
    _add_ack(parser)
    _add_windows(parser)
    parser.add_argument(
        "--kept",
        action="store_true",
        help="keep the subscriber's session, on disk if brokers are started for it",
    )


def _pubsub(arguments: argparse.Namespace) -> Coroutine[Any, Any, Result]:
    from dynatops.local.bench.pubsub import PubSubPlan, run

    return run(_plan(PubSubPlan, arguments), arguments.broker)


def _add_topics(kinds: Commands) -> None:
    parser = _add(
        kinds,
        "topics",
        _topics,
        1,
        summary="many topics, an event on each in turn",
        description="Publish one event after the other, each on another topic, to users who "
        "follow all topics or some. Every topic is published on once before anything is measured.",
    )
    _number(parser, "--events", 500_000, "events to publish")
    _number(parser, "--topics", 10_000, "topics that they are spread over")
    _number(parser, "--users", 1, "sessions that listen, spread over the brokers")
    parser.add_argument(
        "--follow",
        type=positive(int),
        default=0,
        metavar="N",
        help="topics that each user follows by name (default: all, by a wildcard)",
    )
    _number(parser, "--bytes", 100, "bytes of a payload", "payload_bytes")
    _add_ack(parser)
    _add_windows(parser, "; with --ack, calls that wait at a time")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="who follows what")


def _topics(arguments: argparse.Namespace) -> Coroutine[Any, Any, Result]:
    from dynatops.local.bench.topics import TopicsPlan, run

    return run(_plan(TopicsPlan, arguments), arguments.broker)


def _add_ack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ack",
        choices=("none", "rp", "replicated", "stored"),
        default="none",
        help="(default: none)",
    )


def _add_windows(parser: argparse.ArgumentParser, more: str = "") -> None:
    _number(parser, "--window", 20_000, f"events under way at most, fewer mean less latency{more}")
    _number(parser, "--window-bytes", 16 << 20, "and bytes of their payloads")


def _add_fanout(kinds: Commands) -> None:
    parser = _add(
        kinds,
        "fanout",
        _fanout,
        8,
        summary="one publisher, many sessions on one topic",
        description="Publish to many sessions, spread over brokers that share one process, at the "
        "pace of the sessions. Latencies are those of a full pipe.",
    )
    _number(parser, "--sessions", 1_000, "subscribing sessions")
    _number(parser, "--events", 2_000, "events to publish")
    _number(parser, "--bytes", 100, "bytes of a payload", "payload_bytes")
    _number(parser, "--window", 500, "events under way at most")


def _fanout(arguments: argparse.Namespace) -> Coroutine[Any, Any, Result]:
    from dynatops.local.bench.fanout import FanoutPlan, run

    return run(_plan(FanoutPlan, arguments), arguments.broker)


def _add_latency(kinds: Commands) -> None:
    parser = _add(
        kinds,
        "latency",
        _latency,
        8,
        summary="from publish to delivery, at a steady rate",
        description="Publish at a steady rate on a topic or more, and to a broker, so many hops "
        "from each other, and time every event. Everything is in processes of its own.",
    )
    _number(parser, "--rate", 5_000, "events a second", "events_per_s")
    _number(parser, "--seconds", 5.0, "how long")
    _number(parser, "--bytes", 100, "bytes of a payload", "payload_bytes")
    _number(parser, "--topics", 1, "topics that events are spread over, in turn")
    _number(
        parser,
        "--hops",
        3,
        "hops from the rendezvous point, or in a tree from the "
        "publisher, as far as there are so many",
    )


def _latency(arguments: argparse.Namespace) -> Coroutine[Any, Any, Result]:
    from dynatops.local.bench.latency import LatencyPlan, run

    return run(_plan(LatencyPlan, arguments), arguments.broker)


def _add_churn(kinds: Commands) -> None:
    parser = _add(
        kinds,
        "churn",
        _churn,
        8,
        summary="sessions that change their subscriptions all the time",
        description="Each session gives up a topic and takes another, over and over, and waits "
        "each time until it is sure to hear everything.",
    )
    _number(parser, "--sessions", 50, "sessions")
    _number(parser, "--topics", 1_000, "topics to choose from")
    _number(parser, "--topics-per-session", 5, "topics held at a time")
    _number(parser, "--seconds", 5.0, "how long")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")


def _churn(arguments: argparse.Namespace) -> Coroutine[Any, Any, Result]:
    from dynatops.local.bench.churn import ChurnPlan, run

    return run(_plan(ChurnPlan, arguments), arguments.broker)
