"""A plan as a person wants it: what moves, what it saves, what it costs, why, what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dynatops.cli.durations import brief_duration

Plan = Mapping[str, Any]
_MOVES_SHOWN = 10
_NAME_WIDTH = 12
_TOPICS_SHOWN = 3


def when(seconds: float) -> str:
    """In this place's own time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.1f}%" if before else ""


def describe_plan(plan: Plan, *, moves_shown: int = _MOVES_SHOWN) -> Iterator[str]:
    yield f"plan {plan['id']}: {headline(plan)}"
    if plan.get("stores") is not None:
        yield from _rows(_asked(plan))
        yield from describe_stores_part(plan["stores"], moves_shown)
        yield from _flags(plan)
        return
    yield from _rows(_facts(plan))
    if plan["prediction"] is not None:
        yield ""
        yield from _cost(plan)
    if plan["moves"]:
        yield ""
        yield from _moves(plan, moves_shown)
    if plan["execution"] is not None:
        yield ""
        yield from _execution(plan["execution"])
    if plan["measurement"] is not None:
        yield ""
        yield from _measured(plan["measurement"])
    yield from _flags(plan)


def _flags(plan: Plan) -> Iterator[str]:
    if plan["flags"]:
        yield ""
        yield f"look at: {', '.join(flag.replace('_', ' ') for flag in plan['flags'])}"


def is_computing(plan: Plan) -> bool:
    part = plan.get("stores") or plan
    return plan["state"] == "PROPOSED" and part["prediction"] is None


def measurement_of(plan: Plan) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = (plan.get("stores") or plan)["measurement"]
    return found


def headline(plan: Plan) -> str:
    state, phase = str(plan["state"]), (plan.get("stores") or plan)["phase"]
    if is_computing(plan):
        return "PROPOSED, being computed"
    if state == "EXECUTING" and phase:
        return f"EXECUTING, {str(phase).lower().replace('_', ' ')}"
    return state


