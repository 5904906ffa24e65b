"""`clusters`: brokers grouped by where their sessions are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import functions as fn

from analytics.analytics_settings import DAY_S, late_setting, setting
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobKind, JobOutcome
from analytics.schemas import DOUBLE, LONG, STRING, schema_of
from analytics.transforms import clusters
from dynatops.lake.fields import SESSIONS

# Sums of unit vectors towards where sessions were.
BROKER_PLACES = schema_of(
    broker_id=STRING, located=LONG, x=DOUBLE, y=DOUBLE, z=DOUBLE, seen_us=LONG
)
CLUSTERED = schema_of(
    broker_id=STRING, cluster=STRING, latitude=DOUBLE, longitude=DOUBLE, sessions=LONG
)
CLUSTERS = schema_of(
    cluster=STRING, brokers=LONG, latitude=DOUBLE, longitude=DOUBLE, radius_km=DOUBLE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersSettings:
    late_s: float = late_setting(DAY_S)
    size: int = setting(16, "Brokers in a cluster, about: messages grow with its square.", least=1)
    keep_s: float = setting(
        30 * DAY_S, "A broker without a session for so long is left out.", above=True
    )


def clusters_job(settings: ClustersSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        places = clusters.summed(intake.state["places"].unionByName(intake.parts[SESSIONS.name]))
        since_us = (intake.clocks[SESSIONS.name].seen_us or 0) - round(settings.keep_s * 1e6)
        return {"places": places.filter(fn.col("seen_us") >= since_us)}

    def results(outcome: JobOutcome) -> Frames:
        # Both tables need it.
        brokers = clusters.clustered(outcome.state["places"], settings.size).persist()
        return {"brokers": brokers, "clusters": clusters.cluster_sizes(brokers)}

    return Job(
        kind=JOB,
        folds=(Fold(SESSIONS, BROKER_PLACES, clusters.broker_places, settings.late_s),),
        state={"places": BROKER_PLACES},
        settle=settle,
        results=results,
        advice=_advice,
    )


def _advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
    brokers = results["brokers"].orderBy("broker_id")
    table = brokers.select(fn.col("broker_id").alias("field"), fn.col("cluster").alias("value"))
    return Advice(JOB, {"brokers": table})


JOB = JobKind(
    name="clusters",
    says="which brokers are near each other",
    settings=ClustersSettings,
    make=clusters_job,
    results=("brokers", "clusters"),
    keeps="broker",
    until="nothing was heard of it for `keep_s`",
    advice_tables={"brokers": "brokers"},
    advises="broker -> cluster",
    schedule="7 * * * *",
)
