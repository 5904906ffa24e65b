"""`clusters`: brokers grouped by where their sessions are."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as fn

from analytics import schemas
from analytics.analytics_settings import ClustersSettings
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobOutcome
from analytics.transforms import clusters
from dynatops.kit.advice.keys import CLUSTERS_KEY
from dynatops.lake.fields import SESSIONS

NAME = "clusters"


def clusters_job(settings: ClustersSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        places = clusters.summed(intake.state["places"].unionByName(intake.parts[SESSIONS.name]))
        since_us = (intake.clocks[SESSIONS.name].seen_us or 0) - round(settings.keep_s * 1e6)
        return {"places": places.filter(fn.col("seen_us") >= since_us)}

    def results(outcome: JobOutcome) -> Frames:
        brokers = clusters.clustered(outcome.state["places"], settings.size)
        return {"brokers": brokers, "clusters": clusters.cluster_sizes(brokers)}

    return Job(
        name=NAME,
        folds=(Fold(SESSIONS, schemas.BROKER_PLACES, clusters.broker_places, settings.late_s),),
        state={"places": schemas.BROKER_PLACES},
        settle=settle,
        results=results,
        advice=_advice,
    )


def _advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
    brokers = results["brokers"].orderBy("broker_id")
    table = brokers.select(fn.col("broker_id").alias("field"), fn.col("cluster").alias("value"))
    return Advice(CLUSTERS_KEY, {"brokers": table})