def _rows(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, text in rows:
        yield f"  {name:<{_NAME_WIDTH}} {text}"


def _asked(plan: Plan) -> list[tuple[str, str]]:
    asked = f"by {plan['actor'] or 'the manager itself'}, {when(plan['created_s'])}"
    rows = [("asked", asked)]
    if plan["reason"]:
        rows.append(("for", plan["reason"]))
    if plan["approved_by"]:
        rows.append(("approved", f"by {plan['approved_by']}"))
    found = (plan.get("stores") or plan)["prediction"]
    note = plan["note"]
    if found is not None:
        # The decision has a line of its own.
        note = note.removeprefix(found["explanation"]).removeprefix("; ")
    if note:
        rows.append(("state", note))
    if found is not None:
        rows.append(("decision", found["explanation"]))
    return rows


def _facts(plan: Plan) -> list[tuple[str, str]]:
    model, options = plan["model"], plan["options"]
    rows, found = _asked(plan), plan["prediction"]
    if found is not None:
        ended = "" if found["finished"] else ", cut off by its limits"
        rows.append(("found by", f"{found['algorithm']} in {found['seconds']:.2f} s{ended}"))
    else:
        rows.append(("algorithm", f"{options['algorithm']}, {options['budget_s']:g} s at most"))
    known = (
        f"{model['completeness']:.0%} of {model['brokers']:,} brokers heard, "
        f"{model['topics']:,} topics, {model['events_per_s']:,.1f} events/s"
    )
    rows += [("known", known), ("rates", rates_text(model))]
    rows += [("", note) for note in model["notes"]]
    return rows


def delay_unit(model: Mapping[str, Any]) -> str:
    """Of figures of delay: nothing for hops, else what one of their units is."""
    mean_ms = model.get("rtt_mean_ms")
    return f" of {mean_ms:,.1f} ms" if mean_ms is not None else ""


def rates_text(model: Mapping[str, Any]) -> str:
    """Where the rates of a model are from."""
    if model["rates_from"] == "advice":
        age_s = model.get("rates_age_s")
        ago = f", {brief_duration(age_s)} ago" if age_s is not None else ""
        return f"advice: computed by Spark{ago}"
    return "as brokers report them"


def _cost(plan: Plan) -> Iterator[str]:
    found = plan["prediction"]
    before, after = found["cost_before"], found["cost_after"]
    unit = delay_unit(plan["model"])
    rows = [
        (name, f"{before[key]:,.0f}", f"{after[key]:,.0f}", change(before[key], after[key]))
        for name, key in (
            ("relay messages", "overhead"),
            (f"delay{unit}", "delay"),
            ("total", "total"),
        )
    ]
    period = brief_duration(found["t_free_s"])
    yield from table((f"cost in {period}", "before", "after", ""), rows)
    yield f"benefit {found['benefit']:,.0f} messages in {period}, price {found['moving_cost']:,.0f}"


def _moves(plan: Plan, shown: int) -> Iterator[str]:
    moves = plan["moves"]
    verb = "moved" if plan["state"] == "COMMITTED" else "to move"
    yield f"{len(moves):,} of {plan['base']['brokers']:,} brokers {verb}"
    for move in moves[:shown]:
        yield f"  {move['broker_id']}: {move['from_node']} -> {move['to_node']}"
    if len(moves) > shown:
        yield f"  and {len(moves) - shown:,} more; --json has them all"


def _execution(execution: Mapping[str, Any]) -> Iterator[str]:
    ended_s = execution["ended_s"]
    took = f"took {ended_s - execution['started_s']:.2f} s" if ended_s else "going on"
    rows = [("executed", f"epoch {execution['epoch']}, led by {execution['manager']}; {took}")]
    if execution["failure"]:
        rows.append(("rolled back", execution["failure"]))
    paused = execution["paused"]
    if paused["brokers"]:
        spread = (
            f"mean {1000 * paused['mean_s']:,.0f} ms, 99% {1000 * paused['p99_s']:,.0f} ms, "
            f"longest {1000 * paused['max_s']:,.0f} ms"
        )
        rows.append(("paused", f"{paused['brokers']:,} brokers, {spread}"))
    steps = execution["messages"]
    if steps:
        total = sum(step["manager"] + step["brokers"] for step in steps.values())
        parts = (f"{name} {step['manager'] + step['brokers']:,}" for name, step in steps.items())
        rows.append(("messages", f"{total:,}: {', '.join(parts)}"))
    if execution["stragglers"]:
        rows.append(("stragglers", ", ".join(execution["stragglers"])))
    return _rows(rows)


def _measured(measurement: Mapping[str, Any]) -> Iterator[str]:
    before, after = measurement["before"], measurement["after"]
    rows = [
        (
            "benefit",
            f"{measurement['predicted_benefit']:,.0f}",
            f"{measurement['measured_benefit']:,.0f}",
            f"{measurement['benefit_ratio']:.2f}",
        ),
        (
            "price",
            f"{measurement['predicted_messages']:,.0f}",
            f"{measurement['measured_messages']:,}",
            f"{measurement['messages_ratio']:.2f}",
        ),
    ]
    yield from table(("messages", "predicted", "measured", "ratio"), rows)
    yield ""
    counted = [
        (name, f"{before[key]:.3f}", f"{after[key]:.3f}", change(before[key], after[key]))
        for name, key in (
            ("relays", "relays_per_event"),
            ("hops", "hops_per_event"),
            *((("way, ms", "way_ms_per_event"),) if before.get("way_ms_per_event") else ()),
            ("cost", "cost_per_event"),
        )
    ]
    yield from table(("counted per event", "before", "after", ""), counted)


def describe_stores_part(part: Mapping[str, Any], changes_shown: int) -> Iterator[str]:
    """What stores are to keep, and what became of that."""
    facts = part["facts"]
    known = (
        f"{facts['requests_per_s']:,.2f} requests/s for {facts['topics']:,} topics, "
        f"{facts['candidates']:,} brokers that may keep them"
    )
    source = {"rates_from": facts["requests_from"], "rates_age_s": facts["requests_age_s"]}
    rows = [("planner", part["options"]["planner"]), ("known", known)]
    rows.append(("requests", rates_text(source)))
    yield from _rows([*rows, *(("", note) for note in facts["notes"])])
    if part["prediction"] is not None:
        yield ""
        yield from _traffic(part["prediction"])
    if part["changes"]:
        yield ""
        yield from _changes(part["changes"], changes_shown)
    if part["execution"] is not None:
        yield ""
        yield from _store_execution(part["execution"])
    if part["measurement"] is not None:
        yield ""
        yield from _answers(part["measurement"])


def _traffic(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (name, f"{found[before]:,.2f}", f"{found[after]:,.2f}", change(found[before], found[after]))
        for name, before, after in (
            ("requests x hops", "traffic_before", "traffic_after"),
            ("hops a request", "hops_before", "hops_after"),
            ("without a store", "unserved_before", "unserved_after"),
        )
    ]
    yield from table(("in a second", "before", "after", ""), rows)
    yield f"benefit {found['benefit']:,.0f} events x hops, transfer {found['transfer']:,.0f}"
    if found["missing"]:
        yield f"{found['missing']:,} replicas found no store with room"


def _changes(changes: Sequence[Mapping[str, Any]], shown: int) -> Iterator[str]:
    yield f"{len(changes):,} stores change"
    for each in changes[:shown]:
        parts = [
            f"{sign}{len(topics):,} ({_some(topics)})"
            for sign, topics in (("+", each["begins"]), ("-", each["ends"]))
            if topics
        ]
        yield f"  {each['broker_id']}: {', '.join(parts)}"
    if len(changes) > shown:
        yield f"  and {len(changes) - shown:,} more; --json has them all"


def _some(topics: Sequence[str]) -> str:
    more = ", …" if len(topics) > _TOPICS_SHOWN else ""
    return ", ".join(topics[:_TOPICS_SHOWN]) + more


def _store_execution(execution: Mapping[str, Any]) -> Iterator[str]:
    ended_s = execution["ended_s"]
    took = f"took {ended_s - execution['started_s']:.2f} s" if ended_s else "going on"
    rows = [("executed", f"assignment {execution['epoch']}, led by {execution['manager']}; {took}")]
    if execution["failure"]:
        rows.append(("rolled back", execution["failure"]))
    rows.append(("messages", f"{execution['messages']:,}"))
    if execution["stragglers"]:
        rows.append(("stragglers", ", ".join(execution["stragglers"])))
    return _rows(rows)


def _answers(measurement: Mapping[str, Any]) -> Iterator[str]:
    before, after = measurement["before"], measurement["after"]
    predicted, measured = measurement["predicted_hops_saved"], measurement["measured_hops_saved"]
    rows = [("hops saved", f"{predicted:.2f}", f"{measured:.2f}")]
    yield from table(("a request", "predicted", "measured"), rows)
    counted = [
        ("requests", f"{before['requests']:,}", f"{after['requests']:,}"),
        ("hops", f"{before['hops_per_request']:.2f}", f"{after['hops_per_request']:.2f}"),
    ]
    yield from table(("counted", "before", "after"), counted)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, figures to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for i, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
        if i == 0:
            yield "  ".join("-" * width for width in widths if width)
