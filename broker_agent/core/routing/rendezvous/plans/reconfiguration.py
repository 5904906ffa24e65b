"""A broker's part in a reconfiguration (DYNATOPS III-D4).

Its states are in `part`, with what leads from one to the next.

Frozen, the broker holds back what its clients publish and subscribe to. A broker whose node changes
hands seals it, gives its state away and takes that of its next one in, but goes on hosting the
former until it is told that the plan is committed: by the manager, or, should that be silent, by
another broker. If nobody can tell, it goes on with its former node and terms of its own, so that
whatever the outcome was, no stamp is used twice; learning later that the plan was committed, it
moves then, and the histories that grew meanwhile travel to whoever is responsible for them.

A broker obeys nobody with a lower fencing number than it has obeyed, and no older placement.
"""

from __future__ import annotations

from broker_agent.core.base.effects import ReplyToManager
from broker_agent.core.base.notices import PlanOutcome, Unfrozen
from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.hosting.transfer import Transfer, comes_to, goes_to
from broker_agent.core.routing.rendezvous.plans.outcomes import Outcomes
from broker_agent.core.routing.rendezvous.plans.part import (
    PART_STATES,
    Ended,
    IllegalPartError,
    PartState,
    ReconfigurationPart,
    Thawed,
)
from broker_agent.core.routing.rendezvous.publishing.publishing import Publishing
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_NOT_HOST,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    Registration,
    Step,
    StepProblem,
    StepReply,
)
from dynatops.v1.overlay_pb2 import (
    AskOutcome,
    NodeRef,
    NodeStatePart,
    NodeStateSeen,
    Outcome,
    PeerFrame,
    PeerMessage,
)
from overlay.base.identifiers import show_node
from overlay.base.peers import Peer
from overlay.node import Node


