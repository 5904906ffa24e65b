"""`demand`: who asks for the past of which topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import functions as fn

from analytics.analytics_settings import DAY_S, late_setting, setting
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobKind, JobOutcome
from analytics.schemas import DOUBLE, INT, LONG, STRING, schema_of
from analytics.transforms import demand
from dynatops.lake.fields import REQUESTS

HOUR_REQUESTS = schema_of(hour=LONG, broker_id=STRING, topic=STRING, requests=LONG)
BROKER_DEMAND = schema_of(
    broker_id=STRING, topic=STRING, requests=LONG, rate=DOUBLE, share=DOUBLE, rank=INT
)
TOPIC_DEMAND = schema_of(
    topic=STRING,
    requests=LONG,
    rate=DOUBLE,
    popularity=DOUBLE,
    locality=DOUBLE,
    brokers=LONG,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSettings:
    late_s: float = late_setting(3_600.0)
    keep_s: float = setting(7 * DAY_S, "Requests older than this no longer count.", above=True)
    brokers_max: int = setting(
        16, "Brokers named for each topic in advice: those that ask most.", least=1
    )


def demand_job(settings: DemandSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        hours = demand.summed(intake.state["hours"].unionByName(intake.parts[REQUESTS.name]))
        since_us = (intake.clocks[REQUESTS.name].seen_us or 0) - round(settings.keep_s * 1e6)
        return {"hours": hours.filter(fn.col("hour") >= since_us // demand.HOUR_US)}

    def results(outcome: JobOutcome) -> Frames:
        # Both tables need it.
        brokers = demand.broker_demand(outcome.state["hours"]).persist()
        return {"brokers": brokers, "topics": demand.topic_demand(brokers)}

    def advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
        most = results["brokers"].filter(fn.col("rank") <= settings.brokers_max)
        by_topic = most.groupBy("topic").agg(
            fn.map_from_entries(
                fn.array_sort(fn.collect_list(fn.struct("broker_id", "share")))
            ).alias("brokers")
        )
        figures = fn.struct("rate", "popularity", "locality", fn.col("asking").alias("brokers"))
        topics = results["topics"].drop("brokers")
        joined = topics.join(by_topic.withColumnRenamed("brokers", "asking"), "topic")
        ordered = joined.orderBy(fn.col("requests").desc(), "topic")
        value = fn.to_json(figures).alias("value")
        table = ordered.select(fn.col("topic").alias("field"), value)
        return Advice(JOB, {"topics": table})

    return Job(
        kind=JOB,
        folds=(Fold(REQUESTS, HOUR_REQUESTS, demand.hour_requests, settings.late_s),),
        state={"hours": HOUR_REQUESTS},
        settle=settle,
        results=results,
        advice=advice,
    )


JOB = JobKind(
    name="demand",
    says="who asks for the past of which topics",
    settings=DemandSettings,
    make=demand_job,
    results=("brokers", "topics"),
    keeps="hour, broker, topic",
    until="`keep_s`",
    advice_tables={"topics": "topics"},
    advises='topic -> `{"rate": …, "popularity": …, "locality": …, "brokers": {broker: share, …}}`',
    schedule="52 * * * *",
)
