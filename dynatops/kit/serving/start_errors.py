"""Why a broker cannot start, for the commands that start some, and others that share their ways."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start; the message says what to do about it."""


class JoinError(StartError):
    """No seed has let the broker join."""
