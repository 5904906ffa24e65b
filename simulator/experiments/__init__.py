"""Experiments: workloads run on the cores, and what they show, as data."""
