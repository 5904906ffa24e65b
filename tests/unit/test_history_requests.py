"""What a client may ask of the past: its token's rights hold for it as they do for subscribing."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.rights.access import Access
from dynatops.kit.security.token_rights import TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.client_pb2 import Filter, History, HistoryCredit, HistoryEnd
from dynatops.v1.overlay_pb2 import PastError
from tests.support.brokers import LoneBroker

TOKEN = "ann's token"
RULES = TokenRules(name="ann", sha256=hash_of(TOKEN), subscribe=("quake/#",))


def _ask(broker: LoneBroker, pattern: str, request: int = 1, credit_bytes: int = 100) -> None:
    history = History(request=request, filter=Filter(pattern=pattern), credit_bytes=credit_bytes)
    broker.say("ann", history=history)


def _ends(broker: LoneBroker) -> list[HistoryEnd]:
    return [m.history_end for m in broker.hear("ann") if m.HasField("history_end")]


def test_of_what_a_client_may_not_subscribe_to_it_may_not_have_the_past() -> None:
    broker = LoneBroker(access=Access(CoreSettings(), [RULES]))
    broker.run(1.0)
    broker.connect("ann", token=TOKEN)
    _ask(broker, "quake/ca")
    _ask(broker, "news/eu")
    _ask(broker, "#")
    allowed, forbidden, too_wide = _ends(broker)
    assert allowed.error == PastError.PAST_ERROR_NOT_STORED
    assert forbidden.error == too_wide.error == PastError.PAST_ERROR_FORBIDDEN
    assert "'ann' does not allow subscribing to 'news/eu'" in forbidden.message
    assert broker.core.counters.subscribe_not_allowed == 2


def test_two_histories_of_one_number_are_refused() -> None:
    broker = LoneBroker()
    broker.run(1.0)
    broker.connect("ann")
    broker.core.storing.past.table.keep("quake/ca")
    _ask(broker, "quake/ca", credit_bytes=0)
    _ask(broker, "quake/ca", credit_bytes=0)
    (end,) = _ends(broker)
    assert end.error == PastError.PAST_ERROR_INVALID


def test_welcome_says_that_a_broker_understands() -> None:
    broker = LoneBroker()
    broker.run(1.0)
    broker.connect("ann")
    (welcome,) = [m.welcome for m in broker.hear("ann") if m.HasField("welcome")]
    assert welcome.histories


def test_a_request_is_counted_once_where_the_user_is_the_same_for_manager_and_lake() -> None:
    broker = LoneBroker(logged_rows_max=100)
    broker.run(1.0)
    broker.core.begin_reporting(broker.now_s)
    broker.connect("ann")
    for pattern in ("quake/ca", "quake/nv", "news/#"):
        broker.core.storing.past.table.keep(pattern)
    _ask(broker, "quake/ca", request=1)
    _ask(broker, "quake/+", request=2)
    # Credit and patience make no other request of it; what was refused was none.
    broker.say("ann", history_credit=HistoryCredit(request=1, credit_bytes=10))
    _ask(broker, "quake/ca", request=2)
    broker.run(5.0)
    report = broker.core.load_report(broker.now_s, full=True)
    expected = {"quake/ca": 2, "quake/nv": 1}
    assert {count.topic: count.events for count in report.requests} == expected
    assert broker.core.take_logbook_page(broker.now_s).requests == expected
