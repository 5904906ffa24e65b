"""`rates`: publications of each topic, all brokers together and one by one, filtered (eq. 12)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from analytics import schemas
from analytics.job import Advice, Clock, Fold, Frames, Intake, Job, Outcome
from analytics.settings import RatesSettings
from analytics.transforms import rates
from dynatops.advice_keys import RATES_KEY
from dynatops.lake.fields import PUBLICATIONS

NAME = "rates"


def rates_job(settings: RatesSettings) -> Job:
    period_us = round(settings.period_s * 1e6)

    def settle(intake: Intake) -> Frames:
        clock = intake.clocks[PUBLICATIONS.name]
        open_ = intake.state["open"]
        events = rates.summed(open_.unionByName(intake.parts[PUBLICATIONS.name]))
        if clock.closed_us is None:
            return {**intake.state, "open": events}
        until = clock.closed_us // period_us
        before = clock.before_us // period_us if clock.before_us is not None else None
        complete = events.filter(fn.col("period") < until)

        def filtered(state: str, *keys: str) -> DataFrame:
            estimates = rates.estimated(
                complete,
                intake.state[state],
                keys,
                alpha=settings.alpha,
                period_s=settings.period_s,
                before=before,
                until=until,
            )
            return estimates.filter(fn.col("rate") >= settings.forget_rate)

        return {
            "open": events.filter(fn.col("period") >= until),
            "topics": filtered("topics", "topic"),
            "brokers": filtered("brokers", "topic", "broker_id"),
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


def _results(outcome: Outcome) -> Frames:
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
