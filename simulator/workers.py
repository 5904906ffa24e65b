"""Workers: clients that acknowledge events one by one, and die in the middle of one.

A worker keeps a session at one broker. It has a few events in hand, finishes some late, gives some
back, and now and then its process ends between two steps; another with the same client id begins
where the broker says. If the broker is gone for good, its work begins anew elsewhere. One of them
gives much back, and gives up what it has had three times: that goes to a topic for dead letters.

What must hold: an acknowledged event is worked on unless a gap is told; none is given up before it
has been had as often as that, over all processes; what the broker has heard
to be done it gives to no later process, as long as it lives itself; and what was in hand comes to
the next process as what it is, a further delivery. Of an event that its publisher has not been told
to be safe, when a fault takes away what there is of it, nobody knows: published again it is another
one, with another stamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from broker_agent.core.base.effects import ConnectionId
from dynatops.client.core.client_core import ClientCore, SessionWishes
from dynatops.client.core.publications import Ack, Confirmed
from dynatops.client.core.reading import Arrived
from dynatops.client.core.taking import Taking
from dynatops.client.core.work import Work, WorkItem, WorkLimits, oldest_held
from dynatops.client.events import Event
from dynatops.kit.filters import attributes_to_wire
from dynatops.v1.client_pb2 import ClientFrame, Missed, ServerFrame, Subscribed, Welcome
from dynatops.v1.overlay_pb2 import Events
from simulator.clients import CLIENT_DELAY_S, KEPT_S, OUTPUT_BYTES_MAX, PublishedEvent
from simulator.scenario import START_S
from simulator.tokens import token_of

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

WORKERS = 3
# To each so many; what comes is about as much as it can do.
TOPICS = 3
STEP_S = 0.1
# What happens to an event in hand in one step.
DONE = 0.25
GIVEN_BACK = 0.05
GIVEN_BACK_MAX_S = 2.0
# How often, in one step, the process ends; and the connection.
DEATH = 0.01
DROP = 0.005
# Publications later than this before the end may still be waiting for their turn.
LEFT_S = 15.0
LIMITS = WorkLimits(max_in_flight=4, ack_wait_s=3.0)
# Of the worker that gives events up.
FEW_DELIVERIES = replace(LIMITS, max_deliver=3)
OFTEN_GIVEN_BACK = 0.3
# It waits that often that it would never come to an end with longer waits, and more topics.
OFTEN_GIVEN_BACK_MAX_S = 0.3

# Topic, publisher, number.
EventKey = tuple[str, int, int]
Stamp = tuple[int, int]


@dataclass(slots=True)
class Handled:
    """What became of one event, over all lives of a worker."""

    # How often it was handed out, as counted, in which life that was last, and the life of the
    # broker that has heard of it.
    deliveries: int
    life: int
    heard: SimulatedBroker | None
    # How often it really was.
    times: int
    # What it came under, term and number; and the last of it under each other that it had before.
    stamp: Stamp
    earlier: Mapping[Stamp, Handled]
    is_acked: bool = False
    # The life of the broker that has heard that it is done, and the worker's life then.
    confirmed: tuple[SimulatedBroker, int] | None = None

    @property
    def by_stamp(self) -> dict[Stamp, Handled]:
        return {**self.earlier, self.stamp: self}


@dataclass(slots=True)
class Shift:
    """From when a session began until another began in its place."""

    since_s: float
    until_s: float | None = None
    handled: dict[EventKey, Handled] = field(default_factory=dict)
    # When a gap was last told.
    told_s: float = -1.0


class Worker:
    def __init__(
        self,
        run: SimulatedRun,
        name: str,
        topics: list[str],
        rng: Random,
        limits: WorkLimits = LIMITS,
    ) -> None:
        self.name = name
        self.limits = limits
        self.buried = 0
        self.topics = topics
        self.shifts: list[Shift] = []
        self.violations: list[str] = []
        self.deaths = 0
        self._run = run
        self._rng = rng
        self._home = ""
        self._broker: SimulatedBroker | None = None
        self._connection = ConnectionId("")
        self._connections = 0
        self._life = 0
        self._begins_anew = True
        self._be_born()

    def _be_born(self) -> None:
        wishes = SessionWishes(expiry_s=KEPT_S, token=token_of(self.name), movable=False)
        self._life += 1
        self.core = ClientCore(self.name, self._rng.randbytes(16), wishes)
        self.core.reading.oldest_held = self._oldest_held
        self.taking = Taking()
        self.work = Work(self.limits)
        self._keys: dict[WorkItem, EventKey] = {}
        # Events in hand, and when the broker will have heard of it.
        self._in_hand: list[WorkItem] = []
        # Echoes asked for, and what was handed out and done before.
        self._echoes: dict[int, tuple[list[EventKey], list[EventKey]]] = {}
        self._handed_out: list[EventKey] = []
        # Given up, by the number of the dead letter that is to be acknowledged first.
        self._burying: dict[int, tuple[WorkItem, PublishedEvent]] = {}
        self._session_id = ""

    def _now(self) -> float:
        return self._run.scheduler.now_s

    def _oldest_held(self) -> dict[str, dict[int, int]]:
        return oldest_held(self.work.items())

    # ---- connections ----------------------------------------------------------------------------

    def connect(self) -> None:
        if self._broker is not None:
            return
        world = self._run.world
        if self._home in world.returning:
            self._run.later(0.2, self.connect)
            return
        steady = [broker for broker in world.living() if not broker.leaving]
        if not steady:
            self._run.later(0.5, self.connect)
            return
        broker = world.broker_at(self._home) or self._rng.choice(steady)
        self._broker = broker
        self._home = broker.address
        self._connections += 1
        self._connection = ConnectionId(f"{self.name}/{self._connections}")
        broker.connect(self._connection, self)
        self._send(self.core.connected(broker.address))

    def lost_connection(self, connection: ConnectionId) -> None:
        if connection == self._connection and self._broker is not None:
            self._broker = None
            self._stop_listening()
            self._run.later(self._rng.uniform(0.1, 0.5), self.connect)

    def _leave(self) -> None:
        broker, connection = self._broker, self._connection
        if broker is not None:
            self._broker = None
            self._stop_listening()
            delay_s = self._rng.choice((CLIENT_DELAY_S, 0.6))
            self._run.later(delay_s, broker.disconnect, connection)
            self._run.later(self._rng.uniform(0.1, 1.0), self.connect)

    def _stop_listening(self) -> None:
        self._echoes.clear()
        self._handed_out.clear()
        self.core.disconnected()

    def _send(self, frame: ClientFrame) -> None:
        broker, connection, raw = self._broker, self._connection, frame.SerializeToString()
        if broker is not None:
            said = partial(broker.on_client_frame, connection, raw)
            self._run.scheduler.after(CLIENT_DELAY_S, said)

    def _tell(self) -> None:
        self.core.taken(self.taking.taken())
        self.core.taken_beyond(self.taking.beyond(), self.taking.marks())
        while (frame := self.core.take_frame(OUTPUT_BYTES_MAX, tell=True)) is not None:
            self._send(frame)

    # ---- frames ---------------------------------------------------------------------------------

    def on_frame(self, connection: ConnectionId, raw: bytes) -> None:
        if connection != self._connection or self._broker is None:
            return
        for item in self.core.on_frame(ServerFrame.FromString(raw)):
            if isinstance(item, Arrived):
                self._take_in(item)
            elif isinstance(item, Welcome):
                self._welcomed(item)
            elif isinstance(item, Subscribed):
                self._subscribed()
            elif isinstance(item, Missed):
                for shift in self.shifts[-1:]:
                    shift.told_s = self._now()
            elif isinstance(item, Confirmed):
                self._dead_letters_safe(item.number)
            elif isinstance(item, int):
                handed_out, done = self._echoes.pop(item, ([], []))
                self._heard(handed_out)
                self._confirmed(done)
        self.taking.note_given(self.core.reading.had, [])
        self._tell()

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.session_id == self._session_id:
            self.taking.tell_again()
        else:
            self._session_id = welcome.session_id
            self.taking.begin_anew(self.core.reading.had)
            # What the former session brought, this one is not told of.
            self._handed_out.clear()
        if not self.core.filters:
            if not welcome.filters:
                # The former session is gone, and this process knows nothing of it; one that died
                # before it was told so may have left another, which is empty.
                self._begins_anew = True
            self.core.subscribe([(topic, "") for topic in self.topics])

    def _subscribed(self) -> None:
        if self._begins_anew:
            self._begins_anew = False
            if self.shifts:
                self.shifts[-1].until_s = self._now()
            self.shifts.append(Shift(self._now()))

    def _take_in(self, item: Arrived) -> None:
        run = item.run
        delivery = self.taking.open(self.core.reading.had)
        handed = self.core.reading.handed
        events = Events.FromString(run.events).events
        for index, offset in item.places:
            event = Event(run.topic, events[index].payload, 0, run.term, run.first_seq + offset)
            work_item = WorkItem(event, delivery, offset, handed.get(offset, 0))
            self._keys[work_item] = (run.topic, run.publisher, run.first_number + offset)
            self.taking.hold(delivery, offset)
            self.work.put(work_item)

    # ---- working --------------------------------------------------------------------------------

    def step(self) -> None:
        self._run.later(STEP_S, self.step)
        calm = self._now() > self._run.scenario.quiet_from_s
        if not calm and self._rng.random() < DEATH and self.shifts:
            self._die()
            return
        if not calm and self._rng.random() < DROP:
            self._leave()
            return
        while self.shifts and (item := self.work.next(self._now())) is not None:
            if self.work.is_exhausted(item):
                self._bury(item)
            else:
                self._hand_out(item)
        self._ask_for_echo([])
        given_back, wait_max_s = GIVEN_BACK, GIVEN_BACK_MAX_S
        if self.limits.max_deliver:
            given_back, wait_max_s = OFTEN_GIVEN_BACK, OFTEN_GIVEN_BACK_MAX_S
        for item in list(self._in_hand):
            what = self._rng.random()
            if item.is_done or what < DONE:
                self._in_hand.remove(item)
                self._finish(item)
            elif what < DONE + given_back:
                self._in_hand.remove(item)
                self.work.give_back(item, self._rng.uniform(0.0, wait_max_s), self._now())
        self._tell()

    def _die(self) -> None:
        self.deaths += 1
        self._run.trace.note(f"{self.name} dies with {len(self._in_hand)} events in hand")
        self._leave()
        self._be_born()

    def _hand_out(self, item: WorkItem) -> None:
        key = self._keys[item]
        handled = self.shifts[-1].handled
        if item.delivery is not None:
            self.taking.hand_out(item.delivery, item.offset, item.deliveries)
        before = handled.get(key)
        if before is not None and before.life != self._life:
            self._check_again(key, item, before)
        done = before is not None and before.is_acked
        earlier = before.by_stamp if before is not None else {}
        times = before.times + 1 if before is not None else 1
        stamp = (item.event.term, item.event.seq)
        handled[key] = Handled(
            item.deliveries, self._life, None, times, stamp, earlier, is_acked=done
        )
        if item.delivery is not None and item.delivery.serial > 0:
            self._handed_out.append(key)
        if item not in self._in_hand:
            self._in_hand.append(item)

    def _times_published_again(self, key: EventKey) -> int:
        """How often a fault took it away before its publisher was told that it is safe; and how
        often that one went elsewhere with it, if that makes another stamp."""
        world = self._run.world
        same = [e for e in world.published if (e.topic, e.publisher, e.number) == key]
        times = sum(
            event.at_s < taken_s
            and (event.acknowledged_s is None or event.acknowledged_s > taken_s)
            for taken_s in world.taken_away
            for event in same
        )
        return times + sum(event.resent for event in same if world.stamps_anew)

    def _check_again(self, key: EventKey, item: WorkItem, before: Handled) -> None:
        """An event that an earlier process had comes to a later one. The broker knows it by its
        stamp: what it heard of another one says nothing of this."""
        by_stamp = before.by_stamp
        same = by_stamp.get((item.event.term, item.event.seq))
        if same is None and len(by_stamp) <= self._times_published_again(key):
            return
        before = same or before
        if before.confirmed is not None and before.confirmed[0] is self._broker:
            self.violations.append(f"{self.name}: {key} was done, confirmed, and came again")
        # A frozen broker hears of nothing once the client has said what must wait.
        heard = self._broker is not None and before.heard is self._broker
        if heard and item.deliveries <= before.deliveries:
            text = f"{self.name}: {key} came {item.deliveries} times, after {before.deliveries}"
            self.violations.append(text)

    def _bury(self, item: WorkItem) -> None:
        key, core, now_s = self._keys[item], self.core, self._now()
        handled = self.shifts[-1].handled.get(key)
        times = handled.times if handled is not None else 0
        if times < self.limits.max_deliver:
            self.violations.append(f"{self.name}: {key} was given up after {times} times")
        self.buried += 1
        topic = f"dead/{self.name}"
        size = attributes_to_wire({"size": 0})
        number = core.publish(topic, b"", Ack.REPLICATED, round(now_s * 1e6), size)
        letter = PublishedEvent(topic, core.publications.publisher, number, now_s, 0)
        self._burying[number] = item, letter

    def _dead_letters_safe(self, number: int) -> None:
        """A process that ends before this buries them again."""
        for each in [each for each in self._burying if each <= number]:
            item, letter = self._burying.pop(each)
            letter.publisher = self.core.publications.publisher
            letter.acknowledged_s = self._now()
            self._run.world.published.append(letter)
            self._run.world.on_acknowledged(letter)
            self._finish(item)

    def _finish(self, item: WorkItem) -> None:
        if not self.work.finish(item):
            return
        key, delivery = self._keys.pop(item), item.delivery
        if delivery is not None:
            self.taking.release(delivery, item.offset)
        if (handled := self.shifts[-1].handled.get(key)) is not None:
            handled.is_acked = True
        if delivery is not None and delivery.serial > 0:
            self._ask_for_echo([key])

    def _ask_for_echo(self, done: list[EventKey]) -> None:
        """When it comes, the broker has heard of this, and of all that was handed out before."""
        if self.core.welcome is not None and (self._handed_out or done):
            self._tell()
            self._echoes[self.core.echo()] = self._handed_out, done
            self._handed_out = []

    def _heard(self, keys: list[EventKey]) -> None:
        for key in keys:
            handled = self.shifts[-1].handled.get(key) if self.shifts else None
            if handled is not None and handled.life == self._life:
                handled.heard = self._broker

    def _confirmed(self, keys: list[EventKey]) -> None:
        for key in keys:
            handled = self.shifts[-1].handled.get(key) if self.shifts else None
            if handled is not None and self._broker is not None:
                handled.confirmed = self._broker, self._life

    # ---- in the end -----------------------------------------------------------------------------

    def check(self) -> list[str]:
        if not self.shifts:
            return [f"{self.name} never came to work"]
        shift = self.shifts[-1]
        end_s = self._run.scenario.end_s - LEFT_S
        owed = [
            event
            for event in self._run.world.published
            if event.topic in self.topics
            and event.acknowledged_s is not None
            and self._run.world.is_owed(event)
            and shift.since_s < event.at_s < end_s
            # What was told to be missing may be any that was published by then.
            and event.at_s > shift.told_s
        ]
        undone = [
            event
            for event in owed
            if not (
                (done := shift.handled.get((event.topic, event.publisher, event.number)))
                and done.is_acked
            )
        ]
        if undone:
            first = undone[0]
            self.violations.append(
                f"{self.name} since {shift.since_s:.3f} s: {len(undone)} of"
                f" {len(owed)} events never done, first number {first.number} of"
                f" {first.publisher:x} on {first.topic!r}, published at {first.at_s:.3f} s"
            )
        return self.violations


def plan_workers(run: SimulatedRun, rng: Random) -> None:
    for i in range(WORKERS):
        count = min(TOPICS, run.scenario.topics)
        topics = [f"topic/{n}" for n in sorted(rng.sample(range(run.scenario.topics), count))]
        limits = LIMITS
        if i == 0:
            limits, topics = FEW_DELIVERIES, topics[:1]
        worker = Worker(run, f"worker{i}", topics, Random(rng.getrandbits(64)), limits)
        run.later(rng.uniform(START_S / 2, START_S), worker.connect)
        run.later(START_S, worker.step)
        run.checks.append(worker.check)
