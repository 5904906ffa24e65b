"""The password of a Redis server: from a file or the environment, not from a command line.

Users that can list processes can read command lines. A URL may still hold a password,
as in `$DYNATOPS_REDIS`; where it came by a command line that is said (`exposed_password`).

Imports nothing of Redis: those that are told of a password need not have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PASSWORD_VARIABLE = "DYNATOPS_REDIS_PASSWORD"  # noqa: S105  # its name


class RedisPasswordError(ValueError):
    """The file cannot be used; the message says why."""


def read_password(path: str) -> str:
    """What the file holds, if one is named; otherwise the environment's, or nothing. Raises
    RedisPasswordError."""
    if not path:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise RedisPasswordError(f"the password file {path} is not UTF-8") from None
    except OSError as error:
        problem = error.strerror
        raise RedisPasswordError(f"cannot read the password file {path}: {problem}") from None
    if not password:
        raise RedisPasswordError(f"the password file {path} is empty")
    return password


def password_options(url: str, path: str) -> dict[str, Any]:
    """For a client of `url`. What is said of one server comes before what is said of all: file,
    URL, environment. Raises RedisPasswordError."""
    if not path and _holds_password(url):
        return {}
    password = read_password(path)
    return {"password": password} if password else {}


def exposed_password(values: Iterable[str], instead: str) -> str:
    """A warning if one of these, from a command line, is a URL with a password; or nothing."""
    if not any(_holds_password(value) for value in values):
        return ""
    return (
        "the password in the URL can be read by every user that can list this machine's processes: "
        f"put it into a file ({instead}) or into ${PASSWORD_VARIABLE}"
    )


def _holds_password(url: str) -> bool:
    if "://" not in url:
        return False
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return "@" in url
