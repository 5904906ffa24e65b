"""`rates`: publications of each topic, all brokers together and one by one, filtered (eq. 12)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from analytics import schemas
from analytics.analytics_settings import RatesSettings
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, JobOutcome
from analytics.transforms import rates
from dynatops.kit.advice.keys import RATES_KEY
from dynatops.lake.fields import PUBLICATIONS

NAME = "rates"


def rates_job(settings: RatesSettings) -> Job:
    period_us = round(settings.period_s * 1e6)

    def settle(intake: Intake) -> Frames:
        clock = intake.clocks[PUBLICATIONS.name]
        events = intake.state["open"].unionByName(intake.parts[PUBLICATIONS.name])
        if clock.closed_us is None:
            return {**intake.state, "open": rates.summed(events)}
        until = clock.closed_us // period_us
        before = clock.before_us // period_us if clock.before_us is not None else until
        complete = events.filter(fn.col("period") < until)
        sums = rates.observed(
            complete, alpha=settings.alpha, period_s=settings.period_s, until=until
        ).persist()

        def filtered(observed: DataFrame, state: str, *keys: str) -> DataFrame:
            former = intake.state[state]
            estimates = rates.estimated(
                observed, former, keys, alpha=settings.alpha, periods=until - before
            )
            return estimates.filter(fn.col("rate") >= settings.forget_rate)

        return {
            "open": rates.summed(events.filter(fn.col("period") >= until)),
            "topics": filtered(rates.of_topics(sums), "topics", "topic"),
            "brokers": filtered(sums, "brokers", "topic", "broker_id"),
        }

    return Job(
        name=NAME,
        folds=(
            Fold(
                PUBLICATIONS,
                schemas.PERIOD_EVENTS,
                lambda rows: rates.period_events(rows, settings.period_s),
                settings.late_s,
                period_us,
            ),
        ),
        state={
            "open": schemas.PERIOD_EVENTS,
            "topics": schemas.TOPIC_RATES,
            "brokers": schemas.BROKER_RATES,
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
        RATES_KEY,
        {"rates": table},
        counted_as={"rates": "topics"},
        head={"as_of_s": f"{closed_us / 1e6:.3f}"},
    )
