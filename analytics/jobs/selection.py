"""`selection`: for each user the best broker of its cluster, and for each topic where to gather."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as fn

from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobKind, JobOutcome, UsedResult
from analytics.jobs.clusters import CLUSTERED
from analytics.schemas import DOUBLE, INT, LONG, STRING, schema_of
from analytics.transforms import selection
from analytics.transforms.selection_settings import SelectionJobSettings
from dynatops.lake.fields import SUBSCRIPTIONS

# Of a topic's SHA-1: its key, 64 bits.
_KEY_DIGITS = 16

SUBSCRIPTION_OPS = schema_of(
    user_id=STRING, topic=STRING, broker_id=STRING, subscribed_us=LONG, unsubscribed_us=LONG
)
# Who is where now, and follows what.
FOLLOWED = schema_of(user_id=STRING, broker_id=STRING, topic=STRING)
BROKER_CLUSTERS = schema_of(broker_id=STRING, cluster=STRING)
SELECTED = schema_of(
    user_id=STRING,
    broker_id=STRING,
    best=STRING,
    utility=DOUBLE,
    runner_up=STRING,
    runner_up_utility=DOUBLE,
    gain=DOUBLE,
    topics=INT,
)
GATHERING = schema_of(topic=STRING, broker_id=STRING, followers=LONG)
BROKER_LOADS = schema_of(
    broker_id=STRING,
    cluster=STRING,
    load=LONG,
    load_before=LONG,
    topics=LONG,
    topics_before=LONG,
)


def selection_job(settings: SelectionJobSettings) -> Job:
    def settle(intake: Intake) -> Frames:
        ops = intake.state["ops"].unionByName(intake.parts[SUBSCRIPTIONS.name])
        seen_us = intake.clocks[SUBSCRIPTIONS.name].seen_us or 0
        return {"ops": selection.latest_ops(ops, seen_us - round(settings.keep_s * 1e6))}

    def results(outcome: JobOutcome) -> Frames:
        ops = outcome.state["ops"]
        clusters = outcome.others["clusters"]
        if clusters is None:
            clusters = ops.sparkSession.createDataFrame([], CLUSTERED)
        clusters = clusters.select(*BROKER_CLUSTERS.names)
        followed = selection.followed(ops)
        chosen = selection.selected(followed, clusters, settings)
        return {"users": chosen.users, "topics": chosen.topics, "brokers": chosen.brokers}

    return Job(
        kind=JOB,
        folds=(
            Fold(
                SUBSCRIPTIONS,
                SUBSCRIPTION_OPS,
                selection.subscription_ops,
                settings.late_s,
            ),
        ),
        state={"ops": SUBSCRIPTION_OPS},
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
    return Advice(JOB, {"clients": clients, "topics": gathering})


JOB = JobKind(
    name="selection",
    says="the best broker for each user, and where to gather for each topic",
    settings=SelectionJobSettings,
    make=selection_job,
    results=("users", "topics", "brokers"),
    keeps="user, topic, broker",
    until="nothing was heard of it for `keep_s`",
    advice_tables={"clients": "clients", "topics": "topics"},
    advises="[selection.md](selection.md#advice); users who gain most, and topics with most "
    "followers, first if there are too many",
    followed_by="brokers",
    uses={"clusters": UsedResult("clusters", "brokers", CLUSTERED)},
    schedule="22 * * * *",
)