class Reconfiguration:
    def __init__(self, context: RingContext, hosting: NodeHosting, publishing: Publishing) -> None:
        self.epoch = 0
        self.fence = 0
        # Raised whenever what a manager is told at registration has changed.
        self.version = 0
        self.is_leaving = False
        self.state = PartState.IDLE
        self._hosting = hosting
        self._publishing = publishing
        self._outbox = context.outbox
        self._settings = context.settings
        self._counters = context.counters
        self._part: ReconfigurationPart | None = None
        self._unknown_end: Ended | None = None
        self._thawed = Thawed()
        self._outcomes = Outcomes()

    @property
    def is_frozen(self) -> bool:
        return self._part is not None

    @property
    def _is_restored(self) -> bool:
        """Whether the placement of the plan that freezes this broker is in use."""
        return self.state is PartState.RESTORED

    def _become(self, state: PartState) -> None:
        """Raises IllegalPartError."""
        if state is not self.state:
            if state not in PART_STATES[self.state]:
                raise IllegalPartError(self.state, state)
            self.state = state

    @property
    def frozen_by(self) -> str:
        return self._part.plan if self._part is not None else ""

    def registration(self) -> Registration:
        """Where the broker is in the placement, for the manager."""
        node = self._node.status()
        return Registration(
            node=node.me.ref,
            epoch=self.epoch,
            fence=self.fence,
            frozen_by=self.frozen_by,
            predecessor=node.predecessor.ref if node.predecessor is not None else None,
            successor=node.successor.ref if node.successor is not None else None,
        )

    def leave(self, now_s: float) -> None:
        """The broker goes: no plan may count on it."""
        self.is_leaving = True
        if self._part is not None:
            self._go_on_alone(now_s)

    # ---- what the manager says ------------------------------------------------------------------

    def on_step(self, step: Step, now_s: float) -> None:
        if step.fence < self.fence:
            problem = f"a manager with fencing number {self.fence} has been obeyed"
            self._reply(step, STEP_PROBLEM_STALE, problem)
            return
        if step.fence > self.fence:
            self.fence = step.fence
            self.version += 1
        handlers = {
            RCFG_INIT: self._init,
            RCFG_DHT_UPDATE: self._dht_update,
            RCFG_TREE_RESTORE: self._tree_restore,
            RCFG_TREE_REPAIR: self._tree_repair,
            RCFG_FINISH: self._finish,
            RCFG_ROLL_BACK: self._roll_back,
        }
        handler = handlers.get(step.kind)
        if handler is not None:
            handler(step, now_s)

    def _part_in(self, step: Step) -> ReconfigurationPart | None:
        part = self._part
        return part if part is not None and part.plan == step.plan else None

    def _init(self, step: Step, now_s: float) -> None:
        part = self._part_in(step)
        if part is None:
            if step.epoch <= self.epoch or step.plan in self._outcomes:
                self._reply(step, STEP_PROBLEM_STALE, f"placement {self.epoch} is in use")
                return
            if self.is_leaving or not self._node.reigns.ready:
                problem = "the broker is leaving" if self.is_leaving else "the broker is joining"
                self._reply(step, STEP_PROBLEM_NOT_HOST, problem)
                return
            if self._part is not None:
                self._go_on_alone(now_s)
            part = self._part = ReconfigurationPart(
                step.plan,
                step.epoch,
                list(step.moved),
                since_s=now_s,
                frozen_max_s=min(step.frozen_max_s, self._settings.frozen_max_s),
                transfer=Transfer(step.plan, step.epoch, self._settings.state_resend_s),
                epoch_before=self.epoch,
                node_before=self._node.me.node_id,
            )
            self._become(PartState.FROZEN)
            self._counters.freezes += 1
            self.version += 1
        self._open(part, step, now_s)

    def _dht_update(self, step: Step, now_s: float) -> None:
        part = self._part_in(step)
        if part is None:
            self._reply(step, STEP_PROBLEM_NOT_FROZEN, "not frozen by this plan")
            return
        if not self._is_restored:
            part.moved = list(step.moved)
            node = self._node
            to = goes_to(node.me.node_id, part.moved)
            if to is None or comes_to(self._hosting.broker_id, part.moved) is None:
                self._reply(step, STEP_PROBLEM_NOT_HOST, f"it hosts node {node.me.node_id:016x}")
                return
            if not part.transfer.is_giving:
                node.seal()
                part.transfer.give(node, to.address)
                self._become(PartState.GIVING)
        self._open(part, step, now_s)

    def _tree_restore(self, step: Step, now_s: float) -> None:
        part = self._part_in(step)
        if step.epoch > self.epoch and not self.is_leaving:
            self._move(list(step.moved), step.epoch, now_s)
            self._remember(step.plan, committed=True)
            if part is not None:
                self._note_restored(part)
        self._reply(step)

    def _note_restored(self, part: ReconfigurationPart) -> None:
        self._become(PartState.RESTORED)
        part.control_before = self._node.counters.tree_control_sent

    def _tree_repair(self, step: Step, now_s: float) -> None:
        self._node.interests.catch_up(now_s)
        part = self._part_in(step)
        if part is None:
            self._reply(step)
        else:
            self._open(part, step, now_s)

    def _finish(self, step: Step, now_s: float) -> None:
        part = self._part_in(step)
        if part is not None:
            self._thaw(part, now_s)
        self._reply_thawed(step)

    def _roll_back(self, step: Step, now_s: float) -> None:
        part = self._part_in(step)
        if self._outcomes.was_committed(step.plan):
            self._reply(step, STEP_PROBLEM_IN_USE, f"placement {self.epoch} is in use")
            return
        self._remember(step.plan, committed=False)
        if part is not None:
            self._give_up(part, now_s)
        self._reply_thawed(step)

    def _open(self, part: ReconfigurationPart, step: Step, now_s: float) -> None:
        """Answer this step once it is done."""
        if part.open is None or part.open.kind != step.kind:
            part.open_since_s = now_s
        part.open = step

    def _reply_thawed(self, step: Step) -> None:
        """The first answer may be lost: each says the same."""
        thawed = self._thawed if self._thawed.plan == step.plan else Thawed()
        self._reply(step, frozen_s=thawed.frozen_s, repair_messages=thawed.repair_messages)

    def _reply(
        self,
        step: Step,
        problem: StepProblem.ValueType = STEP_PROBLEM_UNSPECIFIED,
        message: str = "",
        *,
        frozen_s: float = 0.0,
        messages: int = 0,
        repair_messages: int = 0,
    ) -> None:
        reply = StepReply(
            fence=step.fence,
            plan=step.plan,
            epoch=step.epoch,
            kind=step.kind,
            problem=problem,
            message=message,
            messages=messages,
            frozen_s=frozen_s,
            repair_messages=repair_messages,
        )
        self._outbox.do(ReplyToManager(reply))

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self._part is not None:
            self._watch_the_clock(self._part, now_s)

    def progress(self, now_s: float) -> None:
        """To be said after every input: send what is due; answer the open step if it is done."""
        part = self._part
        if part is None:
            return
        if not self._is_restored:
            for address, frame in part.transfer.due(now_s):
                self._outbox.send(address, frame)
        step = part.open
        if step is None:
            return
        waited_s = now_s - part.open_since_s
        messages = 0
        if step.kind == RCFG_INIT:
            done = not self._publishing.open_streams or waited_s >= self._settings.quiet_max_s
        elif step.kind == RCFG_DHT_UPDATE:
            done = self._is_restored or (part.transfer.given and part.transfer.received)
            messages = part.transfer.messages
        else:
            unsettled = self._node.interests.unsettled
            done = not unsettled or waited_s >= self._settings.repair_max_s
        if done:
            part.open = None
            self._reply(step, messages=messages)

    def _watch_the_clock(self, part: ReconfigurationPart, now_s: float) -> None:
        """Frozen for too long: find out how the plan ended, or go on without knowing."""
        late_s = now_s - part.since_s - part.frozen_max_s
        if late_s < 0:
            return
        if self.state is not PartState.GIVING:
            # Whatever the outcome, this broker's node is where it belongs.
            self._thaw(part, now_s, alone=True)
        elif late_s >= self._settings.outcome_patience_s:
            self._go_on_alone(now_s)
        elif now_s >= part.ask_due_s:
            part.ask_due_s = now_s + self._settings.state_resend_s
            ask = AskOutcome(plan=part.plan, epoch=part.epoch)
            for ref in part.moved:
                if ref.broker_id != self._hosting.broker_id:
                    self._send(ref.address, PeerMessage(ask_outcome=ask))

    # ---- what other brokers say -----------------------------------------------------------------

    def on_ask_outcome(self, sender: NodeRef, message: AskOutcome, now_s: float) -> None:
        answer = self._outcomes.answer(message)
        if answer is not None:
            self._send(sender.address, answer)

    def on_node_state_part(self, sender: NodeRef, message: NodeStatePart, now_s: float) -> None:
        part = self._part
        if part is not None and message.plan == part.plan:
            seen = part.transfer.on_part(message)
            if seen is not None:
                self._send(sender.address, seen)

    def on_node_state_seen(self, sender: NodeRef, message: NodeStateSeen, now_s: float) -> None:
        part = self._part
        if part is not None and message.plan == part.plan:
            part.transfer.on_seen(message)

    def on_outcome(self, sender: NodeRef, message: Outcome, now_s: float) -> None:
        part = self._part
        if part is not None and message.plan == part.plan and not self._is_restored:
            self._learn_outcome(part, committed=message.committed, now_s=now_s)

    def _learn_outcome(self, part: ReconfigurationPart, *, committed: bool, now_s: float) -> None:
        self._remember(part.plan, committed=committed)
        if committed:
            self._move(part.moved, part.epoch, now_s)
            self._note_restored(part)
            self._thaw(part, now_s)
        else:
            self._give_up(part, now_s)

    def awaits(self, node_id: int) -> bool:
        """Whether this node is on its way here: frames for it are early, not wrong."""
        part = self._part
        coming = comes_to(self._hosting.broker_id, part.moved) if part is not None else None
        return coming is not None and coming.node_id == node_id

    def _send(self, address: str, message: PeerMessage) -> None:
        frame = PeerFrame(sender=self._node.me.ref, messages=[message])
        self._outbox.send(address, frame)

    # ---- ends -----------------------------------------------------------------------------------

    def _thaw(self, part: ReconfigurationPart, now_s: float, *, alone: bool = False) -> None:
        """`alone`: nobody has said how the plan ended."""
        was_restored = self._is_restored
        self._become(PartState.UNSURE if alone and self._node.sealed else PartState.IDLE)
        self._part = None
        self._unknown_end = None
        self.version += 1
        self._node.interests.catch_up(now_s)
        frozen_s = now_s - part.since_s
        sent = self._node.counters.tree_control_sent - part.control_before
        self._thawed = Thawed(part.plan, frozen_s, sent if was_restored else 0)
        self._counters.frozen_ms += round(1000 * frozen_s)
        self._counters.thaws_alone += alone
        if alone:
            outcome = PlanOutcome.NOBODY_SAID
        elif self.epoch > part.epoch_before:
            outcome = PlanOutcome.COMMITTED
        else:
            outcome = PlanOutcome.ROLLED_BACK
        node, before = show_node(self._node.me.node_id), show_node(part.node_before)
        self._outbox.do(Unfrozen(part.plan, outcome, self.epoch, frozen_s, node, before))

    def _give_up(self, part: ReconfigurationPart, now_s: float) -> None:
        """The plan was rolled back: all is as it was."""
        self._thaw(part, now_s)
        if self._node.sealed:
            self._hosting.unseal(now_s, certain=True)

    def _go_on_alone(self, now_s: float) -> None:
        """Nobody says how the plan ended."""
        part = self._part
        assert part is not None
        self._thaw(part, now_s, alone=True)
        if self._node.sealed:
            self._unknown_end = Ended(part.epoch, part.moved, part.transfer)
            self._hosting.unseal(now_s, certain=False)

    def _remember(self, plan: str, *, committed: bool) -> None:
        self._outcomes.remember(plan, committed=committed)
        if not committed:
            self._forget_unknown_end()

    def _forget_unknown_end(self) -> None:
        """It is known, or of no interest any more."""
        self._unknown_end = None
        if self.state is PartState.UNSURE:
            self._become(PartState.IDLE)

    # ---- moving ---------------------------------------------------------------------------------

    def superseded(self, by: Peer, now_s: float) -> None:
        """Somebody else hosts this broker's node, or a former life of this broker hosted it."""
        ended, part = self._unknown_end, self._part
        if ended is not None and ended.epoch == by.epoch:
            # The plan was committed after all.
            self._move(ended.moved, ended.epoch, now_s)
        elif part is not None and part.epoch == by.epoch and not self._is_restored:
            self._learn_outcome(part, committed=True, now_s=now_s)
        else:
            self.version += 1
            self._hosting.give_way(by, now_s)

    def _move(self, moved: list[NodeRef], epoch: int, now_s: float) -> None:
        """The placement is in use: be where it says."""
        self.epoch = epoch
        self.version += 1
        transfer = self._transfer_of(epoch)
        state = transfer.state() if transfer is not None and transfer.received else None
        self._forget_unknown_end()
        self._hosting.move(moved, epoch, state, now_s, trees_later=self._part is not None)

    def _transfer_of(self, epoch: int) -> Transfer | None:
        if self._part is not None and self._part.epoch == epoch:
            return self._part.transfer
        if self._unknown_end is not None and self._unknown_end.epoch == epoch:
            return self._unknown_end.transfer
        return None

    @property
    def _node(self) -> Node:
        return self._hosting.node
