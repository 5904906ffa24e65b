"""`dynatops demo`: the main job, shown and checked."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dynatops.cli.common import Commands, add_command, positive, print_json, run_async
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.placements.planning import require_manager
from dynatops.cli.terminal import OVER_THE_LINE, write_control

if TYPE_CHECKING:
    from dynatops.local.demos.churn_demo import ChurnResult
    from dynatops.local.demos.publish_demo import DemoResult
    from dynatops.local.demos.reconfigure_demo import ReconfigureResult

BROKERS_MAX = 200
MOVABLE_MIN = 3
_NOT_IN_JSON = ("tree", "topic", "seconds")


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "demo",
        run,
        summary="run a cluster with users and load for a few seconds, and check every event",
        description="Run a cluster in this process, with users who keep changing what they follow "
        "and a steady stream of events; check that nothing was lost, repeated or reordered; draw "
        "one topic's tree. Exit code 1 if anything was.",
    )
    parser.add_argument(
        "--brokers",
        type=positive(int),
        metavar="N",
        help="how many (default: 16; with --reconfigure 32)",
    )
    parser.add_argument(
        "--seconds", type=positive(float), default=15.0, metavar="S", help="of load (default: 15)"
    )
    parser.add_argument(
        "--churn",
        action="store_true",
        help="instead, show broker selection: one workload of users who change their interests "
        "(multimodal, as the paper's), with selection and at random",
    )
    parser.add_argument(
        "--reconfigure",
        action="store_true",
        help="instead, show reconfiguration: a manager watches, a plan is made, approved and "
        "carried out under load; --seconds before it, and as many after",
    )
    parser.add_argument(
        "--users", type=positive(int), default=400, metavar="U", help="with --churn (default: 400)"
    )
    parser.add_argument(
        "--topics",
        type=positive(int),
        default=300,
        metavar="T",
        help="with --churn (default: 300)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the users' whims (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    from dynatops.local.demos.publish_demo import run_demo

    if arguments.churn and arguments.reconfigure:
        raise UsageError("--churn and --reconfigure are two demonstrations: one at a time")
    if arguments.brokers is None:
        arguments.brokers = 32 if arguments.reconfigure else 16
    if arguments.brokers > BROKERS_MAX:
        raise UsageError(f"--brokers {arguments.brokers}: at most {BROKERS_MAX} in one process")
    if arguments.churn:
        return _run_churn(arguments)
    if arguments.reconfigure:
        return _run_reconfigure(arguments)
    quiet = arguments.json
    if not quiet:
        print(f"starting {arguments.brokers} brokers ...", flush=True)
    shows_progress = not quiet and sys.stdout.isatty()
    result: DemoResult = run_async(
        run_demo(
            arguments.brokers,
            arguments.seconds,
            arguments.seed,
            _show_progress if shows_progress else None,
        )
    )
    if quiet:
        document = {k: v for k, v in asdict(result).items() if k not in _NOT_IN_JSON}
        print_json({k: round(v, 3) if isinstance(v, float) else v for k, v in document.items()})
    else:
        _summarise(result)
    return 0 if result.ok else 1


def _run_churn(arguments: argparse.Namespace) -> int:
    from dynatops.local.demos.churn_demo import run_churn_demo
    from experiments.workloads.churn import ChurnSpec

    seconds, shows_progress = arguments.seconds, not arguments.json and sys.stdout.isatty()
    try:
        spec = ChurnSpec(
            users=arguments.users,
            topics=arguments.topics,
            seconds=seconds,
            arrival_s=min(5.0, seconds / 4),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None

    def show(what: str, at_s: float) -> None:
        if shows_progress:
            write_control(OVER_THE_LINE)
            print(f"{what}: {at_s:3.0f} of {seconds:g} s", end="", flush=True)

    if not arguments.json:
        print(
            f"{arguments.brokers} brokers, {spec.users} users, {spec.topics} topics,"
            f" twice {seconds:g} s ...",
            flush=True,
        )
    result: ChurnResult = run_async(run_churn_demo(arguments.brokers, spec, arguments.seed, show))
    if arguments.json:
        print_json(result.as_json())
    else:
        _summarise_churn(result)
    return 0 if result.ok else 1


def _run_reconfigure(arguments: argparse.Namespace) -> int:
    require_manager()
    from dynatops.local.demos.reconfigure_demo import DemoError, run_reconfigure_demo

    if arguments.brokers < MOVABLE_MIN:
        raise UsageError(f"--brokers {arguments.brokers}: to move some, there must be more")
    shows_progress = not arguments.json and sys.stdout.isatty()

    def show(what: str, at_s: float) -> None:
        if shows_progress:
            write_control(OVER_THE_LINE)
            print(f"{at_s:4.0f} s   {what}", end="", flush=True)

    # That a manager leads, and in the end does not, is no news here.
    logging.getLogger("reconfig_manager").setLevel(logging.ERROR)
    if not arguments.json:
        print(f"{arguments.brokers} brokers, a manager, live load ...", flush=True)
    try:
        result = run_async(
            run_reconfigure_demo(arguments.brokers, arguments.seconds, arguments.seed, show)
        )
    except DemoError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print_json(result.as_json())
    else:
        _summarise_reconfiguration(result)
    return 0 if result.ok else 1


def _summarise_reconfiguration(result: ReconfigureResult) -> None:
    write_control(OVER_THE_LINE)
    before, after, balance, plan = result.before, result.after, result.balance, result.plan
    figures = result.as_json()
    print(
        f"plan {plan['id']}: {len(plan['moves'])} of {result.brokers} brokers moved,"
        f" {plan['state'].lower()}; clients of 99 of 100 brokers waited"
        f" {figures['pause_ms_p99']:,.0f} ms at most\n"
    )
    print(f"  {'':<22}{'before':>11}{'after':>11}")
    for name, old, new, reduction in (
        ("relays an event", before.relays_per_event, after.relays_per_event, "relay_reduction"),
        ("hops to a subscriber", before.mean_hops, after.mean_hops, "hop_reduction"),
    ):
        print(f"  {name:<22}{old:>11.2f}{new:>11.2f}{-figures[reduction]:>11.0%}")
    print(f"\n  {'':<22}{'predicted':>11}{'measured':>11}")
    for name, predicted, measured, note in (
        ("messages saved", "predicted_benefit", "measured_benefit", "an hour"),
        ("messages to get there", "control_messages_bound", "control_messages", "a bound: eq. 11"),
    ):
        print(f"  {name:<22}{figures[predicted]:>11,.0f}{figures[measured]:>11,.0f}   {note}")
    print()
    for name in ("expected", "delivered", "lost", "duplicated", "reordered"):
        print(f"  {name:<22}{getattr(balance, name):>11,}")
    if not result.ok:
        print(f"SOMETHING WENT WRONG: {plan['note']}; see lost, duplicated and reordered above.")


def _summarise_churn(result: ChurnResult) -> None:
    write_control(OVER_THE_LINE)
    mine, other = result.selected, result.random
    rows = [
        ("broker subscription changes", mine.broker_subscription_changes,
         other.broker_subscription_changes),
        ("subscriptions a broker, mean", round(mine.load_mean), round(other.load_mean)),
        ("standard deviation of it", round(mine.load_std, 1), round(other.load_std, 1)),
        ("users sent elsewhere", mine.moves, other.moves),
        ("messages to change trees", mine.tree_messages, other.tree_messages),
        ("summaries received", mine.summary_messages, other.summary_messages),
        ("events published", mine.balance.published, other.balance.published),
        ("deliveries owed", mine.balance.expected, other.balance.expected),
        ("delivered of these", mine.balance.delivered, other.balance.delivered),
        ("lost", mine.balance.lost, other.balance.lost),
        ("duplicated", mine.balance.duplicated, other.balance.duplicated),
        ("reordered", mine.balance.reordered, other.balance.reordered),
    ]  # fmt: skip
    print(f"  {'':<30}{'selection':>12}{'random':>12}")
    for name, selected, random in rows:
        print(f"  {name:<30}{selected:>12,}{random:>12,}")
    print()
    print(
        f"Selection avoids {result.reduction:.0%} of the brokers' subscription changes, and"
        f" {result.management_reduction:.0%} of the messages\nfor managing subscriptions, summaries"
        " included. Published is the same; owed is what was published after a\nsubscription was"
        " confirmed, which is sooner or later."
    )
    if not result.ok:
        print("SOMETHING WENT WRONG: see lost, duplicated and reordered above.")


def _show_progress(seconds: float, published: int, delivered: int) -> None:
    print(
        f"\r{seconds:4.0f} s   {published:,} events published, {delivered:,} deliveries",
        end="",
        flush=True,
    )


def _summarise(result: DemoResult) -> None:
    from dynatops.cli.brokers.inspect import describe_tree

    write_control(OVER_THE_LINE)
    overhead = result.relay_messages / result.tree_messages if result.tree_messages else 0.0
    stage = (
        f"{result.brokers} brokers, ready after {result.ready_s:.2f} s;"
        f" {result.users} users, {result.topics} topics,"
        f" {result.subscription_changes} changes of mind in {result.seconds:g} s"
    )
    lines = [
        stage,
        "",
        f"  published    {result.published:>9,} events",
        f"  delivered    {result.delivered:>9,} of {result.expected:,} owed",
        f"  lost         {result.lost:>9,}",
        f"  duplicated   {result.duplicated:>9,}",
        f"  reordered    {result.reordered:>9,}",
        f"  latency      {result.p50_ms:>9.2f} ms median, {result.p99_ms:.2f} ms for 99 of 100",
        f"  messages     {result.tree_messages:>9,} along trees, of which {overhead:.0%} by relays",
        "",
        *describe_tree(result.topic, result.tree),
        "",
    ]
    print("\n".join(lines))
    if result.ok:
        print("Every event arrived once, in order. Next: dynatops up, and see dynatops --help.")
    else:
        print("SOMETHING WENT WRONG: see lost, duplicated and reordered above.")
