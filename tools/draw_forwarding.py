"""Where subscriptions and an event go in a tree of brokers, by its mode: as the tables have it."""

from __future__ import annotations

from drawing import Drawing, Point, towards

from dynatops.kit.filters import Filter
from experiments.systems.subscription_tree import SubscriptionTree
from overlay.forwarding.tables import TableRules
from overlay.forwarding.topology import TreeMode

TOPIC = "quake/ca"
SUBSCRIBERS = {"n2": ("quake/#", "green"), "s1": ("flood/#", "orange")}
PUBLISHER = "n1"
# Where they stand in a panel; the parent first in each link.
PLACES: dict[str, Point] = {
    "hub": (110.0, 90.0),
    "n": (60.0, 165.0),
    "s": (160.0, 165.0),
    "n1": (28.0, 245.0),
    "n2": (84.0, 245.0),
    "s1": (138.0, 245.0),
    "s2": (194.0, 245.0),
}
LINKS = [("hub", "n"), ("hub", "s"), ("n", "n1"), ("n", "n2"), ("s", "s1"), ("s", "s2")]
PANELS = (
    ("peer", TableRules(TreeMode.PEER)),
    ("hierarchical", TableRules(TreeMode.HIERARCHICAL)),
    ("with advertisements", TableRules(TreeMode.HIERARCHICAL, advertisements=True)),
)
_RADIUS = 17.0
# How far from a link its arrows lie, so that none lies on another.
_EVENT = 4.0
_SUBSCRIPTION = 9.0


def draw_forwarding() -> Drawing:
    drawing = Drawing(380, "Where subscriptions and an event go in a tree of brokers, by its mode")
    for number, (title, rules) in enumerate(PANELS):
        _draw_panel(drawing, 20.0 + 230.0 * number, title, rules)
    for x, kind, words in (
        (40, "blue", "publishes quake/ca"),
        (200, "green", "wants quake/#"),
        (332, "orange", "wants flood/#"),
    ):
        drawing.add("circle", cx=x, cy=356, r=8, class_=kind)
        drawing.text((x + 15, 361), words, kind="small")
    for x, kind, words in (
        (462.0, "to-purple dashed", "a subscription"),
        (605.0, "to-green strong", "the event"),
    ):
        drawing.arrow((x, 356.0), (x + 30, 356.0), kind=kind)
        drawing.text((x + 38, 361), words, kind="small")
    return drawing


def _draw_panel(drawing: Drawing, left: float, title: str, rules: TableRules) -> None:
    tree = SubscriptionTree(rules, LINKS)
    if rules.advertisements:
        tree.advertise(PUBLISHER, Filter.parse(TOPIC))
    for broker, (pattern, _) in SUBSCRIBERS.items():
        tree.want(broker, Filter.parse(pattern))
    hops = tree.publish(PUBLISHER, TOPIC).hops
    places = {name: (left + x, y) for name, (x, y) in PLACES.items()}
    drawing.text((left + 110, 44), title, kind="head", anchor="middle")
    for parent, child in LINKS:
        drawing.line(*towards(places[parent], places[child], _RADIUS))
        for one, other in ((parent, child), (child, parent)):
            if tree.told(one, other):
                _arrow(drawing, places[one], places[other], _SUBSCRIPTION, "to-purple dashed")
            if (one, other) in hops:
                _arrow(drawing, places[one], places[other], _EVENT, "to-green strong")
    for name, at in places.items():
        kind = "blue" if name == PUBLISHER else SUBSCRIBERS.get(name, ("", "plain"))[1]
        drawing.broker(at, name, kind, _RADIUS)
    sent = tree.sent
    words = [f"{sent.subscriptions} messages to subscribe", f"{sent.events} for the event"]
    if sent.advertisements:
        words.insert(1, f"{sent.advertisements} to advertise, before")
    drawing.text((left + 110, 290), *words, kind="small", anchor="middle")


def _arrow(drawing: Drawing, begin: Point, end: Point, beside: float, kind: str) -> None:
    """To the right of the way."""
    (x1, y1), (x2, y2) = towards(begin, end, _RADIUS + 2)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = -(y2 - y1) / length * beside, (x2 - x1) / length * beside
    drawing.arrow((x1 + dx, y1 + dy), (x2 + dx, y2 + dy), kind=kind)
