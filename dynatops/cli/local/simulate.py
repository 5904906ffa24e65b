"""`dynatops simulate`: run seeds, print verdicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import Commands, add_command, positive, print_json
from dynatops.cli.errors import UsageError
from dynatops.cli.placements.planning import require_solvers
from dynatops.cli.terminal import OVER_THE_LINE, write_control

if TYPE_CHECKING:
    from simulator.growing import Growth
    from simulator.run import Verdict

# Of what a phase sends, kinds with less than this share are not named.
_SHARE_LEAST = 0.05
# What a verdict counts of its routing, in words.
_COUNTED = {
    "takeovers": "take-overs",
    "merges": "histories joined",
    "repairs": "repairs",
    "gaps": "gaps told",
    "topologies": "versions of the topology",
    "stored": "events stored",
    "unstored": "refused as not stored",
    "betrayals": "betrayals of disks",
}


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "simulate",
        run,
        summary="run the brokers' code in virtual time on a network that misbehaves",
        description="Run brokers and clients in virtual time, with a network that loses, doubles "
        "and reorders, links that break, partitions, crashes, restarts, joins and departures, "
        "all from one seed; then check that the ring and the trees are right and that no "
        "session lost, repeated or reordered an event. Exit code 1 if anything was violated.",
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument(
        "--seeds", type=positive(int), default=1, metavar="N", help="how many seeds (default: 1)"
    )
    parser.add_argument(
        "--brokers",
        type=positive(int),
        metavar="B",
        help="brokers at the start (default: 8; with --reconfigure 6; with --quiet 100)",
    )
    parser.add_argument(
        "--minutes", type=positive(float), default=2.0, metavar="M", help="of virtual time"
    )
    parser.add_argument(
        "--jobs", type=positive(int), default=1, metavar="J", help="seeds run side by side"
    )
    parser.add_argument(
        "--reconfigure",
        action="store_true",
        help="with two managers that move brokers, and a mishap at a random point of each plan",
    )
    parser.add_argument(
        "--routing",
        choices=("rendezvous", "forwarding"),
        default="rendezvous",
        help="how events travel: along a ring, or in a tree of brokers, which changes while it "
        "runs; of a tree eight seeds in a row are all its modes",
    )
    parser.add_argument(
        "--stores",
        action="store_true",
        help="with brokers that keep events on disks, which tear writes, lie about syncs, flip "
        "bits and are full, and publishers that want them stored",
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="nothing breaks: how much joining takes, rest, trees, and one reconfiguration",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write everything that happens, one seed only"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.minutes < 1.0:
        raise UsageError("--minutes: at least 1, the last three quarters of which are quiet")
    if arguments.trace and arguments.seeds > 1:
        raise UsageError("--trace goes with one seed")
    if arguments.routing == "forwarding" and (arguments.quiet or arguments.reconfigure):
        raise UsageError("--routing forwarding goes with neither --quiet nor --reconfigure")
    if arguments.stores and (arguments.quiet or arguments.reconfigure):
        raise UsageError("--stores goes with neither --quiet nor --reconfigure")
    if arguments.quiet:
        return _run_quiet(arguments)
    verdicts = _run_one(arguments) if arguments.seeds == 1 else _run_many(arguments)
    failed = [verdict for verdict in verdicts if not verdict.ok]
    if arguments.json:
        print_json([_as_json(verdict) for verdict in verdicts])
    else:
        _summarise(verdicts, failed)
    return 1 if failed else 0


def _run_quiet(arguments: argparse.Namespace) -> int:
    if arguments.seeds > 1 or arguments.reconfigure or arguments.trace:
        raise UsageError("--quiet goes with one seed, and neither --reconfigure nor --trace")
    require_solvers()
    from simulator.growing import StuckError, grow

    try:
        growth = grow(arguments.brokers or 100, arguments.seed)
    except StuckError as stuck:
        print(f"seed {arguments.seed}: {stuck}", file=sys.stderr)
        return 1
    if arguments.json:
        print_json(asdict(growth))
    else:
        _print_growth(growth)
    return 0


def _print_growth(growth: Growth) -> None:
    print(f"seed {growth.seed}: {growth.brokers} brokers, nothing breaks")
    print(f"{'':10}{'seconds':>8}{'frames':>12}{'messages':>12}{'a broker':>10}{'beside rest':>13}")
    for phase in growth.phases:
        beside = growth.beside_rest(phase) / growth.brokers
        said = "" if phase.name == "rest" else f"{beside:13,.1f}"
        print(
            f"  {phase.name:8}{phase.seconds:8.1f}{phase.frames:12,}{phase.total:12,}"
            f"{phase.total / growth.brokers:10,.1f}{said}"
        )
        named = sorted(phase.messages.items(), key=lambda item: -item[1])
        kinds = (f"{k} {n:,}" for k, n in named if n >= _SHARE_LEAST * phase.total)
        print(f"{'':10}{', '.join(kinds)}")
    print(f"  the manager's plan: {growth.plan_messages:,} messages")
    processor_s = sum(phase.processor_s for phase in growth.phases)
    print(f"  {processor_s:,.0f} s of the processor, {growth.memory_mib:,.0f} MiB")
    print(f"  trace   {growth.trace[:16]}")


def _simulation(arguments: argparse.Namespace) -> Callable[..., Verdict]:
    """Called with a seed, and where the trace goes, if anywhere."""
    if arguments.reconfigure:
        require_solvers()
        from simulator.reconfiguring import simulate_reconfiguration

        simulation: Callable[..., Verdict] = simulate_reconfiguration
    else:
        from simulator.run import simulate

        simulation = partial(simulate, routing=arguments.routing, stores=arguments.stores)
    brokers = arguments.brokers or (6 if arguments.reconfigure else 8)
    return partial(simulation, brokers=brokers, minutes=arguments.minutes)


def _run_one(arguments: argparse.Namespace) -> list[Verdict]:
    with Path(arguments.trace).open("w") if arguments.trace else nullcontext() as out:
        return [_simulation(arguments)(arguments.seed, out=out)]


def _run_many(arguments: argparse.Namespace) -> list[Verdict]:
    work = _simulation(arguments)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(work, seeds, chunksize=4):
            verdicts.append(verdict)
            if not verdict.ok and not arguments.json:
                _print_failure(verdict)
            if sys.stderr.isatty():
                write_control(OVER_THE_LINE, sys.stderr)
                print(f"{len(verdicts)} of {len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return verdicts


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "seed": verdict.seed,
        "ok": verdict.ok,
        "violations": list(verdict.violations),
        "faults": list(verdict.faults),
        "published": verdict.published,
        "delivered": verdict.delivered,
        "frames": verdict.frames,
        "frames_lost": verdict.frames_lost,
        **verdict.counted,
        "trace": verdict.trace,
        "command": verdict.command,
    }


def _print_failure(verdict: Verdict) -> None:
    print(f"seed {verdict.seed} violates:")
    for violation in verdict.violations:
        print(f"  {violation}")
    print(f"  again: {verdict.command} --trace trace.txt")


def _summarise(verdicts: list[Verdict], failed: list[Verdict]) -> None:
    if len(verdicts) == 1:
        verdict = verdicts[0]
        print(
            f"seed {verdict.seed}: {verdict.brokers} brokers, {verdict.minutes:g} virtual minutes"
        )
        print(f"  faults     {'; '.join(verdict.faults) or 'none'}")
        print(f"  network    {verdict.frames:,} frames, {verdict.frames_lost:,} lost")
        counted = (f"{count} {_COUNTED[name]}" for name, count in verdict.counted.items())
        what = "tree" if "topologies" in verdict.counted else "topics"
        print(f"  {what:10} {', '.join(counted)}")
        print(f"  events     {verdict.published:,} published, {verdict.delivered:,} delivered")
        print(f"  trace      {verdict.trace[:16]}")
        if verdict.ok:
            print("  verdict    no violation")
        else:
            _print_failure(verdict)
        return
    delivered = sum(verdict.delivered for verdict in verdicts)
    faults = sum(len(verdict.faults) for verdict in verdicts)
    print(
        f"{len(verdicts)} seeds, {faults:,} faults, {delivered:,} deliveries: "
        + (f"{len(failed)} seeds violate something" if failed else "no violation")
    )
