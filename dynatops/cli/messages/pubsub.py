"""`dynatops pub`, `dynatops sub` and `dynatops history`."""

from __future__ import annotations

import argparse
import base64
import contextlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dynatops.cli.access import access_options
from dynatops.cli.common import Commands, add_address, add_command, positive, print_json, run_async
from dynatops.cli.errors import UsageError
from dynatops.cli.messages.attributes import read_attributes, written_value
from dynatops.cli.terminal import visible
from dynatops.kit.strict_json import write_json

if TYPE_CHECKING:
    from dynatops.client.aio import Client
    from dynatops.client.events import Event
    from dynatops.client.subscription import Gap, Subscription
    from dynatops.kit.filters import Filter, Value

_FLUSH_TIMEOUT_S = 2.0


def add_commands(commands: Commands) -> None:
    _add_pub(commands)
    _add_sub(commands)
    _add_history(commands)


def _add_pub(commands: Commands) -> None:
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
        choices=("none", "rp", "replicated", "stored"),
        default="replicated",
        help="wait until events are: handed to the broker (none), stamped by the topic's "
        "rendezvous point (rp), on two brokers (replicated, the default), or on disks of stores as "
        "well (stored)",
    )
    publish.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what subscribers' conditions ask about, as often as wanted; true, false and numbers "
        "are what they look like, all else is text, and so is what is in quotes: 'code=\"007\"'",
    )
    add_address(publish)


def _add_sub(commands: Commands) -> None:
    subscribe = add_command(
        commands,
        "sub",
        run_sub,
        summary="subscribe, and print events as they come",
        description="Subscribe to topics, or patterns of topics, and print events until Ctrl-C.\n"
        "In a pattern `+` stands for one level, a last `#` for all further ones.\n"
        "Control characters are shown as escapes. With --json, `payload` is the exact text, or\n"
        "`payload_base64` the bytes, where they are no text.",
        epilog="""examples:
  dynatops sub 'shop/+/laptops' --where 'price < 1500 and brand startswith "I"'
  dynatops sub 'quake/#' --client-id watch --keep 3600    events wait while it is away""",
    )
    subscribe.add_argument("patterns", nargs="+", metavar="pattern")
    subscribe.add_argument(
        "--where", default="", metavar="CONDITION", help="only events whose attributes meet this"
    )
    _add_range(subscribe, default=None)
    subscribe.add_argument(
        "--client-id", default="", metavar="NAME", help="go on with the session of this name"
    )
    subscribe.add_argument(
        "--keep",
        type=positive(int),
        default=0,
        metavar="SECONDS",
        help="keep the session, and what comes for it, for so long after this command has ended",
    )
    subscribe.add_argument(
        "--stay",
        action="store_true",
        help="remain at this broker, whatever others would suit better; --keep implies it",
    )
    subscribe.add_argument(
        "--clean", action="store_true", help="begin anew, whatever was kept under this name"
    )
    subscribe.add_argument(
        "--count", type=positive(int), metavar="N", help="end after so many events"
    )
    subscribe.add_argument(
        "--raw",
        action="store_true",
        help="print payloads only, each on a line of its own; in a file or pipe, byte for byte",
    )
    add_address(subscribe)


def _add_history(commands: Commands) -> None:
    history = add_command(
        commands,
        "history",
        run_history,
        summary="print what stores have of topics",
        description="Print events that stores keep of a topic, or of a pattern of topics, up to "
        "the newest.\nControl characters are shown as escapes, as `dynatops sub` does.",
        epilog="""examples:
  dynatops history quake/ca --since 1h
  dynatops history 'shop/#' --last 1 --json                the last value of each topic
  dynatops history 'fleet/+' --since 10m --pace original   as far apart as it was published""",
    )
    history.add_argument("pattern")
    history.add_argument(
        "--where", default="", metavar="CONDITION", help="only events whose attributes meet this"
    )
    _add_range(history, default="all")
    history.add_argument(
        "--pace",
        choices=("instant", "original"),
        default="instant",
        help="all at once, or as far apart as they were published (original)",
    )
    history.add_argument(
        "--raw",
        action="store_true",
        help="print payloads only, each on a line of its own; in a file or pipe, byte for byte",
    )
    add_address(history)


def _add_range(command: argparse.ArgumentParser, default: str | None) -> None:
    command.add_argument(
        "--since",
        default=default,
        metavar="TIME",
        help="how far back: all, a length of time such as 90s, 15m, 1h or 7d, or a time such as "
        "2026-11-20T10:00",
    )
    command.add_argument(
        "--last", type=positive(int), default=0, metavar="N", help="of each topic the newest N"
    )


def run_history(arguments: argparse.Namespace) -> int:
    run_async(_print_history(arguments))
    return 0


async def _print_history(arguments: argparse.Namespace) -> None:
    import dynatops

    options = access_options(arguments)
    async with dynatops.connect(arguments.broker, stay=True, **options) as client:
        history = client.history(
            arguments.pattern,
            where=arguments.where,
            since=arguments.since,
            last=arguments.last,
            pace=arguments.pace,
            on_gap=_print_gap,
        )
        async for event in history:
            _print_event(event, arguments)


