"""Brokers in a tree whose users ask for the past: the workloads of Storing and of Planning.

Storing: every broker asks for each of ten topics at a rate between 0 and 1 a second, by chance.

Planning: topic t of ten has popularity p_t, a share by Zipf's law with exponent s_p, and locality
l_t by the same law with s_l. All requests for t together are 25 p_t N a second, from as many as
ceil(l_t N) brokers: one drawn by chance and those nearest to it (breadth first). A negative
exponent makes the last topic the most popular, or the one that is asked for most widely.

Taken where the papers are silent. A tree is grown: each broker hangs on one drawn from those before
it (`uniform`: all labelled trees alike, for the ablation). Localities are shares of the largest, as
uniform locality is said to mean that every broker asks. Fewer brokers that ask for a topic ask more
often each: of locality too the paper says that it does not alter the traffic generated. The
brackets around l_t N are lost in print: rounded up, so that somebody asks for every topic.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from random import Random

import numpy as np

from experiments.sites import Floats
from reconfig_manager.storing.network import StoreNetwork

TOPICS = 10
REQUESTS_PER_BROKER = 25.0


@dataclass(frozen=True, slots=True)
class PastWorkload:
    network: StoreNetwork
    # [topic, broker] -> requests in a second.
    requests: Floats


def grown_tree(brokers: int, rng: Random) -> list[tuple[int, int]]:
    return [(broker, rng.randrange(broker)) for broker in range(1, brokers)]


def uniform_tree(brokers: int, rng: Random) -> list[tuple[int, int]]:
    """Any labelled tree is as likely as any other (by its Prüfer sequence)."""
    if brokers < 3:
        return [(0, 1)][: brokers - 1]
    sequence = [rng.randrange(brokers) for _ in range(brokers - 2)]
    degree = [1 + sequence.count(broker) for broker in range(brokers)]
    leaves = [broker for broker in range(brokers) if degree[broker] == 1]
    heapq.heapify(leaves)
    links = []
    for broker in sequence:
        links.append((heapq.heappop(leaves), broker))
        degree[broker] -= 1
        if degree[broker] == 1:
            heapq.heappush(leaves, broker)
    return [*links, (heapq.heappop(leaves), heapq.heappop(leaves))]


TREES = {"grown": grown_tree, "uniform": uniform_tree}


def zipf(exponent: float) -> Floats:
    """[topic] -> (t + 1) ** -exponent, the largest of them 1."""
    values = np.arange(1, TOPICS + 1) ** -exponent
    largest: Floats = values / values.max()
    return largest


def network_of(brokers: int, tree: str, rng: Random) -> StoreNetwork:
    return StoreNetwork.of_links(brokers, TREES[tree](brokers, rng))


def evenly_asked(brokers: int, rng: Random, asked_by: float = 1.0) -> PastWorkload:
    """The workload of Storing; `asked_by`: the share of brokers that ask for a topic, those nearest
    to one drawn by chance, for the ablation."""
    network = network_of(brokers, "grown", rng)
    rates = np.array([[rng.random() for _ in range(brokers)] for _ in range(TOPICS)])
    if asked_by < 1.0:
        for topic, centre in enumerate(draw_centres(brokers, rng)):
            order = np.argsort(network.distances[centre], kind="stable")
            rates[topic, order[math.ceil(asked_by * brokers) :]] = 0.0
    return PastWorkload(network, rates)


def unevenly_asked(
    network: StoreNetwork, popularity: float, locality: float, centres: list[int]
) -> PastWorkload:
    """The workload of Planning; `centres` are where the topics are asked for, by topic."""
    brokers = len(network)
    shares = zipf(popularity) / zipf(popularity).sum()
    requests = np.zeros((TOPICS, brokers))
    for topic, width in enumerate(zipf(locality).tolist()):
        # Shares that are whole numbers but for rounding are whole numbers.
        asking = math.ceil(width * brokers - 1e-9)
        near = np.argsort(network.distances[centres[topic]], kind="stable")[:asking]
        requests[topic, near] = REQUESTS_PER_BROKER * shares[topic] * brokers / asking
    return PastWorkload(network, requests)


def draw_centres(brokers: int, rng: Random) -> list[int]:
    return [rng.randrange(brokers) for _ in range(TOPICS)]
