"""`mobility`: which broker a user goes to next."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as fn

from analytics import schemas
from analytics.analytics_settings import MobilitySettings
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobOutcome
from analytics.transforms import mobility
from dynatops.kit.advice.keys import MOBILITY_KEY
from dynatops.lake.fields import SESSIONS

NAME = "mobility"
_DAY_US = 86_400_000_000
# In names of contexts, for what does not matter.
ANY = "*"


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
        name=NAME,
        folds=(Fold(SESSIONS, schemas.VISITS, mobility.visits, settings.late_s),),
        state={"pending": schemas.VISITS, "heads": schemas.VISITS, "moves": schemas.MOVES},
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
    return Advice(MOBILITY_KEY, {"next": ordered.select("field", value.alias("value"))})
