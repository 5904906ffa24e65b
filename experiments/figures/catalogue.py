"""All figures and tables, by name: a tuple of figures in a module, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from experiments.figures import location, placements, poisson
from experiments.figures.figure import Figure

FIGURES: Mapping[str, Figure] = MappingProxyType(
    {figure.name: figure for figure in (*location.FIGURES, *poisson.FIGURES, *placements.FIGURES)}
)
