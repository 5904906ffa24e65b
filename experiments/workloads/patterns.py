"""Patterns of interests (DYNATOPS IV-A2), of users and of brokers."""

from __future__ import annotations

import enum

import numpy as np

from experiments.sites import Floats

# The paper does not say which it used.
ZIPF_SIGMA = 1.0


class Pattern(enum.StrEnum):
    UNIFORM = "uniform"
    ZIPF = "zipf"
    MULTIMODAL = "multimodal"


def pattern_weights(pattern: Pattern, topics: int, sigma: float) -> Floats:
    """[topic] -> its share of interests: of zipf (i + 1) ** -sigma, i from 1, as printed. The
    paper's topics are numbered from 1, ours from 0."""
    if pattern is not Pattern.ZIPF:
        return np.full(topics, 1.0 / topics)
    weights = (np.arange(1, topics + 1) + 1.0) ** -sigma
    shares: Floats = weights / weights.sum()
    return shares
