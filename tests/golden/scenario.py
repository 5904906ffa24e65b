"""Scenario texts: commands, and under each the frames and effects it leads to.

    ring 4
    ----
    n0 n1 n2 n3

    want n1 quake/ca
    ----
    0.000 n1 -> n2  join_tree quake/ca n1
    0.005 n2 -> n1  tree_update quake/ca +n1 at 1.000000/0
    0.010 n1 is in the tree of quake/ca

Times are since the command began. Maintenance (pings, stabilisation, lookups, digests) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage, Run
from overlay.base.effects import Accepted, Deliver, Departed, Effect, InTree, Ready
from overlay.base.identifiers import show_term
from tests.support.nodes import NodeNet, publication

MAINTENANCE = frozenset(
    {"ping", "pong", "stabilise", "neighbours", "notify", "nudge", "lookup", "found"}
    | {"tree_digest", "not_here"}
)
SPACE = 1 << 64


class Scenario:
    def __init__(self) -> None:
        self.net = NodeNet()
        self.net.on_frame = self._on_frame
        self._lines: list[str] = []
        self._began_s = 0.0
        self._effects_shown = 0
        self._cut: set[tuple[str, str]] = set()
        self.net.drops = lambda source, destination, frame: (source, destination) in self._cut

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
        self._began_s = self.net.now_s
        for command in commands:
            name, *arguments = command.split()
            handler: Callable[..., None] = getattr(self, f"do_{name}")
            handler(*arguments)
        return "\n".join([*said, "----", *(self._lines or ["(nothing)"])])

    # ---- commands -------------------------------------------------------------------------------

    def do_ring(self, size: str) -> None:
        """Nodes evenly spaced, n0 at 1/16 of a step, so that keys fall between them."""
        step = SPACE // int(size)
        self.net.ring(i * step + step // 16 for i in range(int(size)))
        self._effects_shown = len(self.net.effects)
        self._lines = [" ".join(sorted(self.net.nodes))]

    def do_want(self, name: str, topic: str) -> None:
        self.net.want(name, topic)
        self._run(1.0)

    def do_unwant(self, name: str, topic: str) -> None:
        self.net.unwant(name, topic)
        self._run(1.0)

    def do_publish(self, name: str, topic: str, first: str, count: str = "1") -> None:
        event = publication(topic, int(first), count=int(count), settled=int(first) - 1)
        self.net.publish(name, event)
        self._run(0.3)

    def do_crash(self, name: str) -> None:
        self.net.crash(name)

    def do_leave(self, name: str) -> None:
        self.net.leave(name)
        self._run(1.0)

    def do_join(self, name: str, at: str) -> None:
        """At this share of the circle, such as 0.4."""
        self.net.add(name, ["n0"], int(float(at) * SPACE))
        self._run(3.0)

    def do_cut(self, *sides: str) -> None:
        """cut n0,n1 n2,n3: no frame passes between the two sides."""
        one, other = (side.split(",") for side in sides)
        self._cut = {(a, b) for a in one for b in other} | {(b, a) for a in one for b in other}

    def do_heal(self) -> None:
        self._cut = set()

    def do_run(self, seconds: str) -> None:
        self._run(float(seconds))

    def do_quietly(self, seconds: str) -> None:
        """Run without showing anything."""
        self.net.run(float(seconds))
        self._effects_shown = len(self.net.effects)
        self._lines = []

    def _run(self, seconds: float) -> None:
        end_s = self.net.now_s + seconds
        while self.net.now_s < end_s:
            self.net.run(0.001)
            for at_s, name, effect in self.net.effects[self._effects_shown :]:
                line = self._show_effect(name, effect)
                if line:
                    self._note(at_s, line)
            self._effects_shown = len(self.net.effects)

    # ---- what is shown --------------------------------------------------------------------------

    def _note(self, at_s: float, line: str) -> None:
        self._lines.append(f"{at_s - self._began_s:.3f} {line}")

    def _on_frame(self, source: str, destination: str, frame: PeerFrame) -> None:
        for message in frame.messages:
            kind = str(message.WhichOneof("body"))
            if kind not in MAINTENANCE:
                what = self._show(kind, message)
                if what:
                    self._note(self.net.now_s, f"{source} -> {destination}  {kind} {what}".rstrip())

    def _name(self, node_id: int) -> str:
        names = {node.me.node_id: name for name, node in self.net.nodes.items()}
        return names.get(node_id, f"{node_id:016x}"[:4])  # type: ignore[call-overload, no-any-return]

    def _show(self, kind: str, message: PeerMessage) -> str:
        body = getattr(message, kind)
        match kind:
            case "join_tree" | "leave_tree":
                return f"{body.topic} {self._name(body.member)}"
            case "tree_update":
                return "; ".join(self._show_change(change) for change in body.changes)
            case "publish":
                return ", ".join(
                    f"{p.topic} {p.first_number}"
                    + (f"-{p.first_number + p.count - 1}" * (p.count > 1))
                    for p in body.publications
                )
            case "publish_ack":
                return ", ".join(f"{a.topic} up to {a.number}" for a in body.acknowledged)
            case "runs":
                return ", ".join(self._show_run(run) for run in body.runs)
            case "replicate":
                return self._show_replicate(body)
            case "replica_ack":
                stamps = zip(body.topics, body.terms, body.seqs, strict=True)
                return ", ".join(f"{topic} {show_term(term)}/{seq}" for topic, term, seq in stamps)
            case "adopt":
                position = body.state.position
                return f"{body.state.topic} {show_term(position.term)}/{position.seq}"
            case "adopted":
                return str(body.topic)
            case "fetch" | "fetched":
                return f"{body.topic}"
            case "range_granted" | "leave" | "leave_seen":
                return " "
        return ""

    def _show_change(self, change: object) -> str:
        added = [f"+{self._name(member)}" for member in change.add]  # type: ignore[attr-defined]
        removed = [f"-{self._name(member)}" for member in change.remove]  # type: ignore[attr-defined]
        return " ".join([change.topic, *added, *removed])  # type: ignore[attr-defined]

    @staticmethod
    def _show_run(run: Run) -> str:
        place = f"{run.topic} {show_term(run.term)}/{run.first_seq}"
        if run.count == 0:
            return f"{place} heartbeat"
        return place + (f"-{run.first_seq + run.count - 1}" * (run.count > 1))

    def _show_replicate(self, body: object) -> str:
        parts = [self._show_run(run) for run in body.runs]  # type: ignore[attr-defined]
        parts += [
            f"{state.topic} state {show_term(state.position.term)}/{state.position.seq}"
            for state in body.states  # type: ignore[attr-defined]
        ]
        parts += [
            f"{change.topic} {'+' if change.joined else '-'}{self._name(change.member)}"
            for change in body.members  # type: ignore[attr-defined]
        ]
        parts += [f"{topic} announced" for topic in body.announced]  # type: ignore[attr-defined]
        return ", ".join(parts)

    def _show_effect(self, name: str, effect: Effect) -> str:
        match effect:
            case Deliver(run=run) if run.count:
                return f"{name} hears {self._show_run(run)}"
            case InTree(topic=topic):
                return f"{name} is in the tree of {topic}"
            case Accepted(ack=ack):
                return "; ".join(
                    f"{name} is told that {a.topic} {a.number} is safe" for a in ack.acknowledged
                )
            case Ready():
                return f"{name} serves its range"
            case Departed():
                return f"{name} has left"
        return ""
