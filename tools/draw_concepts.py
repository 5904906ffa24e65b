"""Draw the pictures of docs/concepts.md, docs/manager.md and docs/trees.md as SVG.

python tools/draw_concepts.py            write them
python tools/draw_concepts.py --check    fail if what is committed is not current

Rings and trees are those that the code makes of these brokers' names.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from draw_forwarding import draw_forwarding
from drawing import Drawing, Point, towards

from broker_agent.core.routing.rendezvous.plans.part import PART_STATES, PartState
from overlay.base.identifiers import NodeId, first_node_id, key_of
from overlay.placement.geometry import RingGeometry, TopicTreeShape
from reconfig_manager.model.plan import PHASES, TRANSITIONS, Phase, PlanState

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images"
BROKERS = 12
TOPIC = "quake/ca"
# Who subscribes to the topic; and who changes places so that no relay is left.
SUBSCRIBERS = ("b10", "b0", "b5", "b7")
SWAPS = (("b10", "b6"), ("b0", "b3"), ("b5", "b8"), ("b7", "b9"))

# ---- the ring, and a topic's tree on it ----------------------------------------------------------


class DrawnRing:
    """Brokers where their names put them; drawn in equal steps, so that all can be read."""

    def __init__(self, swaps: Iterable[tuple[str, str]] = ()) -> None:
        hosts = {first_node_id(name): name for name in (f"b{i}" for i in range(BROKERS))}
        self.geometry = RingGeometry(hosts)
        self.names = [hosts[NodeId(int(node))] for node in self.geometry.node_ids]
        for one, other in swaps:
            i, k = self.names.index(one), self.names.index(other)
            self.names[i], self.names[k] = other, one
        self.root = self.geometry.successor_of(key_of(TOPIC))

    def tree(self, subscribers: Sequence[str]) -> TopicTreeShape:
        return self.geometry.tree(self.root, [self.names.index(name) for name in subscribers])

    def fingers(self, index: int) -> list[int]:
        found = {int(k) for k in self.geometry.fingers()[index]} - {index}
        return sorted(found)


def on_circle(middle: Point, radius: float, step: float) -> Point:
    angle = 2 * math.pi * step / BROKERS - math.pi / 2
    return middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle)


def draw_ring() -> Drawing:
    drawing = Drawing(400, "Brokers on a ring, a topic's key, and the routes of one broker")
    ring, middle, radius = DrawnRing(), (205.0, 200.0), 145.0
    drawing.add("circle", cx=middle[0], cy=middle[1], r=radius, class_="to-plain")
    places = [on_circle(middle, radius, i) for i in range(BROKERS)]
    asking = (ring.root + 2) % BROKERS
    for finger in ring.fingers(asking):
        drawing.arrow(*towards(places[asking], places[finger], 21), kind="to-purple dashed")
    key, before = (
        on_circle(middle, radius, ring.root - 0.6),
        on_circle(middle, radius, ring.root - 1),
    )
    assert before == places[ring.root - 1]
    drawing.add("circle", cx=key[0], cy=key[1], r=6, class_="orange")
    for i, (at, name) in enumerate(zip(places, ring.names, strict=True)):
        drawing.broker(at, name, "blue" if i == ring.root else "purple" if i == asking else "plain")
    left = 415.0
    drawing.add("circle", cx=left, cy=66, r=6, class_="orange")
    drawing.text((left + 20, 71), f"the key of the topic {TOPIC},")
    drawing.text((left + 20, 90), "a hash of its name", kind="dim small")
    drawing.add("circle", cx=left, cy=136, r=9, class_="blue")
    drawing.text((left + 20, 141), f"{ring.names[ring.root]}, the first at or after the key:")
    drawing.text(
        (left + 20, 160),
        "its rendezvous point, which puts the",
        "topic's events in order",
        kind="dim small",
    )
    drawing.add("circle", cx=left, cy=220, r=9, class_="purple")
    drawing.text((left + 20, 225), f"{ring.names[asking]} and the brokers it routes by:")
    drawing.text(
        (left + 20, 244),
        "its neighbour, and others at distances",
        "that double; any broker is a few hops",
        "away, and nobody knows all",
        kind="dim small",
    )
    drawing.text(
        (left - 9, 330),
        "A position on the ring is a node. Which",
        "broker stands where can be changed:",
        "see below.",
        kind="dim small",
    )
    return drawing


def draw_tree() -> Drawing:
    drawing = Drawing(
        464, "A topic's tree, with relays; and without, after brokers have changed places"
    )
    for ring, middle, title in (
        (DrawnRing(), (185.0, 225.0), "where names put brokers"),
        (DrawnRing(SWAPS), (535.0, 225.0), "after a reconfiguration"),
    ):
        tree = ring.tree(SUBSCRIBERS)
        drawing.text((middle[0], 34), title, kind="head", anchor="middle")
        drawing.add("circle", cx=middle[0], cy=middle[1], r=145, class_="to-plain")
        places = [on_circle(middle, 145, i) for i in range(BROKERS)]
        for child, parent in sorted(tree.parents.items()):
            drawing.arrow(*towards(places[parent], places[child], 21), kind="to-green strong")
        for i, (at, name) in enumerate(zip(places, ring.names, strict=True)):
            kind = "blue" if i == ring.root else "orange" if i in tree.relays else "plain"
            drawing.broker(at, name, "green" if name in SUBSCRIBERS else kind)
        relays = len(tree.relays)
        words = f"{len(tree.parents)} messages an event, {relays or 'none'} of them to relays"
        drawing.text((middle[0], 412), words, kind="small", anchor="middle")
    for x, kind, words in (
        (120, "blue", "rendezvous point"),
        (300, "green", "subscribes"),
        (440, "orange", "relay: it only passes on"),
    ):
        drawing.add("circle", cx=x, cy=440, r=8, class_=kind)
        drawing.text((x + 15, 445), words, kind="small")
    return drawing


# ---- what moves, and who goes where --------------------------------------------------------------


def draw_node() -> Drawing:
    drawing = Drawing(330, "What a broker keeps, and what is handed over")
    for x, name in ((30, "b3"), (430, "b8")):
        drawing.add("rect", x=x, y=52, width=260, height=248, rx=8, class_="plain")
        drawing.text((x + 130, 40), f"broker {name}", kind="head", anchor="middle")
        stays = ("stays", "sessions and their queues", "what users subscribe to")
        drawing.box((x + 20, 72), (220, 86), "purple", *stays)
        node = f"moves: node {first_node_id(name):016x}"[:16] + "…"
        moves = (node, "a position on the ring", "its part of topic trees")
        drawing.box((x + 20, 176), (220, 106), "blue", *moves, "topics: their order and past")
    drawing.arrow((272, 215), (448, 215), kind="to-blue strong")
    drawing.arrow((448, 245), (272, 245), kind="to-blue strong")
    drawing.text((360, 200), "hand-over", kind="small", anchor="middle")
    drawing.text((360, 108), "users notice", "a short pause", kind="dim small", anchor="middle")
    return drawing


def draw_users() -> Drawing:
    drawing = Drawing(330, "A user is sent to the broker whose users follow the like")
    drawing.box((40, 110), (150, 86), "plain", "a new user", "quake/ca, quake/nv,", "news/eu")
    brokers = (
        (24, "b1", "plain", "shop/eu, shop/us", "0 of 3 in common"),
        (124, "b4", "green", "quake/ca, quake/nv", "2 of 3, load is average"),
        (224, "b7", "plain", "quake/ca, news/eu", "2 of 3, but twice the load"),
    )
    for y, name, kind, topics, verdict in brokers:
        drawing.box((430, y), (260, 82), kind, name, f"others follow {topics}", verdict)
    drawing.arrow((190, 130), (426, 64))
    drawing.text((300, 70), "1. comes to b1", kind="small", anchor="middle")
    drawing.arrow((426, 84), (194, 146), kind="to-plain dashed")
    drawing.text((332, 138), "2. is told of b4", kind="small dim", anchor="middle")
    drawing.arrow((190, 172), (426, 168), kind="to-green strong")
    drawing.text((300, 192), "3. goes there by itself", kind="small", anchor="middle")
    promise = ("b1 has subscribed to nothing for this user.", "What was under way goes along:")
    drawing.text((40, 252), *promise, "nothing is lost or repeated.", kind="dim small")
    return drawing


# ---- in time -------------------------------------------------------------------------------------

_STEPS = (
    (96, "RCFG_INIT", "FREEZING", "all hold back what their", "clients publish and change"),
    (176, "RCFG_DHT_UPDATE", "MOVING", "those that move give their", "node away, take another in"),
    (292, "RCFG_TREE_RESTORE", "RESTORING", "all use the new placement"),
    (362, "RCFG_TREE_REPAIR", "REPAIRING", "those that moved join", "and leave trees"),
    (432, "RCFG_FINISH", "FINISHING", "all serve what was held back"),
)


def draw_steps() -> Drawing:
    drawing = Drawing(520, "The steps of a reconfiguration, and its commit point")
    for name, x, kind in (
        ("manager", 130.0, "blue"),
        ("brokers", 380.0, "plain"),
        ("clients", 640, "purple"),
    ):
        drawing.box((x - 60, 18), (120, 34), kind, name)
        drawing.arrow((x, 52), (x, 506))
    for y, message, phase, *does in _STEPS:
        drawing.arrow((130, y), (376, y), kind="to-blue")
        drawing.text((253, y - 7), message, kind="mono", anchor="middle")
        drawing.arrow((380, y + 24), (134, y + 24), kind="to-plain dashed")
        drawing.text((253, y + 41), "done", kind="small dim", anchor="middle")
        drawing.text((116, y + 5), phase, kind="mono dim", anchor="end")
        drawing.text((392, y + 5), *does, kind="small")
    drawing.add("rect", x=626, y=104, width=28, height=336, rx=4, class_="orange")
    drawing.text((612, 476), "they wait for some 100 ms", kind="small", anchor="end")
    drawing.add("path", d="M20 252 H610", class_="to-orange strong dashed")
    drawing.text((24, 244), "commit point", kind="head")
    drawing.text((606, 244), "before: back, if anybody dies", kind="small dim", anchor="end")
    drawing.text((606, 270), "after: forward", kind="small dim", anchor="end")
    return drawing


# ---- the states of a plan ------------------------------------------------------------------------

_STATE_SIZE, _PHASE_SIZE = (128.0, 34.0), (112.0, 34.0)
_STATES = {
    PlanState.PROPOSED: (24.0, 56.0),
    PlanState.APPROVED: (206.0, 56.0),
    PlanState.EXECUTING: (388.0, 56.0),
    PlanState.COMMITTED: (568.0, 56.0),
    PlanState.REJECTED: (24.0, 164.0),
    PlanState.CANCELLED: (188.0, 164.0),
    PlanState.EXPIRED: (352.0, 164.0),
    PlanState.ROLLED_BACK: (568.0, 164.0),
}
_PHASES = {
    Phase.FREEZING: (24.0, 310.0),
    Phase.MOVING: (164.0, 310.0),
    Phase.RESTORING: (304.0, 310.0),
    Phase.REPAIRING: (444.0, 310.0),
    Phase.FINISHING: (584.0, 310.0),
    Phase.ROLLING_BACK: (164.0, 424.0),
}


def draw_plan() -> Drawing:
    """Every arrow is one that the tables of the code allow, and none is left out."""
    drawing = Drawing(500, "The states of a plan, and the phases of its execution")
    drawing.text((24, 36), "a plan", kind="head")
    for state, followers in TRANSITIONS.items():
        for following in followers:
            _draw_transition(drawing, _STATES[state], _STATES[following], _STATE_SIZE)
    for state, at in _STATES.items():
        fine = "green" if state is PlanState.COMMITTED else "plain"
        drawing.box(at, _STATE_SIZE, fine if state.over else "blue", state.value)
    drawing.text((24, 262), "while EXECUTING", kind="head")
    for phase, later in PHASES.items():
        for following in later if phase is not None else ():
            _draw_transition(drawing, _PHASES[phase], _PHASES[following], _PHASE_SIZE)
    for phase, at in _PHASES.items():
        kind = "green" if phase.committed else "blue"
        drawing.box(at, _PHASE_SIZE, "orange" if phase is Phase.ROLLING_BACK else kind, phase.value)
    drawing.add("path", d="M290 280 V376", class_="to-orange strong dashed")
    drawing.text((290, 272), "commit point", kind="small", anchor="middle")
    drawing.text(
        (444, 400),
        "dashed: a new leader begins the phase",
        "again; or the journal had lost a commit,",
        "and a broker says that it is in use",
        kind="small dim",
    )
    return drawing


def _draw_transition(drawing: Drawing, begin: Point, end: Point, size: Point) -> None:
    """To the right or down in a line; what goes back, or stays, in a dashed one around the box."""
    width, height = size
    middle = (begin[0] + width / 2, begin[1] + height / 2)
    if begin[1] == end[1] and begin[0] < end[0]:
        drawing.arrow((begin[0] + width, middle[1]), (end[0] - 4, middle[1]))
    elif begin[1] < end[1]:
        goal = (end[0] + width / 2, end[1] - 4)
        # Those that come from the left arrive left of those from above.
        shift = (begin[0] - end[0]) / 9
        drawing.arrow((middle[0] - shift / 2, begin[1] + height), (goal[0] + shift, goal[1]))
    elif begin[1] > end[1]:
        x = end[0] + 24
        drawing.arrow(
            (begin[0] + width, middle[1]), (x, middle[1]), (x, end[1] + height + 4),
            kind="to-plain dashed",
        )  # fmt: skip
    elif begin == end:
        left, right, under = end[0] + width - 48, end[0] + width - 22, end[1] + height + 16
        drawing.arrow(
            (left, end[1] + height), (left, under), (right, under), (right, end[1] + height + 4),
            kind="to-plain dashed",
        )  # fmt: skip
    else:
        # Above the boxes, the farther the higher.
        far = (begin[0] - end[0]) / 14
        over, x = begin[1] - 10 - far, end[0] + width - 22 - far
        drawing.arrow(
            (middle[0], begin[1]), (middle[0], over), (x, over), (x, end[1] - 4),
            kind="to-plain dashed",
        )  # fmt: skip


# ---- a broker's part in a plan -------------------------------------------------------------------

_PART_SIZE = (118.0, 34.0)
_PARTS = {
    PartState.IDLE: (24.0, 150.0),
    PartState.FROZEN: (212.0, 150.0),
    PartState.GIVING: (400.0, 60.0),
    PartState.RESTORED: (588.0, 150.0),
    PartState.UNSURE: (400.0, 300.0),
}
# The way of each arrow, and where it is said what leads along it; for each that the table has.
_PART_ARROWS: dict[tuple[PartState, PartState], tuple[tuple[Point, ...], Point, str]] = {
    (PartState.IDLE, PartState.FROZEN): (((142, 160), (208, 160)), (175, 152), "middle"),
    (PartState.FROZEN, PartState.GIVING): (((290, 150), (396, 84)), (318, 112), "end"),
    (PartState.FROZEN, PartState.RESTORED): (((330, 167), (584, 167)), (388, 160), "middle"),
    (PartState.FROZEN, PartState.IDLE): (((212, 176), (146, 176)), (176, 206), "middle"),
    (PartState.GIVING, PartState.RESTORED): (((518, 84), (616, 146)), (590, 92), "start"),
    (PartState.GIVING, PartState.IDLE): (((400, 70), (83, 70), (83, 146)), (240, 42), "middle"),
    (PartState.GIVING, PartState.UNSURE): (((459, 94), (459, 296)), (468, 230), "start"),
    (PartState.RESTORED, PartState.IDLE): (
        ((647, 184), (647, 400), (60, 400), (60, 188)), (350, 418), "middle",
    ),
    (PartState.UNSURE, PartState.IDLE): (((400, 326), (96, 326), (96, 188)), (230, 344), "middle"),
    (PartState.UNSURE, PartState.FROZEN): (((400, 308), (270, 308), (270, 188)), (262, 290), "end"),
}  # fmt: skip


def draw_part() -> Drawing:
    """Every arrow is one that the table of the code has, and none is left out."""
    drawing = Drawing(456, "A broker's part in a reconfiguration")
    drawing.text((24, 30), "a broker, as plans see it", kind="head")
    for state, followers in PART_STATES.items():
        for following, why in followers.items():
            way, at, anchor = _PART_ARROWS[state, following]
            is_alone = "patience" in why and following is not PartState.IDLE
            drawing.arrow(*way, kind="to-orange dashed" if is_alone else "to-plain")
            drawing.text(at, *why.replace(", or ", ",|or ").split("|"), kind="small", anchor=anchor)
    for state, at in _PARTS.items():
        kind = {PartState.IDLE: "plain", PartState.RESTORED: "green", PartState.UNSURE: "orange"}
        drawing.box(at, _PART_SIZE, kind.get(state, "blue"), state.value)
    return drawing


def draw_analytics() -> Drawing:
    drawing = Drawing(330, "From brokers to the lake, to Spark, to advice, and back")
    drawing.box((30, 40), (170, 90), "plain", "brokers", "serve; write what", "happens as Parquet")
    drawing.box(
        (275, 40), (170, 90), "blue", "lake", "publications, sessions,", "subscriptions, requests"
    )
    drawing.box(
        (520, 40), (170, 90), "purple", "Spark", "takes in what is new,", "every quarter of an hour"
    )
    drawing.box((275, 200), (170, 90), "green", "Redis", "advice, with a time", "until it is stale")
    drawing.box(
        (30, 200), (170, 90), "plain", "manager", "plans placements by", "rates of everybody"
    )
    drawing.arrow((200, 85), (271, 85))
    drawing.arrow((445, 85), (516, 85))
    drawing.arrow((605, 130), (605, 245), (449, 245))
    drawing.arrow((275, 245), (204, 245))
    drawing.text((238, 235), "rates", kind="small dim", anchor="middle")
    drawing.arrow((330, 200), (150, 134))
    drawing.text((276, 160), "where users had better be", kind="small dim")
    drawing.text(
        (605, 270),
        "If any of this is away, brokers",
        "and manager go on without.",
        kind="small dim",
        anchor="middle",
    )
    return drawing


DRAWINGS = {
    "ring.svg": draw_ring,
    "tree.svg": draw_tree,
    "node.svg": draw_node,
    "users.svg": draw_users,
    "steps.svg": draw_steps,
    "plan.svg": draw_plan,
    "part.svg": draw_part,
    "analytics.svg": draw_analytics,
    "forwarding.svg": draw_forwarding,
}


def main() -> int:
    stale = []
    for name, draw in DRAWINGS.items():
        path, text = TARGET / name, str(draw())
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        print(f"{', '.join(stale)}: not current, run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
