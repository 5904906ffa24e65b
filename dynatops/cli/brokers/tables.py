"""`dynatops tables`: what a broker in a tree knows of who wants what."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dynatops.cli.access import add_access
from dynatops.cli.common import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    Commands,
    add_command,
    ask_network,
    positive,
    print_json,
)
from dynatops.cli.errors import UsageError
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from dynatops.v1.client_pb2 import Filter
    from dynatops.v1.inspection_pb2 import FilterList, HolderTable, ListedFilter, TablesReport

_SHOWN = 20


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "tables",
        run,
        summary="show the subscription tables of a broker in a tree",
        description="Show what a broker in a tree knows of who wants what: the filters of its own "
        "clients and of each neighbour, what it has told each neighbour of them, and what it has "
        "kept back, because something that was told covers it.",
    )
    parser.add_argument(
        "broker",
        metavar="HOST:PORT",
        nargs="?",
        default=os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS),
        help=f"the broker (default: ${ADDRESS_VARIABLE}, or %(default)s)",
    )
    parser.add_argument(
        "--filter",
        default="",
        metavar="PATTERN",
        help="only filters that some event could match together with this one: those that cover "
        "it, that it covers, and that overlap it. Of a topic, all that match it",
    )
    parser.add_argument(
        "--where", default="", metavar="CONDITION", help="the condition of that filter"
    )
    parser.add_argument(
        "--limit",
        type=positive(int),
        default=_SHOWN,
        metavar="N",
        help="filters of each list to show, at most 1,000; the rest is counted (default: "
        "%(default)s)",
    )
    add_access(parser)


def run(arguments: argparse.Namespace) -> int:
    address = _one_address(arguments)
    about = _about(arguments)
    report: TablesReport = ask_network(
        arguments, "tables", address, arguments.filter, arguments.where, arguments.limit
    )
    if arguments.json:
        print_json(_as_json(report))
        return 0
    for line in describe(report, address, about):
        print(visible(line))
    return 0


def _one_address(arguments: argparse.Namespace) -> str:
    address = str(arguments.broker)
    if "," in address:
        raise UsageError(f"{address}: the tables of one broker are shown; name one")
    return address


def _about(arguments: argparse.Namespace) -> str:
    """What is asked about, for people; raises UsageError if it is no filter."""
    from dynatops.cli.errors import explain_filter
    from dynatops.kit.filters import Filter, FilterError

    if arguments.where and not arguments.filter:
        raise UsageError("--where is the condition of --filter: name that, too, such as --filter #")
    if not arguments.filter:
        return ""
    try:
        return str(Filter.parse(arguments.filter, arguments.where))
    except FilterError as error:
        raise UsageError(f"--filter: {explain_filter(error)}") from None


# ---- for people ----------------------------------------------------------------------------------


def describe(report: TablesReport, address: str, about: str) -> list[str]:
    """All as lines."""
    ways = ["covering"] * report.covering + ["advertisements"] * report.advertisements
    with_ways = f", with {' and '.join(ways)}" if ways else ""
    lines = [f"{report.broker_id} at {address}, {report.mode}{with_ways}"]
    if about:
        lines.append(f"only what meets {about}")
    lines += ["", f"wanted here: {_counted(report.own, about)}", *_listed(report.own, about)]
    for holder in report.holders:
        lines += ["", *_describe_holder(holder, report, about)]
    return lines


def _describe_holder(holder: HolderTable, report: TablesReport, about: str) -> list[str]:
    upwards = ", towards the root" if holder.broker_id == report.parent else ""
    lines = [f"{holder.broker_id}{upwards}"]
    lines.append(f"  wants {_counted(holder.wanted, about)}")
    lines += _listed(holder.wanted, about, "  ")
    if not holder.is_asked:
        lines.append("  is told nothing: it sends up every event")
        return lines
    lines.append(f"  was told {_counted(holder.told, about)}")
    lines += _listed(holder.told, about, "  ")
    if holder.kept_back.count:
        lines.append(f"  was not told {_counted(holder.kept_back, about)}")
        lines += _listed(holder.kept_back, about, "  ", are_kept_back=True)
    if report.advertisements:
        lines.append(f"  was told {_plural(holder.advertisements_told, 'advertisement')}")
    return lines


def _counted(filters: FilterList, about: str) -> str:
    if about and filters.count:
        return f"{filters.chosen:,} of {_plural(filters.count, 'filter')}"
    return _plural(filters.count, "filter") if filters.count else "nothing"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _listed(
    filters: FilterList, about: str, indent: str = "", *, are_kept_back: bool = False
) -> list[str]:
    lines = []
    for listed in filters.filters:
        remarks = [_relation_of(listed)] if about else []
        if are_kept_back:
            remarks.append(_why_kept_back(listed))
        said = f"    ({'; '.join(remarks)})" if remarks else ""
        lines.append(f"{indent}  {_written(listed.filter)}{said}")
    more = filters.chosen - len(filters.filters)
    return [*lines, f"{indent}  … and {more:,} more"] if more else lines


def _written(wanted: Filter) -> str:
    return f"{wanted.pattern} where {wanted.where}" if wanted.where else wanted.pattern


def _why_kept_back(listed: ListedFilter) -> str:
    if listed.HasField("covered_by"):
        return f"covered by {_written(listed.covered_by)}"
    return "nobody there advertises what meets it"


def _relation_of(listed: ListedFilter) -> str:
    from dynatops.v1.inspection_pb2 import (
        FILTER_RELATION_COVERED,
        FILTER_RELATION_COVERS,
        FILTER_RELATION_SAME,
    )

    words = {
        FILTER_RELATION_SAME: "the same",
        FILTER_RELATION_COVERS: "covers it",
        FILTER_RELATION_COVERED: "is covered by it",
    }
    return words.get(listed.relation, "overlaps it")


# ---- for programs --------------------------------------------------------------------------------


def _as_json(report: TablesReport) -> dict[str, Any]:
    return {
        "broker_id": report.broker_id,
        "mode": report.mode,
        "covering": report.covering,
        "advertisements": report.advertisements,
        "parent": report.parent or None,
        "own": _list_as_json(report.own),
        "neighbours": {
            holder.broker_id: {
                "wanted": _list_as_json(holder.wanted),
                "told": _list_as_json(holder.told) if holder.is_asked else None,
                "kept_back": _list_as_json(holder.kept_back) if holder.is_asked else None,
                "advertisements_told": holder.advertisements_told,
            }
            for holder in report.holders
        },
    }


def _list_as_json(filters: FilterList) -> dict[str, Any]:
    return {
        "count": filters.count,
        "chosen": filters.chosen,
        "filters": [_filter_as_json(listed) for listed in filters.filters],
    }


def _filter_as_json(listed: ListedFilter) -> dict[str, Any]:
    from dynatops.v1.inspection_pb2 import FilterRelation

    document: dict[str, Any] = _parts(listed.filter)
    if listed.relation:
        name = FilterRelation.Name(listed.relation)
        document["relation"] = name.removeprefix("FILTER_RELATION_").lower()
    if listed.HasField("covered_by"):
        document["covered_by"] = _parts(listed.covered_by)
    return document


def _parts(wanted: Filter) -> dict[str, Any]:
    return {"pattern": wanted.pattern, "where": wanted.where or None}
