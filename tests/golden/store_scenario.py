"""Scenario texts for stores: commands, and under each the messages that they lead to, with the
Advertisement Tables that a message has changed.

    tree 1-2 2-3
    ----
    1 2 3

    store 2 top_a
    ----
    2: here:top_a,0
    2 -> 3  Advertise top_a,1
    3: 2:top_a,1

A table's line has entries as in the papers' figures: `2:top_a,1` says that a request for top_a goes
to broker 2, and that the nearest store is one hop away. Offers that are set aside are in
parentheses. The distance in a message is the one that it has for whoever receives it. Requests and
responses are shown with the path that they carry.

    publish top_a msg_a size=3
    request 6 top_a where size > 2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PastError,
    PastRequest,
    PastResponse,
    PeerMessage,
    StoreAdvertisement,
)
from overlay.stores.advertisement_table import StoreEntry
from tests.support.past_net import PastNet
from tests.support.store_net import check_store_tables


class StoreScenario:
    net: PastNet

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._shown: dict[str, str] = {}

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
            name, *arguments = command.split()
            handler: Callable[..., None] = getattr(self, f"do_{name}")
            handler(*arguments)
        check_store_tables(self.net)
        return "\n".join([*said, "----", *(self._lines or ["(nothing)"])])

    # ---- commands -------------------------------------------------------------------------------

    def do_tree(self, *edges: str) -> None:
        pairs = [edge.split("-") for edge in edges]
        links = [(a, b) for a, b in pairs] + [(b, a) for a, b in pairs]
        self.net = PastNet(links)
        self.net.on_message = self._on_message
        self.net.on_change = self._show
        self._shown = {name: self._table(name) for name in self.net.brokers}
        self._lines = [" ".join(self.net.brokers)]

    def do_store(self, name: str, *units: str) -> None:
        """The store is ready: it has subscribed, and has what it lacked."""
        self.net.keep(name, *units)

    def do_withdraw(self, name: str, *units: str) -> None:
        self.net.give_up(name, *units)

    def do_crash(self, name: str) -> None:
        self.net.crash(name)
        self.net.pass_time(0.5)

    def do_cut(self, edge: str) -> None:
        for one, other in (edge.split("-"), reversed(edge.split("-"))):
            self.net.break_link(one, other)
        self.net.pass_time(0.5)

    def do_publish(self, topic: str, payload: str, *attributes: str) -> None:
        pairs = [attribute.split("=") for attribute in attributes]
        values = {name: int(value) for name, value in pairs}
        stored_at = self.net.publish(topic, payload.encode(), **values)
        self._lines.append(f"stored at {', '.join(stored_at)}")

    def do_request(self, broker: str, pattern: str, *where: str) -> None:
        """request 6 top_a where size > 2"""
        reader = self.net.ask(broker, pattern, where=" ".join(where[1:]))
        self.net.pass_time(60.0 if reader.ended is None else 0.5)
        payloads = " ".join(payload.decode() for payload in reader.payloads)
        self._lines.append(f"client at {broker}: {payloads or 'nothing'}")
        if reader.error:
            self._lines.append(f"client at {broker}: {show_error(reader.error)}")

    # ---- what is shown --------------------------------------------------------------------------

    def _on_message(self, source: str, destination: str, message: PeerMessage) -> None:
        if message.HasField("store_advertisement") and not message.store_advertisement.renewal:
            said = show_advertisement(message.store_advertisement)
            self._lines.append(f"{source} -> {destination}  Advertise {said}")
        elif message.HasField("past_request"):
            said = show_request(message.past_request)
            self._lines.append(f"{source} -> {destination}  Request {said}")
        elif message.HasField("past_response"):
            said = show_response(message.past_response, popped=destination)
            self._lines.append(f"{source} -> {destination}  Response {said}")
        self._show(destination)

    def _show(self, name: str) -> None:
        table = self._table(name)
        if table != self._shown.get(name):
            self._shown[name] = table
            self._lines.append(f"{name}: {table}")

    def _table(self, name: str) -> str:
        entries = [show_entry(entry) for entry in self.net.brokers[name].table.entries()]
        return "; ".join(entries) or "(empty)"


def show_advertisement(message: StoreAdvertisement) -> str:
    offered = [f"{unit},{len(offer.way)}" for offer in message.offers for unit in offer.units]
    return " ".join([*offered, *(f"-{unit}" for unit in message.withdrawn)])


def show_request(request: PastRequest) -> str:
    where = f" where {request.filter.where}" if request.filter.where else ""
    return f"{request.filter.pattern}{where} ({show_path(request.path)})"


def show_response(response: PastResponse, popped: str) -> str:
    """As it was sent: whoever has received it has taken itself off the path."""
    events = [event for run in response.events.runs for event in events_of(run) or ()]
    said = [event.payload.decode() for event in events]
    said += [show_error(response.error)] if response.error else []
    said += ["end"] if response.end else []
    path = show_path(response.path)
    return f"{', '.join(said)} ({' '.join(filter(None, [path, popped]))})"


def show_error(error: PastError.ValueType) -> str:
    return PastError.Name(error).removeprefix("PAST_ERROR_").lower().replace("_", " ")


def show_path(path: Iterable[NodeRef]) -> str:
    return " ".join(stop.broker_id for stop in path)


def show_entry(entry: StoreEntry) -> str:
    nearest = [_shown(holder, entry.unit, len(way)) for holder, way in entry.nearest.items()]
    aside = [_shown(holder, entry.unit, len(way)) for holder, way in entry.aside.items()]
    return " ".join([*sorted(nearest), *(f"({one})" for one in sorted(aside))])


def _shown(holder: str, unit: str, distance: int) -> str:
    return f"{holder or 'here'}:{unit},{distance}"
