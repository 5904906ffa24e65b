"""How plans ended, as far as this broker is certain: it answers others that are not."""

from __future__ import annotations

from collections import OrderedDict

from dynatops.v1.overlay_pb2 import AskOutcome, Outcome, PeerMessage

_PLANS_MAX = 64


class Outcomes:
    def __init__(self) -> None:
        self._committed: OrderedDict[str, bool] = OrderedDict()

    def __contains__(self, plan: str) -> bool:
        return plan in self._committed

    def remember(self, plan: str, *, committed: bool) -> None:
        self._committed[plan] = committed
        if len(self._committed) > _PLANS_MAX:
            self._committed.popitem(last=False)

    def was_committed(self, plan: str) -> bool:
        return self._committed.get(plan, False)

    def answer(self, question: AskOutcome) -> PeerMessage | None:
        """None if it is not known here, either."""
        committed = self._committed.get(question.plan)
        if committed is None:
            return None
        return PeerMessage(outcome=Outcome(plan=question.plan, committed=committed))
