"""What a process says, for people or for machines.

    configure("json", "info", broker="b0")
    SESSION_ENDED.log(log, client="ann", delivered=12)

A line of JSON for each record, with fixed names; or text. An operation (`log_lines`) is one
line, with all that is worth knowing about it. Events are not logged: they are counted. Credentials
within URLs are blotted out, whatever logs them.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from dynatops.kit.observing.log_lines import OPERATION_OF_RECORD, VALUES_OF_RECORD
from dynatops.kit.strict_json import write_json

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")

_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@")
_PLAIN = re.compile(r'[^\s"=]+')
_TOLD_EVERY_S = 60.0


def configure(form: Format, level: str, **always: str) -> None:
    """Of the whole process. `always` is said in each line of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(always) if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class OncePerMinute(logging.Filter):
    """Lets what anyone can cause be said once a minute, with how often it was not."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        # By message, of which a logger has a handful: when it was said, and how often not since.
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        now_s = self._now_s()
        said_s, unsaid = self._said.get(record.msg, (-_TOLD_EVERY_S, 0))
        if now_s - said_s < _TOLD_EVERY_S:
            self._said[record.msg] = (said_s, unsaid + 1)
            return False
        self._said[record.msg] = (now_s, 0)
        if unsaid:
            record.msg = f"{record.msg} ({unsaid:,} more since the last such line)"
        return True


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        operation = getattr(record, OPERATION_OF_RECORD, "")
        if operation and record.getMessage() == operation:
            values = getattr(record, VALUES_OF_RECORD).items()
            text += "".join(f" {name}={_shown(value)}" for name, value in values)
        return without_passwords(text)


class JsonFormatter(logging.Formatter):
    def __init__(self, always: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._always = {name: value for name, value in (always or {}).items() if value}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._always,
            "logger": record.name,
            "message": record.getMessage(),
        }
        operation = getattr(record, OPERATION_OF_RECORD, "")
        if operation:
            line |= {"operation": operation, **getattr(record, VALUES_OF_RECORD)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return without_passwords(write_json(line, default=str))


def without_passwords(text: str) -> str:
    return _PASSWORD.sub(r"\1:***@", text)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
