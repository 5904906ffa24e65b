"""Runs and claims of the Mobility paper: what brokers in a tree send while users come and go."""

from __future__ import annotations

from itertools import product

from experiments.figures.figure import Claim, FigureTable, Judgement, RunSpec
from experiments.figures.judging import by, judge_count, judge_most, less_by, percent
from overlay.forwarding.topology import TreeMode

USERS = (200, 400, 600, 800)
HOURS = 8.0
# What tables do: their rules for covering and advertisements.
TABLES = {
    "plain": (False, False),
    "covering": (True, False),
    "advertisements": (False, True),
    "both": (True, True),
}
_REDUCING = {
    "covering": "covering reduces",
    "advertisements": "advertisements reduce",
    "both": "both together reduce",
}
_SCENARIO = (
    f"Random scenario, {HOURS:g} hours, with all 40 subscriptions: in the paper users of that "
    "scenario have one of the 27 that nothing covers."
)
_TAKEN = (
    "Taken where the paper is silent: who comes to the edge of the city turns round; a user begins "
    "connected, in the middle of such a period. What users miss is not sent after them."
)
_COUNTED = (
    "A message is a filter or an advertisement told or taken back, or an event, once for each hop. "
    "Below full scale there are fewer users, and the same brokers."
)
NOTES = (_SCENARIO, _TAKEN, _COUNTED)


def covering_runs(scale: float) -> list[RunSpec]:
    return [
        RunSpec.of("mobility-tables", users=users, mode=mode.value, tables=tables)
        for mode, tables, users in product(TreeMode, TABLES, USERS)
    ]


def _told_less(tables: str, mode: TreeMode, text: str) -> Claim:
    """At every number of users, less than with plain tables."""

    def judge(table: FigureTable) -> Judgement:
        gains = []
        for users in USERS:
            ours, plain = (
                table.one(users=users, mode=mode.value, tables=name) for name in (tables, "plain")
            )
            gains.append(less_by(ours["told"], plain["told"]))
        found = sum(gain > 0 for gain in gains)
        reason = f"fewer at {found} of {len(gains)} numbers of users"
        return judge_count(found, len(gains), f"{by(min(gains))} to {by(max(gains))}", reason)

    return Claim(text, "fewer", judge)


def negligible(table: FigureTable) -> Judgement:
    """Of all messages."""
    effects = [
        less_by(
            table.one(users=users, mode=mode.value, tables=tables)["messages"],
            table.one(users=users, mode=mode.value, tables="plain")["messages"],
        )
        for mode, tables, users in product(TreeMode, TABLES, USERS)
        if tables != "plain"
    ]
    most = max(map(abs, effects))
    share = max(row["told"] / row["messages"] for row in table.rows)
    text = f"{by(max(effects))} to {by(min(effects))}"
    reason = (
        f"'negligible' is taken as 5% at most; what tables tell is {percent(share)} of all "
        "messages where it is most"
    )
    return judge_most(most, 0.05, 0.1, text, reason)


def claims() -> tuple[Claim, ...]:
    return (
        Claim(
            "the overall effect of covering and advertisements is negligible",
            "<= 5% of messages",
            negligible,
        ),
        *(
            _told_less(tables, mode, f"{text} what tables tell ({mode.value})")
            for mode, (tables, text) in product(TreeMode, _REDUCING.items())
        ),
    )
