"""`mobility`: which broker a user goes to next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import functions as fn

from analytics.analytics_settings import DAY_S, late_setting, setting
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobKind, JobOutcome
from analytics.schemas import DOUBLE, INT, LONG, STRING, schema_of
from analytics.transforms import mobility
from dynatops.lake.fields import SESSIONS

_DAY_US = 86_400_000_000
# In names of contexts, for what does not matter.
ANY = "*"

VISITS = schema_of(user_id=STRING, time_us=LONG, broker_id=STRING)
# From where to where users went, and where they had been before.
MOVES = schema_of(day=LONG, hour=INT, previous=STRING, broker_id=STRING, next=STRING, moves=LONG)
NEXT_BROKERS = schema_of(
    broker_id=STRING,
    hour=INT,
    previous=STRING,
    next=STRING,
    moves=LONG,
    probability=DOUBLE,
    rank=INT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MobilitySettings:
    late_s: float = late_setting(3_600.0)
    keep_s: float = setting(28 * DAY_S, "Moves older than this no longer count.", above=True)
    support: int = setting(5, "A context with fewer moves than this is left out.", least=1)
    next_max: int = setting(4, "Brokers named for each context: the most probable.", least=1)


def mobility_job(settings: MobilitySettings) -> Job:
    def settle(intake: Intake) -> Frames:
        clock = intake.clocks[SESSIONS.name]
        visits = intake.state["pending"].unionByName(intake.parts[SESSIONS.name])
        if clock.closed_us is None:
            return {**intake.state, "pending": visits}
        since_us = clock.closed_us - round(settings.keep_s * 1e6)
        complete = visits.filter(fn.col("time_us") < clock.closed_us)
        # Both of what comes out of it need it.
        paths = mobility.paths(complete, intake.state["heads"]).persist()
        moves = mobility.summed(intake.state["moves"].unionByName(mobility.moves_of(paths)))
        return {
            "pending": visits.filter(fn.col("time_us") >= clock.closed_us),
            "heads": mobility.heads_of(paths, since_us),
            "moves": moves.filter(fn.col("day") >= since_us // _DAY_US),
        }

    def results(outcome: JobOutcome) -> Frames:
        table = mobility.next_brokers(
            outcome.state["moves"], support=settings.support, next_max=settings.next_max
        )
        return {"next": table}

    return Job(
        kind=JOB,
        folds=(Fold(SESSIONS, VISITS, mobility.visits, settings.late_s),),
        state={"pending": VISITS, "heads": VISITS, "moves": MOVES},
        settle=settle,
        results=results,
        advice=_advice,
    )


def _advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
    hour = fn.coalesce(fn.col("hour").cast("string"), fn.lit(ANY))
    context = fn.concat_ws(" ", "broker_id", hour, fn.coalesce("previous", fn.lit(ANY)))
    entry = fn.struct(
        "rank", fn.col("next").alias("broker"), fn.round("probability", 6).alias("probability")
    )
    contexts = (
        results["next"]
        .groupBy(context.alias("field"))
        .agg(fn.array_sort(fn.collect_list(entry)).alias("entries"), fn.sum("moves").alias("moves"))
    )
    # The most probable first.
    value = fn.to_json(fn.transform("entries", lambda e: e.dropFields("rank")))
    ordered = contexts.orderBy(fn.col("moves").desc(), "field")
    return Advice(JOB, {"next": ordered.select("field", value.alias("value"))})


JOB = JobKind(
    name="mobility",
    says="which broker a user goes to next",
    settings=MobilitySettings,
    make=mobility_job,
    results=("next",),
    keeps="day, hour, broker, broker before and next; two visits of each user",
    until="`keep_s`",
    advice_tables={"next": "next"},
    advises="`BROKER HOUR PREVIOUS`, with `*` for what does not matter -> "
    '`[{"broker": …, "probability": …}, …]`',
    schedule="37 * * * *",
)
