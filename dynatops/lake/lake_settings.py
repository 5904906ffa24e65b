"""What can be set about writing to the lake, each with its unit, its reason and its bound."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynatops.lake.fields import HOUR_S


class LakeSettings(BaseModel):
    """Where a broker writes what happens at it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str = Field(
        "",
        description="Where the lake is (`--lake`): a folder, s3://bucket/lake, gs://bucket/lake or "
        "hdfs://namenode:8020/lake. Empty: nothing is written.",
    )
    window_s: float = Field(
        10.0,
        gt=0,
        le=HOUR_S,
        description="Publications and requests are counted for so long; one row each for a topic "
        "that had any. Windows begin at multiples of it.",
    )
    file_rows_max: int = Field(
        100_000, gt=0, description="Rows of one file; it is written when it has so many."
    )
    file_age_max_s: float = Field(
        300.0,
        gt=0,
        description="A file is written when its first row is so old. What is younger is lost if "
        "the broker crashes; sooner makes more and smaller files.",
    )
    buffer_rows_max: int = Field(
        300_000,
        gt=0,
        description="Rows that wait to be written, about 250 bytes each; further ones are dropped "
        "and counted.",
    )
    timeout_s: float = Field(
        5.0,
        ge=1,
        le=HOUR_S,
        description="A store that says nothing for so long has failed; of an upload that has begun "
        "it may be 6 s more. Each call is tried twice.",
    )
    retry_s: float = Field(
        5.0,
        gt=0,
        description="If the lake cannot be written to, it is tried again after this, and then "
        "after twice as long each time.",
    )
    retry_max_s: float = Field(
        60.0,
        gt=0,
        description="But after so long at most; brokers do not come all at once when it is back.",
    )
    close_timeout_s: float = Field(
        10.0,
        gt=0,
        description="On shutdown, what waits gets this long to be written; then it is lost.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_rows_max < self.file_rows_max:
            raise ValueError(
                f"buffer_rows_max, {self.buffer_rows_max:,}, must not be below file_rows_max, "
                f"{self.file_rows_max:,}: no file would ever be full"
            )
        if self.retry_max_s < self.retry_s:
            raise ValueError(
                f"retry_max_s, {self.retry_max_s:g}, must not be below retry_s, {self.retry_s:g}"
            )
        return self
