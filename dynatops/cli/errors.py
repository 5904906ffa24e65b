"""Failures that a person at the command line can do something about."""

from __future__ import annotations


class CommandError(Exception):
    """It could not be done: exit code 1."""


class UsageError(CommandError):
    """What was asked makes no sense: exit code 2."""
