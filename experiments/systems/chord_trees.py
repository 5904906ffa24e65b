"""DYNATOPS' broker network at full scale: trees on a Chord ring, and brokers that are moved on it.

Where the real cores pass messages, this computes them, from the static geometry that the protocol
converges to (`overlay/placement/geometry.py`); what it counts is what the cores send
(`tests/simulation/test_agreement.py`). The cost model, the solvers and the decision are those of
the manager. Of the protocol:

- A join is routed by the topic's key from the member's node to the rendezvous point, which then
  tells all nodes on the route from itself to the member, one after the other; a leave likewise.
  Both cost the two routes, whoever else is in the tree. A route by key passes the node before the
  key: nobody else knows that the next one is responsible.
- A publication is routed to the rendezvous point, unless its broker knows already which node that
  is (`way`); cores learn it with the first answer. Copies that a rendezvous point gives its
  successor, and acknowledgements, are promises that no compared system makes: they are not counted.
- A reconfiguration costs what eq. 11 says, with the constants that a manager begins with. It is a
  bound, which the table `protocol-cost` compares with what cores send.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.systems.system import Dissemination, Floats, Ints, Pairs, Sites, Topics, Upkeep
from overlay.base.identifiers import first_node_id, key_of
from overlay.placement.cost import CostModel, Demand, Prices
from overlay.placement.geometry import RingGeometry
from reconfig_manager.placement.decision import is_reconfigurable
from reconfig_manager.placement.problem import Objective, PlacementProblem, Task, judge
from reconfig_manager.solvers import SOLVERS


class Way(enum.StrEnum):
    """How a publication gets to the rendezvous point."""

    # As published, and as a broker's first one on a topic.
    ROUTED = "routed"
    # As all further ones.
    DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguring:
    """How brokers are moved; `solver` None: never."""

    solver: str | None = None
    # w_d, of delays in mean round trips, or in hops.
    delay_weight: float = 1.0
    # Solvers that search on are ended after so many steps, so that a run can be repeated.
    iterations_max: float = float("inf")
    # Delays are sums of round trips (eq. 1), and not hops. Slower.
    by_rtt: bool = False


@dataclass(frozen=True, slots=True)
class _Tree:
    """Of one topic, as it stands."""

    spread: int
    brokers: Ints
    # From the rendezvous point.
    delays: Floats


class ChordTrees:
    def __init__(
        self,
        sites: Sites,
        topics: Topics,
        seed: int,
        reconfiguring: Reconfiguring | None = None,
        way: Way = Way.ROUTED,
    ) -> None:
        self.sites = sites
        self.topics = topics
        self.reconfiguring = reconfiguring or Reconfiguring()
        self.reconfigurations = 0
        self._way = way
        names = [f"b{i}" if not seed else f"{seed}/b{i}" for i in range(len(sites))]
        ids = [int(first_node_id(name)) for name in names]
        self.geometry = RingGeometry(ids)
        self._place = np.array([self.geometry.index_of(i) for i in ids], dtype=np.int32)
        self._keys = [int(key_of(name)) for name in topics.names]
        self.roots = self.geometry.successors_of(np.array(self._keys, dtype=np.uint64))
        # From each node to each.
        self._hops = self.geometry.hops().astype(np.int32)
        self._next = self.geometry.next_hops()
        # From each node to each rendezvous point, by key.
        self._hops_by_key = np.roll(self._hops, 1, axis=1) + 1
        np.fill_diagonal(self._hops_by_key, 0)
        self._subscribed = np.zeros((len(sites), len(topics)), dtype=bool)
        self._trees: dict[int, _Tree] = {}

    @property
    def place(self) -> Ints:
        """[broker] -> node."""
        return self._place.copy()

    @property
    def greatest_degree(self) -> int:
        fingers = self.geometry.fingers()
        own = np.arange(len(fingers))[:, None]
        distinct = np.sort(np.where(fingers == own, -1, fingers), axis=1)
        new = (distinct[:, 1:] != distinct[:, :-1]) & (distinct[:, 1:] >= 0)
        return int((new.sum(axis=1) + (distinct[:, 0] >= 0)).max())

    # ---- subscriptions --------------------------------------------------------------------------

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        self._set(leaves, to=False)
        self._set(joins, to=True)
        both = np.concatenate([leaves, joins])
        nodes, roots = self._place[both[:, 0]], self.roots[both[:, 1]]
        messages = self._hops_by_key[nodes, roots].sum() + self._hops[roots, nodes].sum()
        for topic in set(both[:, 1].tolist()):
            self._trees.pop(topic, None)
        return Upkeep(int(messages))

    def _set(self, changed: Pairs, *, to: bool) -> None:
        brokers, topics = changed[:, 0], changed[:, 1]
        if (self._subscribed[brokers, topics] == to).any():
            raise ValueError("a join of what is joined, or a leave of what is not")
        self._subscribed[brokers, topics] = to

    # ---- publications ---------------------------------------------------------------------------

    def publish(self, publisher: int, topic: int) -> Dissemination:
        tree = self._trees.get(topic)
        if tree is None:
            tree = self._trees[topic] = self._grow(topic)
        start, root = int(self._place[publisher]), int(self.roots[topic])
        route = (
            [start] if start == root or self._way is Way.DIRECT else self._route_by_key(start, root)
        )
        if start != root:
            route.append(root)
        delay = self._delay_along(route)
        return Dissemination(len(route) - 1, tree.spread, tree.brokers, tree.delays + delay)

    def _route_by_key(self, start: int, root: int) -> list[int]:
        """As far as the node before the rendezvous point."""
        route, last = [start], (root - 1) % len(self._place)
        while route[-1] != last:
            route.append(int(self._next[route[-1], last]))
        return route

    def _delay_along(self, route: list[int]) -> float:
        host = self._hosts()
        hops = pairwise(route)
        return float(sum(self.sites.rtt_ms[host[a], host[b]] for a, b in hops))

    def _hosts(self) -> Ints:
        """[node] -> broker."""
        host = np.empty_like(self._place)
        host[self._place] = np.arange(len(self._place), dtype=np.int32)
        return host

    def _grow(self, topic: int) -> _Tree:
        root = int(self.roots[topic])
        brokers = np.flatnonzero(self._subscribed[:, topic]).astype(np.int32)
        host = self._hosts()
        delay = {root: 0.0}
        for member in self._place[brokers].tolist():
            node, route = root, [root]
            while node != member:
                node = int(self._next[node, member])
                route.append(node)
            for before, after in pairwise(route):
                if after not in delay:
                    hop = float(self.sites.rtt_ms[host[before], host[after]])
                    delay[after] = delay[before] + hop
        delays = np.array([delay[node] for node in self._place[brokers].tolist()])
        return _Tree(len(delay) - 1, brokers, delays)

    # ---- reconfigurations -----------------------------------------------------------------------

    def problem(self, publications: Floats) -> PlacementProblem:
        """Brokers where they are, and what would be better, for so many publications."""
        settings = self.reconfiguring
        demand = Demand(
            [np.flatnonzero(row).tolist() for row in self._subscribed],
            publications.tolist(),
            self._keys,
        )
        rtt = None
        if settings.by_rtt:
            others = ~np.eye(len(self.sites), dtype=bool)
            rtt = self.sites.rtt_ms / self.sites.rtt_ms[others].mean()
        prices = Prices(delay_weight=settings.delay_weight, rtt_ms=rtt)
        model = CostModel(self.geometry, demand, prices)
        return PlacementProblem(model, self._place, len(self.topics))

    def rearrange(self, publications: Floats, period: float) -> int:
        """Algorithm 3, once: test, solve, decide, and move."""
        settings = self.reconfiguring
        if settings.solver is None:
            return 0
        problem = self.problem(publications * period)
        before = problem.model.evaluate(problem.place).total
        if not is_reconfigurable(before, problem.moving, problem.brokers, problem.topics):
            return 0
        task = Task(Objective.NET, iterations_max=settings.iterations_max)
        solution = SOLVERS[settings.solver](problem, task)
        if not judge(problem, solution).accept:
            return 0
        self.reconfigurations += 1
        self._place = solution.place.copy()
        self._trees.clear()
        return round(problem.moving_cost(solution.place))
