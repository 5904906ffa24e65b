"""`selection`: for each user the best broker of its cluster, and for each topic where to gather."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as fn

from analytics import schemas
from analytics.analytics_settings import SelectionJobSettings
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobOutcome
from analytics.transforms import selection
from dynatops.kit.advice.keys import SELECTION_KEY
from dynatops.lake.fields import SUBSCRIPTIONS

NAME = "selection"
# Of a topic's SHA-1: its key, 64 bits.
_KEY_DIGITS = 16


def selection_job(settings: SelectionJobSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        ops = intake.state["ops"].unionByName(intake.parts[SUBSCRIPTIONS.name])
        seen_us = intake.clocks[SUBSCRIPTIONS.name].seen_us or 0
        return {"ops": selection.latest_ops(ops, seen_us - round(settings.keep_s * 1e6))}

    def results(outcome: JobOutcome) -> Frames:
        ops = outcome.state["ops"]
        clusters = outcome.clusters
        if clusters is None:
            clusters = ops.sparkSession.createDataFrame([], schemas.BROKER_CLUSTERS)
        followed = selection.followed(ops)
        chosen = selection.selected(followed, clusters, settings, outcome.partitions)
        return {"users": chosen.users, "topics": chosen.topics, "brokers": chosen.brokers}

    return Job(
        name=NAME,
        folds=(
            Fold(
                SUBSCRIPTIONS,
                schemas.SUBSCRIPTION_OPS,
                selection.subscription_ops,
                settings.late_s,
            ),
        ),
        state={"ops": schemas.SUBSCRIPTION_OPS},
        settle=settle,
        results=results,
        advice=_advice,
    )


def _advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
    users = results["users"].orderBy(fn.col("gain").desc(), "user_id")
    clients = users.select(fn.col("user_id").alias("field"), fn.col("best").alias("value"))
    topics = results["topics"].orderBy(fn.col("followers").desc(), "topic")
    key = fn.substring(fn.sha1(fn.col("topic").cast("binary")), 1, _KEY_DIGITS)
    gathering = topics.select(key.alias("field"), fn.col("broker_id").alias("value"))
    return Advice(SELECTION_KEY, {"clients": clients, "topics": gathering})
