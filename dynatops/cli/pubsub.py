"""`dynatops pub` and `dynatops sub`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from dynatops.cli.access import access_options
from dynatops.cli.common import Commands, add_address, add_command, positive, print_json, run_async
from dynatops.cli.errors import UsageError

if TYPE_CHECKING:
    from dynatops.client.subscription import Event, Gap


def add_commands(commands: Commands) -> None:
    publish = add_command(
        commands,
        "pub",
        run_pub,
        summary="publish events",
        description="Publish one event, or each line of standard input if no payload is given.",
    )
    publish.add_argument("topic")
    publish.add_argument(
        "payload", nargs="?", help="the event; without it, lines of standard input"
    )
    publish.add_argument(
        "--count", type=positive(int), default=1, metavar="N", help="publish it so many times"
    )
    publish.add_argument(
        "--ack",
        choices=("none", "rp", "replicated"),
        default="replicated",
        help="wait until events are: handed to the broker (none), stamped by the topic's "
        "rendezvous point (rp), or on two brokers (replicated, the default)",
    )
    add_address(publish)

    subscribe = add_command(
        commands,
        "sub",
        run_sub,
        summary="subscribe, and print events as they come",
        description="Subscribe to topics and print their events until Ctrl-C.",
    )
    subscribe.add_argument("topics", nargs="+", metavar="topic")
    subscribe.add_argument(
        "--count", type=positive(int), metavar="N", help="end after so many events"
    )
    subscribe.add_argument(
        "--raw", action="store_true", help="print payloads only, each on a line of its own"
    )
    add_address(subscribe)


def run_pub(arguments: argparse.Namespace) -> int:
    if arguments.payload is not None:
        payloads = [arguments.payload.encode("utf-8", "surrogateescape")] * arguments.count
    elif arguments.count != 1:
        raise UsageError("--count goes with a payload")
    else:
        payloads = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    started_s = time.monotonic()
    broker = run_async(_publish(arguments, payloads))
    seconds = time.monotonic() - started_s
    if arguments.json:
        print_json(
            {
                "topic": arguments.topic,
                "published": len(payloads),
                "broker": broker,
                "seconds": round(seconds, 6),
            }
        )
    else:
        events = "1 event" if len(payloads) == 1 else f"{len(payloads):,} events"
        print(f"published {events} on {arguments.topic} through {broker}")
    return 0


async def _publish(arguments: argparse.Namespace, payloads: list[bytes]) -> str:
    import dynatops

    ack = dynatops.Ack[arguments.ack.upper()]
    async with dynatops.connect(arguments.broker, **access_options(arguments)) as client:
        await client.publish_many(arguments.topic, payloads, ack=ack)
        return client.broker


def run_sub(arguments: argparse.Namespace) -> int:
    run_async(_subscribe(arguments))
    return 0


async def _subscribe(arguments: argparse.Namespace) -> None:
    import dynatops

    remaining = arguments.count
    async with dynatops.connect(arguments.broker, **access_options(arguments)) as client:
        async with client.subscribe(*arguments.topics, on_gap=_print_gap) as events:
            if not arguments.json and not arguments.raw:
                names = ", ".join(arguments.topics)
                print(f"subscribed to {names} through {client.broker}", file=sys.stderr, flush=True)
            async for event in events:
                _print_event(event, arguments)
                if remaining is not None:
                    remaining -= 1
                    if remaining == 0:
                        return


def _print_event(event: Event, arguments: argparse.Namespace) -> None:
    if arguments.raw:
        sys.stdout.buffer.write(event.payload + b"\n")
        sys.stdout.buffer.flush()
        return
    text = event.payload.decode("utf-8", "backslashreplace")
    if arguments.json:
        document = {
            "topic": event.topic,
            "payload": text,
            "published_us": event.published_us,
            "term": event.term,
            "seq": event.seq,
        }
        print(json.dumps(document, ensure_ascii=False), flush=True)
    else:
        print(f"{event.topic}  {text}", flush=True)


def _print_gap(gap: Gap) -> None:
    count = f"{gap.count:,} events" if gap.count else "some events, perhaps"
    print(f"dynatops: {gap.topic}: missed {count}: {gap.reason}", file=sys.stderr, flush=True)