def run_pub(arguments: argparse.Namespace) -> int:
    if arguments.payload is not None:
        payloads = [arguments.payload.encode("utf-8", "surrogateescape")] * arguments.count
    elif arguments.count != 1:
        raise UsageError("--count goes with a payload")
    else:
        payloads = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    started_s = time.monotonic()
    attributes = read_attributes(arguments.attribute)
    broker = run_async(_publish(arguments, payloads, attributes))
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


async def _publish(
    arguments: argparse.Namespace, payloads: list[bytes], attributes: dict[str, Value]
) -> str:
    import dynatops

    ack = dynatops.Ack[arguments.ack.upper()]
    async with dynatops.connect(arguments.broker, **access_options(arguments)) as client:
        await client.publish_many(arguments.topic, payloads, attributes=attributes, ack=ack)
        return client.broker


def run_sub(arguments: argparse.Namespace) -> int:
    if (arguments.keep or arguments.clean) and not arguments.client_id:
        raise UsageError("--keep and --clean go with --client-id, the name to come back with")
    run_async(_subscribe(arguments))
    return 0


async def _subscribe(arguments: argparse.Namespace) -> None:
    import dynatops
    from dynatops.kit.filters import Filter

    wanted = [Filter.parse(pattern, arguments.where) for pattern in arguments.patterns]
    async with dynatops.connect(
        arguments.broker,
        client_id=arguments.client_id,
        keep_s=arguments.keep,
        # Another command finds the session only at the broker that has it.
        stay=arguments.stay or arguments.keep > 0,
        clean=arguments.clean,
        on_connection=_print_connection,
        **access_options(arguments),
    ) as client:
        former = client.resumed
        events = await client.subscribe(
            *arguments.patterns,
            where=arguments.where,
            on_gap=_print_gap,
            since=arguments.since,
            last=arguments.last,
        )
        for filter_ in former:
            if filter_ not in wanted:
                await _give_up(client, filter_)
        if not arguments.json and not arguments.raw:
            _tell_begin(wanted, former, client.broker)
        try:
            await _print_events(events, arguments)
        finally:
            if arguments.keep:
                # The session stays subscribed. It should know what has been printed.
                await _flush_if_possible(client)
            else:
                await events.close()


async def _give_up(client: Client, filter_: Filter) -> None:
    """The session has a filter that this command does not ask for."""
    events = await client.subscribe(filter_.pattern, where=filter_.where)
    await events.close()


async def _flush_if_possible(client: Client) -> None:
    from dynatops.client.errors import DynatopsError

    with contextlib.suppress(DynatopsError):
        await client.flush(_FLUSH_TIMEOUT_S)


def _tell_begin(wanted: list[Filter], former: list[Filter], broker: str) -> None:
    names = ", ".join(map(str, wanted))
    print(f"subscribed to {names} through {broker}", file=sys.stderr)
    if former:
        kept = ", ".join(str(f) for f in former if f in wanted)
        dropped = ", ".join(str(f) for f in former if f not in wanted)
        found = f"the session was kept, with {kept or 'nothing of this'}"
        print(found + (f"; given up: {dropped}" if dropped else ""), file=sys.stderr)
    sys.stderr.flush()


async def _print_events(events: Subscription, arguments: argparse.Namespace) -> None:
    remaining = arguments.count
    async for event in events:
        _print_event(event, arguments)
        if remaining is not None:
            remaining -= 1
            if remaining == 0:
                return


def _print_event(event: Event, arguments: argparse.Namespace) -> None:
    if arguments.raw and not sys.stdout.isatty():
        sys.stdout.buffer.write(event.payload + b"\n")
        sys.stdout.buffer.flush()
        return
    text = event.payload.decode("utf-8", "backslashreplace")
    if arguments.raw:
        print(text, flush=True)
    elif arguments.json:
        document = {
            "topic": event.topic,
            **_payload_as_json(event.payload),
            "published_us": event.published_us,
            "term": event.term,
            "seq": event.seq,
            "attributes": dict(event.attributes),
        }
        print(write_json(document), flush=True)
    else:
        attributes = f"  [{_written(event.attributes)}]" if event.attributes else ""
        print(visible(f"{event.topic}  {text}{attributes}"), flush=True)


def _payload_as_json(payload: bytes) -> dict[str, str]:
    """Exactly what was published: as text, if it is one."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _written(attributes: Mapping[str, Value]) -> str:
    """As `--attribute` takes them."""
    return " ".join(f"{name}={written_value(value)}" for name, value in attributes.items())


def _print_connection(broker: str, reason: str) -> None:
    text = f"connected again, through {broker}" if broker else f"connection lost: {reason}"
    print(f"dynatops: {text}", file=sys.stderr, flush=True)


def _print_gap(gap: Gap) -> None:
    count = f"{gap.count:,} events" if gap.count else "some events, perhaps"
    print(f"dynatops: {gap.topic}: missed {count}: {gap.reason}", file=sys.stderr, flush=True)
