"""Planning instances as files: who subscribes to what, how much is published, who stands where.

The format is JSON, plain or gzipped; `docs/algorithms.md` shows it. Reading checks everything, and
says in one line which field is wrong and why. Nothing is repaired or guessed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dynatops.kit.strict_json import JsonError, parse_json
from overlay.base.identifiers import RING_BITS, key_of
from overlay.placement.cost import CostModel, Demand, Prices
from overlay.placement.cost_kernels import Floats, Ints
from overlay.placement.geometry import RingGeometry
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.placement.problem import PlacementProblem

# Counting takes four bytes for each broker and topic: 4 GiB.
CELLS_MAX = 1 << 30
HEX_DIGITS = RING_BITS // 4

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NodeName = Annotated[str, Field(pattern=rf"^[0-9a-fA-F]{{{HEX_DIGITS}}}$")]


class InstanceError(Exception):
    """An instance that makes no sense; `field` says where."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class _InstancePart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BrokerMatrix(_InstancePart):
    """A number for each ordered pair of brokers: row to column. The diagonal does not matter."""

    brokers: list[str]
    matrix: list[list[Amount]]


class Instance(_InstancePart):
    ring_bits: int = Field(default=RING_BITS, ge=1, le=RING_BITS)
    node_ids: list[NodeName]
    delay_weight: Amount = 1.0
    brokers: dict[str, list[str]]
    publications: dict[str, Amount]
    placement: dict[str, NodeName]
    rtt_ms: BrokerMatrix | None = None
    relay_weight: BrokerMatrix | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_ring()
        self._check_brokers()
        self._check_placement()
        for name in ("rtt_ms", "relay_weight"):
            self._check_matrix(name, getattr(self, name))
        return self

    def _check_ring(self) -> None:
        if not self.node_ids:
            raise InstanceError("node_ids", "the ring is empty")
        seen: set[int] = set()
        for i, name in enumerate(self.node_ids):
            node_id = int(name, 16)
            if node_id >> self.ring_bits:
                raise InstanceError(f"node_ids.{i}", f"{name} has more than {self.ring_bits} bits")
            if node_id in seen:
                raise InstanceError(f"node_ids.{i}", f"{name} is there twice")
            seen.add(node_id)

    def _check_brokers(self) -> None:
        if len(self.brokers) != len(self.node_ids):
            raise InstanceError(
                "brokers", f"{len(self.brokers)} brokers on {len(self.node_ids)} nodes"
            )
        for broker, topics in self.brokers.items():
            if len(set(topics)) != len(topics):
                twice = next(topic for topic in topics if topics.count(topic) > 1)
                raise InstanceError(f"brokers.{broker}", f"topic {twice!r} is there twice")
            for topic in topics:
                if topic not in self.publications:
                    raise InstanceError(
                        f"brokers.{broker}", f"unknown topic {topic!r}: not in publications"
                    )
        if len(self.brokers) * len(self.publications) > CELLS_MAX:
            raise InstanceError("brokers", f"brokers times topics exceed {CELLS_MAX:,}")

    def _check_placement(self) -> None:
        nodes = {int(name, 16) for name in self.node_ids}
        taken: dict[int, str] = {}
        for broker, name in self.placement.items():
            node = int(name, 16)
            if broker not in self.brokers:
                raise InstanceError(f"placement.{broker}", "unknown broker: not in brokers")
            if node not in nodes:
                raise InstanceError(f"placement.{broker}", f"no node {name} in node_ids")
            if node in taken:
                raise InstanceError(
                    f"placement.{broker}", f"node {name} is taken by {taken[node]!r} already"
                )
            taken[node] = broker
        missing = next((broker for broker in self.brokers if broker not in self.placement), None)
        if missing is not None:
            raise InstanceError("placement", f"broker {missing!r} has no node")

    def _check_matrix(self, field: str, matrix: BrokerMatrix | None) -> None:
        if matrix is None:
            return
        for broker in matrix.brokers:
            if broker not in self.brokers:
                raise InstanceError(f"{field}.brokers", f"unknown broker {broker!r}")
        size = len(self.brokers)
        if len(set(matrix.brokers)) != len(matrix.brokers) or len(matrix.brokers) != size:
            raise InstanceError(f"{field}.brokers", "must name every broker once")
        if len(matrix.matrix) != size:
            raise InstanceError(f"{field}.matrix", f"{len(matrix.matrix)} rows for {size} brokers")
        for i, row in enumerate(matrix.matrix):
            if len(row) != size:
                raise InstanceError(f"{field}.matrix.{i}", f"{len(row)} columns for {size} brokers")

    # ---- as a problem ----------------------------------------------------------------------------

    def geometry(self) -> RingGeometry:
        """On a ring of fewer bits ids are the first bits of a longer one; routes are the same."""
        return RingGeometry(int(name, 16) << self._shift for name in self.node_ids)

    @property
    def _shift(self) -> int:
        return RING_BITS - self.ring_bits

    def problem(self, moving: MovingCost | None = None) -> PlacementProblem:
        geometry = self.geometry()
        numbers = {topic: i for i, topic in enumerate(self.publications)}
        demand = Demand(
            subscriptions=[
                sorted(numbers[topic] for topic in topics) for topics in self.brokers.values()
            ],
            publications=list(self.publications.values()),
            keys=[key_of(topic) >> self._shift << self._shift for topic in self.publications],
        )
        prices = Prices(
            self.delay_weight, self._in_order(self.rtt_ms), self._in_order(self.relay_weight)
        )
        place = [
            geometry.index_of(int(self.placement[broker], 16) << self._shift)
            for broker in self.brokers
        ]
        return PlacementProblem(
            model=CostModel(geometry, demand, prices),
            place=np.array(place, dtype=np.int32),
            topics=len(self.publications),
            moving=moving or MovingCost(),
        )

    def _in_order(self, matrix: BrokerMatrix | None) -> Floats | None:
        if matrix is None:
            return None
        position = {broker: i for i, broker in enumerate(matrix.brokers)}
        order = [position[broker] for broker in self.brokers]
        values: Floats = np.array(matrix.matrix, dtype=np.float64)[np.ix_(order, order)]
        return values

    def placement_of(self, place: Ints) -> dict[str, str]:
        """A solution, in the names of this instance."""
        in_order = sorted(self.node_ids, key=lambda name: int(name, 16))
        return {
            broker: in_order[node]
            for broker, node in zip(self.brokers, place.tolist(), strict=True)
        }


# ---- files ---------------------------------------------------------------------------------------


def read_instance(path: Path) -> Instance:
    """Raises InstanceError; OSError if the file cannot be read."""
    return parse_instance(path.read_bytes())


def parse_instance(raw: bytes) -> Instance:
    try:
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        return Instance.model_validate(parse_json(text, check_numbers=False))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InstanceError("", f"truncated or damaged gzip: {error}") from None
    except JsonError as error:
        problem = error.problem if error.field else f"no valid JSON, or cut off: {error}"
        raise InstanceError(error.field, problem) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InstanceError(field, _explain(first)) from None


def _explain(error: Mapping[str, Any]) -> str:
    text = str(error["msg"])
    text = text[0].lower() + text[1:]
    value = error["input"]
    return f"{text}, not {value!r}" if isinstance(value, str | int | float) else text


def write_instance(instance: Instance, path: Path) -> None:
    raw = dump_instance(instance).encode()
    # No time stamp: the same instance is the same file.
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def dump_instance(instance: Instance) -> str:
    return json.dumps(instance.model_dump(exclude_none=True), ensure_ascii=False) + "\n"
