"""Kinds of lines of the log, as values: what they are called, say and mean.

    RING_LEFT = Operation("ring_left", "The broker has left the ring.", ("broker", "seconds"))
    RING_LEFT.log(log, broker="b0", seconds=1.5)

A core logs nothing, but a notice of it may have an operation: it is logged as that, with what the
notice has under the names of the operation's fields (`log_notice`). Nothing is imported here that a
core may not import.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import logging

# What a record of the log has beside its text.
OPERATION_OF_RECORD, VALUES_OF_RECORD = "dynatops_operation", "dynatops_values"


class Level(IntEnum):
    """As `logging` numbers them."""

    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of line. It has these fields and no others; those that do not apply are left out."""

    name: str
    meaning: str
    fields: tuple[str, ...]
    level: Level = Level.INFO

    def log(self, log: logging.Logger, text: str = "", **values: object) -> None:
        """`text` is for people; without it they read the fields."""
        if not log.isEnabledFor(self.level):
            return
        if unknown := values.keys() - set(self.fields):
            raise ValueError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        given = {name: value for name, value in values.items() if value is not None}
        extra = {OPERATION_OF_RECORD: self.name, VALUES_OF_RECORD: given}
        log.log(self.level, "%s", text or self.name, extra=extra)


class LoggedNotice(Protocol):
    """Has what its operation has as fields, but for what its logger knows."""

    operation: ClassVar[Operation]


def log_notice(log: logging.Logger, notice: LoggedNotice, **known: object) -> None:
    """`known`: fields that are the same for all notices, such as who it is that logs."""
    operation = notice.operation
    if not log.isEnabledFor(operation.level):
        return
    values = {
        name: known[name] if name in known else _as_logged(name, getattr(notice, name))
        for name in operation.fields
    }
    operation.log(log, "", **values)


def _as_logged(name: str, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and (name == "seconds" or name.endswith("_s")):
        return round(value, 3)
    return value
