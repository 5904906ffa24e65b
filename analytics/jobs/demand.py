"""`demand`: who asks for the past of which topics."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as fn

from analytics import schemas
from analytics.analytics_settings import DemandSettings
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobOutcome
from analytics.transforms import demand
from dynatops.kit.advice.keys import DEMAND_KEY
from dynatops.lake.fields import REQUESTS

NAME = "demand"


def demand_job(settings: DemandSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        hours = demand.summed(intake.state["hours"].unionByName(intake.parts[REQUESTS.name]))
        since_us = (intake.clocks[REQUESTS.name].seen_us or 0) - round(settings.keep_s * 1e6)
        return {"hours": hours.filter(fn.col("hour") >= since_us // demand.HOUR_US)}

    def results(outcome: JobOutcome) -> Frames:
        brokers = demand.broker_demand(outcome.state["hours"])
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
        return Advice(DEMAND_KEY, {"topics": table})

    return Job(
        name=NAME,
        folds=(Fold(REQUESTS, schemas.HOUR_REQUESTS, demand.hour_requests, settings.late_s),),
        state={"hours": schemas.HOUR_REQUESTS},
        settle=settle,
        results=results,
        advice=advice,
    )
