"""`rates`: publications of each topic, all brokers together and one by one, filtered (eq. 12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from analytics.analytics_settings import late_setting, setting
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobKind, JobOutcome, RowSums
from analytics.schemas import DOUBLE, LONG, STRING, schema_of
from analytics.transforms import rates
from dynatops.lake.fields import PUBLICATIONS

# Events of a topic at a broker, by period, of some periods in a row.
BLOCK_EVENTS = schema_of(
    topic=STRING, broker_id=STRING, block=LONG, **dict.fromkeys(rates.EVENT_COUNTS, LONG)
)
TOPIC_RATES = schema_of(topic=STRING, rate=DOUBLE)
BROKER_RATES = schema_of(topic=STRING, broker_id=STRING, rate=DOUBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesSettings:
    period_s: float = setting(
        300.0,
        "Length of a period of eq. 12. Much longer than windows of the lake, shorter than what "
        "should be noticed.",
        above=True,
    )
    alpha: float = setting(
        0.3, "Weight of the newest period (DYNATOPS III-D1).", above=True, most=1
    )
    late_s: float = late_setting(600.0)
    forget_rate: float = setting(
        1e-9, "Topics that are estimated below so many events/s are forgotten: state stays bounded."
    )


def block_events(period_s: float) -> RowSums:
    """Rows of `publications` as BLOCK_EVENTS."""
    return RowSums(
        lambda: rates.row_columns(period_s), keys=rates.BLOCK_KEYS, sums=rates.block_sums
    )


def rates_job(settings: RatesSettings) -> Job:
    period_us = round(settings.period_s * 1e6)

    def settle(intake: Intake) -> Frames:
        clock = intake.clocks[PUBLICATIONS.name]
        blocks = intake.state["open"].unionByName(intake.parts[PUBLICATIONS.name])
        if clock.closed_us is None:
            return {**intake.state, "open": rates.summed(blocks)}
        until = clock.closed_us // period_us
        before = clock.before_us // period_us if clock.before_us is not None else until
        sums = rates.observed(
            blocks, alpha=settings.alpha, period_s=settings.period_s, until=until
        ).persist()

        def filtered(observed: DataFrame, state: str, *keys: str) -> DataFrame:
            former = intake.state[state]
            estimates = rates.estimated(
                observed, former, keys, alpha=settings.alpha, periods=until - before
            )
            return estimates.filter(fn.col("rate") >= settings.forget_rate)

        return {
            "open": rates.summed(rates.since(blocks, until)),
            "topics": filtered(rates.of_topics(sums), "topics", "topic"),
            "brokers": filtered(sums, "brokers", "topic", "broker_id"),
        }

    return Job(
        kind=JOB,
        folds=(
            Fold(
                PUBLICATIONS,
                BLOCK_EVENTS,
                block_events(settings.period_s),
                settings.late_s,
                period_us,
            ),
        ),
        state={
            "open": BLOCK_EVENTS,
            "topics": TOPIC_RATES,
            "brokers": BROKER_RATES,
        },
        settle=settle,
        results=_results,
        advice=_advice,
    )


def _results(outcome: JobOutcome) -> Frames:
    return {name: outcome.state[name] for name in ("topics", "brokers")}


def _advice(results: Frames, clocks: Mapping[str, Clock]) -> Advice:
    topics = results["topics"].orderBy(fn.col("rate").desc(), "topic")
    table = topics.select(
        fn.col("topic").alias("field"), fn.col("rate").cast("string").alias("value")
    )
    closed_us = clocks[PUBLICATIONS.name].closed_us or 0
    return Advice(
        JOB,
        {"rates": table},
        head={"as_of_s": f"{closed_us / 1e6:.3f}"},
    )


JOB = JobKind(
    name="rates",
    says="how often something is published in each topic",
    settings=RatesSettings,
    make=rates_job,
    results=("topics", "brokers"),
    keeps="topic, and topic at a broker",
    until="its rate is below `forget_rate`",
    advice_tables={"rates": "topics"},
    advises="topic -> events/s; the head has `as_of_s`, the end of the last period",
    followed_by="the manager",
    schedule="*/15 * * * *",
)
