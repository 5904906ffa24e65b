"""What can go wrong that a person should read."""

from __future__ import annotations


class AnalyticsError(Exception):
    """It could not be done; the message says what to do."""


class AnalyticsUsageError(Exception):
    """The command line is wrong."""
