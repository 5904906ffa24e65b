"""Scenario texts for tables of brokers in a tree: commands, and under each the messages that they
lead to, with the tables that a message has changed.

    tree peer 1-2 2-3
    ----
    1 2 3

    want 3 top_a
    ----
    3: here: top_a
    3 -> 2  +top_a
    2: 3: top_a

A table's line has filters by who holds them, as in the figures: neighbours, and `here` for clients.
Advertisements come after a bar. `tree` takes a mode, `advertisements`, `uncovered`, and edges from
the parent to the child.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from dynatops.kit.filters import Filter, Value
from overlay.forwarding.tables.held_filters import HERE, BrokerId
from overlay.forwarding.tables.subscription_tables import TableChange, TableRules
from overlay.forwarding.tree.topology import TreeMode
from tests.support.table_net import TableMessage, TableNet, check_tables


class TableScenario:
    net: TableNet

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._shown: dict[BrokerId, str] = {}

    def play(self, text: str) -> str:
        """The text with the outputs that the commands now have."""
        blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block]
        return "\n\n".join(self._play_block(block) for block in blocks) + "\n"

    def _play_block(self, block: str) -> str:
        said = block.split("\n----", maxsplit=1)[0].split("\n")
        commands = [line for line in said if line and not line.startswith("#")]
        if not commands:
            return "\n".join(said)
        self._lines = []
        for command in commands:
            name, _, arguments = command.partition(" ")
            handler: Callable[[str], None] = getattr(self, f"do_{name}")
            handler(arguments)
        check_tables(self.net)
        return "\n".join([*said, "----", *(self._lines or ["(nothing)"])])

    # ---- commands -------------------------------------------------------------------------------

    def do_tree(self, arguments: str) -> None:
        words = arguments.split()
        rules = TableRules(
            TreeMode(words[0]),
            advertisements="advertisements" in words,
            covering="uncovered" not in words,
        )
        pairs = [word.split("-") for word in words if "-" in word]
        edges = [(BrokerId(parent), BrokerId(child)) for parent, child in pairs]
        self.net = TableNet(rules, edges)
        self.net.on_change = self._on_change
        self.net.on_message = self._on_message
        self._shown = {name: self._table(name) for name in self.net.tables}
        self._lines = [" ".join(self.net.tables)]

    def do_want(self, arguments: str) -> None:
        self._change(arguments, self.net.want)

    def do_give_up(self, arguments: str) -> None:
        self._change(arguments, self.net.give_up)

    def do_advertise(self, arguments: str) -> None:
        self._change(arguments, self.net.advertise)

    def do_withdraw(self, arguments: str) -> None:
        self._change(arguments, self.net.withdraw)

    def do_publish(self, arguments: str) -> None:
        """publish 1 shop/pc price=7 brand=IBM"""
        source, topic, *pairs = arguments.split()
        attributes: dict[str, Value] = {}
        for name, value in (pair.split("=") for pair in pairs):
            attributes[name] = int(value) if value.isdigit() else value
        for name, is_wanted in self.net.reach(BrokerId(source), topic, attributes).items():
            self._lines.append(f"at {name}" + (", for clients" if is_wanted else ""))

    def _change(self, arguments: str, change: Callable[[BrokerId, Filter], None]) -> None:
        name, _, text = arguments.partition(" ")
        change(BrokerId(name), filter_of(text))

    # ---- what is shown --------------------------------------------------------------------------

    def _on_message(self, message: TableMessage) -> None:
        said = f"{message.source} -> {message.destination}  {show_change(message.change)}"
        self._lines.append(said)
        self._on_change(message.destination)

    def _on_change(self, name: BrokerId) -> None:
        table = self._table(name)
        if table != self._shown[name]:
            self._shown[name] = table
            self._lines.append(f"{name}: {table}")

    def _table(self, name: BrokerId) -> str:
        tables = self.net.tables[name]
        holders = [*sorted(tables.neighbours), HERE]
        wanted = [_held(holder, tables.wanted_by(holder)) for holder in holders]
        advertised = [_held(holder, tables.advertised_by(holder)) for holder in holders]
        parts = ["; ".join(filter(None, held)) for held in (wanted, advertised)]
        return " | ".join(parts).removesuffix(" | ").strip() or "(empty)"


def filter_of(text: str) -> Filter:
    pattern, _, where = text.partition(" where ")
    return Filter.parse(pattern, where)


def show_change(change: TableChange) -> str:
    signed = (("+", change.add), ("-", change.remove))
    said = [f"{sign}{one}" for sign, filters in signed for one in filters]
    signed = (("advertise ", change.advertise), ("withdraw ", change.withdraw))
    said += [f"{sign}{one}" for sign, filters in signed for one in filters]
    return ", ".join(said)


def _held(holder: BrokerId, filters: Iterable[Filter]) -> str:
    names = sorted(map(str, filters))
    return f"{holder or 'here'}: {', '.join(names)}" if names else ""
