"""Measurements for developers and researchers; `python -m benchmarks.NAME --help`."""
