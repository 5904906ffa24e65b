"""What brokers and managers log beside the notices of their cores, and every field there is.

A notice that is logged declares its operation itself (`broker_agent/core/base/notices.py`,
`reconfig_manager/model/notices.py`); another operation is declared here. docs/logs.md is made from
both. Names are for programs and stay as they are. Seconds are floats, in fields that end in `_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from dynatops.kit.observing.log_lines import Level, Operation

# In each line.
ALWAYS: Mapping[str, str] = MappingProxyType(
    {
        "doors": "Further ways in for clients, and where they are.",
        "time": "When, in UTC, to the millisecond.",
        "level": "`debug`, `info`, `warning`, `error` or `critical`.",
        "broker": "The broker's id; on managers, the broker that it is about. In lines that are no "
        "operations only if it was given (`--broker-id`).",
        "manager": "The manager's id, likewise (`--manager-id`).",
        "logger": "The module that says it.",
        "message": "For people.",
        "operation": "Which of the operations below; missing in other lines.",
        "traceback": "Of a failure that was not foreseen.",
    }
)

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "action": "What was commanded: `propose`, `approve`, `cancel`, `execute`, `set_policy`.",
        "actor": "Who commanded it: the name of a token, or `process`.",
        "address": "Where the broker is reached.",
        "algorithm": "The solver.",
        "benefit": "Predicted, in messages for T_free.",
        "brokers": "Brokers in the problem.",
        "client": "The client's id.",
        "connected_s": "How long the connection lasted.",
        "count": "How many.",
        "delivered": "Events that the session was given, in all.",
        "detail": "More about the outcome.",
        "dropped": "Events that it was not given, or rows that the lake was not, for want of room "
        "or because they were too old.",
        "epoch": "Of the placement in use now.",
        "error": "What went wrong.",
        "fence": "The leader's fencing number.",
        "files": "Files written so far.",
        "filters": "Patterns that the session subscribes to.",
        "frozen_s": "How long clients were held back.",
        "http": "Where probes and metrics are answered.",
        "in_time": "Whether the neighbours said farewell before the patience was over.",
        "lake": "The lake's URL.",
        "members": "Brokers near by on the ring that this one knows.",
        "messages": "Messages that the plan took, the manager's and the brokers'.",
        "mode": "The policy's mode.",
        "moves": "Brokers that the plan moves.",
        "moving_cost": "Predicted bound, in messages.",
        "neighbour": "The broker at the other end of a link of the tree.",
        "node": "The node hosted now, 16 hexadecimal digits.",
        "node_before": "The node hosted before.",
        "outcome": "How it ended.",
        "paused_max_s": "The longest that any broker held its clients back.",
        "peers": "Names and addresses, the first ten.",
        "phase": "Of an execution: `FREEZING`, `MOVING`, `RESTORING`, …",
        "plan": "The plan's id.",
        "reason": "Why, in the words of the caller; or why something is so.",
        "role": "`viewer`, `operator` or `admin`.",
        "rows": "Rows that wait to be written, or are lost.",
        "seconds": "How long it took.",
        "session": "The session's id.",
        "sessions": "Sessions at that moment.",
        "source": "The broker that a topology came from; empty if an operator told this one.",
        "state": "Of a plan: `PROPOSED`, `EXECUTING`, `COMMITTED`, …",
        "subject": "What was commanded about: a plan, or `policy`.",
        "trouble": "Of a store: `no_bucket`, `not_allowed`, `clock`, `silent`, … (docs/lake.md).",
        "version": "The program's version; of a policy or a topology, its number.",
    }
)


class DeclaredOperations:
    """The operations of one kind of process, in the order in which they are declared."""

    def __init__(self) -> None:
        self._by_name: dict[str, Operation] = {}

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._by_name.values())

    def declare(
        self, name: str, meaning: str, fields: tuple[str, ...], level: Level = Level.INFO
    ) -> Operation:
        """Each field is one of FIELDS. Raises ValueError."""
        return self._add(Operation(name, meaning, fields, level))

    def with_notices(self, kinds: Iterable[type]) -> tuple[Operation, ...]:
        """These, and those that kinds of notices declare. Raises ValueError."""
        whole = DeclaredOperations()
        of_notices = (getattr(kind, "operation", None) for kind in kinds)
        for operation in (*self, *of_notices):
            if operation is not None:
                whole._add(operation)
        return tuple(whole)

    def _add(self, operation: Operation) -> Operation:
        name = operation.name
        if name in self._by_name:
            raise ValueError(f"the operation {name} is declared twice")
        if unknown := set(operation.fields) - {*ALWAYS, *FIELDS}:
            raise ValueError(f"{name}: say in FIELDS what {', '.join(sorted(unknown))} means")
        self._by_name[name] = operation
        return operation


BROKER_OPERATIONS = DeclaredOperations()
MANAGER_OPERATIONS = DeclaredOperations()

RING_JOINED = BROKER_OPERATIONS.declare(
    "ring_joined",
    "The broker is a member of the ring, and serves.",
    ("broker", "address", "http", "doors", "node", "members", "sessions", "seconds", "version"),
)
RING_LEFT = BROKER_OPERATIONS.declare(
    "ring_left",
    "The broker has left the ring: it was told to stop.",
    ("broker", "in_time", "sessions", "seconds"),
)
PEERS_LOST = BROKER_OPERATIONS.declare(
    "peers_lost",
    "Other brokers are taken for dead: nobody listens there, or they are silent. One line a second "
    "at most.",
    ("broker", "count", "peers"),
    Level.WARNING,
)
TOPICS_TAKEN_OVER = BROKER_OPERATIONS.declare(
    "topics_taken_over",
    "The broker goes on with topics after others were taken for dead. One line a second at most.",
    ("broker", "count"),
    Level.WARNING,
)
TOPICS_HANDED_OVER = BROKER_OPERATIONS.declare(
    "topics_handed_over",
    "The broker goes on with topics although nobody died: others came or left in order. One line a "
    "second at most.",
    ("broker", "count"),
)
RANGE_ASSUMED = BROKER_OPERATIONS.declare(
    "range_assumed",
    "The broker serves its range of the ring without the word of its former owner: copies may lack "
    "what came last.",
    ("broker",),
    Level.WARNING,
)
HISTORIES_JOINED = BROKER_OPERATIONS.declare(
    "histories_joined",
    "Topics had two histories, as after a partition, which are one again.",
    ("broker", "count"),
    Level.WARNING,
)
TOPOLOGY_COMMANDED = BROKER_OPERATIONS.declare(
    "topology_commanded",
    "An administrator gave this broker another topology: it was taken, or why not.",
    ("broker", "version", "actor", "outcome"),
    Level.WARNING,
)
TOPOLOGY_CHOSEN = BROKER_OPERATIONS.declare(
    "topology_chosen",
    "The topology file and what the broker had learnt before it was restarted differ: which of "
    "them it uses, and why.",
    ("broker", "version", "reason"),
    Level.WARNING,
)
MANAGER_ATTENDED = BROKER_OPERATIONS.declare(
    "manager_attended", "The broker has a stream to the manager that leads.", ("address",)
)
MANAGER_LOST = BROKER_OPERATIONS.declare(
    "manager_lost",
    "No manager can be reached; the broker goes on without. Said once.",
    ("reason",),
    Level.WARNING,
)
LAKE_FAILED = BROKER_OPERATIONS.declare(
    "lake_failed",
    "The lake cannot be written to; it is tried again. Said once for each kind of trouble.",
    ("broker", "lake", "trouble", "error", "rows"),
    Level.ERROR,
)
LAKE_STALLED = BROKER_OPERATIONS.declare(
    "lake_stalled",
    "A call to the lake's store does not come back. Said once for each.",
    ("broker", "lake", "seconds", "rows"),
    Level.ERROR,
)
LAKE_ROWS_DROPPED = BROKER_OPERATIONS.declare(
    "lake_rows_dropped",
    "More rows wait for the lake than may: further ones are dropped from now on. Said once, until "
    "half of them are written.",
    ("broker", "lake", "rows"),
    Level.ERROR,
)
LAKE_RECOVERED = BROKER_OPERATIONS.declare(
    "lake_recovered",
    "The lake can be written to again.",
    ("broker", "lake", "files", "rows", "dropped"),
    Level.WARNING,
)
LAKE_ROWS_LOST = BROKER_OPERATIONS.declare(
    "lake_rows_lost", "Rows will never be in the lake.", ("broker", "lake", "rows"), Level.ERROR
)
SAVING_FAILED = BROKER_OPERATIONS.declare(
    "saving_failed",
    "Sessions cannot be written to disk; it is tried again. Said once.",
    ("error",),
    Level.ERROR,
)
SAVING_RECOVERED = BROKER_OPERATIONS.declare(
    "saving_recovered", "Sessions are being saved again.", (), Level.WARNING
)
COMMAND = MANAGER_OPERATIONS.declare(
    "command",
    "Somebody commanded something; also if it was refused. The audit log has the same.",
    ("manager", "actor", "role", "action", "subject", "reason", "outcome", "detail"),
)
PLAN_CHANGED = MANAGER_OPERATIONS.declare(
    "plan_changed",
    "A plan has another state, or is in another phase; `seconds` since its last such line.",
    (
        "manager", "plan", "state", "phase", "reason", "moves", "benefit", "moving_cost", "epoch",
        "seconds", "messages", "paused_max_s",
    ),
)  # fmt: skip
SOLVED = MANAGER_OPERATIONS.declare(
    "solved",
    "A solver has been at work.",
    ("plan", "algorithm", "brokers", "seconds", "outcome"),
)
LEADING = MANAGER_OPERATIONS.declare(
    "leading", "This manager leads.", ("manager", "fence"), Level.WARNING
)
DEPOSED = MANAGER_OPERATIONS.declare(
    "deposed", "This manager leads no more.", ("manager", "reason"), Level.WARNING
)
STORE_AWAY = MANAGER_OPERATIONS.declare(
    "store_away",
    "The store does not answer: brokers serve as ever, nobody is moved. Said once.",
    ("manager", "error"),
    Level.WARNING,
)
STORE_BACK = MANAGER_OPERATIONS.declare(
    "store_back", "The store answers again.", ("manager",), Level.WARNING
)
