"""Keeping this node's topics in the catalogue: their names are announced again, slowly, for ever.

That a topic has been announced is no promise that its name is still there: both holders of a part
of the catalogue may have died, a stale copy of it may have been taken over, or it was full and the
name had to go. So the rendezvous point of a topic keeps looking, by announcing what it has
announced before, which is a repeat and enters nothing where the name is known:

- of each part that it has topics in, one name every `catalogue_check_s`; more often where
  `catalogue_round_s` would not suffice for all of them;
- all names in a part, at `catalogue_names_per_s`, once that part's history turns out not to be the
  one that they were entered in;
- so, too, those that it took over as announced: it has not seen it itself.

What tells one history from another are positions. An announcement claims the newest position at
which the part is known to have had all names that were announced to it from here; whoever serves
the part says if its history lacks that. One that has it has the names before it.

                 claim is in the history, or the term is the same
                        .----------.
                        v          |
    unknown --ack--> known --------'
                        |
                        `--the history lacks the claim--> known, at its position; all names again

Acknowledgements that come after those of another history, of claims from before it, prove nothing:
such names are announced once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from overlay.base.catalogue import Entered, is_system, shard_topic
from overlay.base.context import Context
from overlay.base.effects import Announce

# A node that was held up does not make up for more than this, and does not wait for the answers to
# so much.
_HELD_UP_MAX_S = 1.0


@dataclass(slots=True)
class _CataloguePart:
    """A part of the catalogue that topics of this node belong in."""

    due_s: float
    # Announced topics, by name: those that this node is the rendezvous point of.
    topics: dict[str, None] = field(default_factory=dict)
    # Of these, what is left of the present round, and what is to be announced soon.
    remaining: list[str] = field(default_factory=list)
    soon: dict[str, None] = field(default_factory=dict)
    # Announced again, and not answered yet.
    asked: set[str] = field(default_factory=set)
    # Where the part stood when it had all that was announced to it; (0, 0) until that is known.
    known: tuple[int, int] = (0, 0)


class Listing:
    def __init__(self, context: Context) -> None:
        self._settings = context.settings
        self._counters = context.counters
        self._effects = context.effects
        # One for each of the catalogue's parts at most.
        self._parts: dict[str, _CataloguePart] = {}
        self._ticked_s = 0.0
        # Names that may be announced again now, beside the steady ones.
        self._allowance = 0.0

    def add(self, topic: str, now_s: float) -> None:
        """This node is the rendezvous point of a topic that is said to be in the catalogue."""
        if is_system(topic):
            return
        part = self._part(topic, now_s)
        if topic not in part.topics:
            part.topics[topic] = part.soon[topic] = None

    def remove(self, topic: str) -> None:
        """This node is its rendezvous point no more."""
        part = self._parts.get(shard_topic(topic)) if not is_system(topic) else None
        if part is not None:
            part.topics.pop(topic, None)
            part.soon.pop(topic, None)

    def announce(self, topic: str, now_s: float, *, again: bool = False) -> None:
        """Have the host enter the topic's name."""
        part = self._part(topic, now_s)
        if again:
            self._counters.names_announced_again += 1
            part.asked.add(topic)
        self._effects.append(Announce(topic, part.known, again))

    def entered(self, entry: Entered, now_s: float, *, is_mine: bool) -> None:
        """The name is in the catalogue, says who serves its part. It is this node's business only
        while that is the topic's rendezvous point."""
        topic, claim, ack = entry.topic, entry.claim, entry.ack
        part = self._part(topic, now_s)
        part.asked.discard(topic)
        if not is_mine:
            return
        position = (ack.term, ack.seq)
        part.topics[topic] = None
        part.soon.pop(topic, None)
        if part.known == (0, 0) or ack.term == part.known[0]:
            part.known = max(part.known, position)
        elif ack.lacks_known:
            self._counters.catalogue_parts_lost += 1
            part.known = position
            part.soon = dict.fromkeys(part.topics)
            del part.soon[topic]
        elif claim == part.known:
            part.known = position
        else:
            part.soon[topic] = None

    def tick(self, now_s: float) -> None:
        per_s = self._settings.catalogue_names_per_s
        self._allowance += (now_s - self._ticked_s) * per_s
        self._allowance = min(self._allowance, _HELD_UP_MAX_S * per_s)
        self._ticked_s = now_s
        for part in self._parts.values():
            while part.soon and self._allowance >= 1.0:
                self._allowance -= 1.0
                self.announce(part.soon.popitem()[0], now_s, again=True)
            self._check(part, now_s)

    def _check(self, part: _CataloguePart, now_s: float) -> None:
        """Announce the next names of the round, unless those before have no answer."""
        if now_s < part.due_s or not part.topics:
            return
        settings = self._settings
        pause_s = min(settings.catalogue_check_s, settings.catalogue_round_s / len(part.topics))
        part.due_s = max(part.due_s, now_s - _HELD_UP_MAX_S)
        while part.due_s <= now_s:
            part.due_s += pause_s
            unanswered_s = len(part.asked) * pause_s
            if unanswered_s < max(pause_s, _HELD_UP_MAX_S) and (topic := self._next(part)):
                self.announce(topic, now_s, again=True)

    def _next(self, part: _CataloguePart) -> str | None:
        """The next of the present round, or the first of another."""
        while part.remaining:
            topic = part.remaining.pop()
            if topic in part.topics:
                return topic
        part.remaining = list(part.topics)
        return part.remaining.pop() if part.remaining else None

    def _part(self, topic: str, now_s: float) -> _CataloguePart:
        name = shard_topic(topic)
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = _CataloguePart(now_s + self._settings.catalogue_check_s)
        return part
