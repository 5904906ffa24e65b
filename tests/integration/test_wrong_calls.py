"""What an application can get wrong: told at once, by name, and the next correct call works."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dynatops
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent
from dynatops import Ack
from dynatops.client.core.client_core import ClientCore
from dynatops.client.core.publications import Payload
from dynatops.local.cluster import LocalCluster
from tests.support.running_loop import LoopThread

TOPIC = "quake/ca"
AT_ONCE_S = 0.1

TYPE, VALUE = dynatops.ArgumentTypeError, dynatops.ArgumentValueError


async def some_payloads() -> Any:
    yield b"x"


async def on_gap_later(gap: dynatops.Gap) -> None:
    raise AssertionError


# What is called with a client, be it asynchronous or not; what it says; and what of it is read.
WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "an unknown level": (lambda c: c.publish(TOPIC, b"x", ack="all"), VALUE, "none, rp"),
    "a level by number": (lambda c: c.publish(TOPIC, b"x", ack=2), TYPE, "an Ack"),
    "no level": (lambda c: c.publish(TOPIC, b"x", ack=None), TYPE, "ack"),
    "an unknown level for many": (
        lambda c: c.publish_many(TOPIC, [b"x"], ack="REP"),
        VALUE,
        "'REP'",
    ),
    "a payload that is text": (lambda c: c.publish(TOPIC, "x"), TYPE, r"\.encode\(\)"),
    "no payload": (lambda c: c.publish(TOPIC, None), TYPE, "payload is NoneType"),
    "a payload that is a list": (lambda c: c.publish(TOPIC, [1, 2]), TYPE, "payload is list"),
    "a payload that is too large": (
        lambda c: c.publish(TOPIC, bytes((1 << 20) + 1)),
        dynatops.PublishError,
        "1,048,577 bytes",
    ),
    "one payload for many": (lambda c: c.publish_many(TOPIC, b"xyz"), TYPE, "a list of payloads"),
    "one text for many": (lambda c: c.publish_many(TOPIC, "xyz"), TYPE, "a list of payloads"),
    "a text among many": (lambda c: c.publish_many(TOPIC, [b"x", "y"]), TYPE, r"payloads\[1\]"),
    "payloads that come later": (
        lambda c: c.publish_many(TOPIC, some_payloads()),
        TYPE,
        "a list of payloads",
    ),
    "payloads without a topic": (
        lambda c: c.publish_many([b"x", b"y"]),
        TYPE,
        r"events\[0\] is by",
    ),
    "a topic without payloads": (lambda c: c.publish_many(TOPIC), TYPE, "payloads is NoneType"),
    "topics and payloads": (lambda c: c.publish_many([TOPIC], [b"x"]), TYPE, "topic is list"),
    "bytes as events": (lambda c: c.publish_many(b"quake"), TYPE, "a list of pairs"),
    "no events": (lambda c: c.publish_many(None), TYPE, "a list of pairs"),
    "a mapping as events": (lambda c: c.publish_many({TOPIC: b"x"}), TYPE, r"\.items\(\)"),
    "events that come later": (lambda c: c.publish_many(some_payloads()), TYPE, "events is async"),
    "a text among pairs": (
        lambda c: c.publish_many([(TOPIC, b"x"), "ab"]),
        TYPE,
        r"events\[1\] is str; it should be a pair",
    ),
    "three of a pair": (lambda c: c.publish_many([(TOPIC, b"x", 1)]), TYPE, "a pair: a topic, a"),
    "a payload of a pair that is text": (
        lambda c: c.publish_many([(TOPIC, b"x"), (TOPIC, "x")]),
        TYPE,
        r"events\[1\]\[1\] is str; .*encode\(\)",
    ),
    "a topic of a pair that is a list": (
        lambda c: c.publish_many([([TOPIC], b"x")]),
        TYPE,
        r"events\[0\]\[0\] is list",
    ),
    "a topic of a pair that is a pattern": (
        lambda c: c.publish_many([(TOPIC, b"x"), ("a/+", b"x")]),
        dynatops.TopicError,
        "filters",
    ),
    "a payload of a pair that is too large": (
        lambda c: c.publish_many([("quake/nv", b"x"), ("quake/nv", bytes((1 << 20) + 1))]),
        dynatops.PublishError,
        "1,048,577 bytes",
    ),
    "an unknown level for events": (
        lambda c: c.publish_many([(TOPIC, b"x")], ack="REP"),
        VALUE,
        "'REP'",
    ),
    "a topic that is no text": (lambda c: c.publish(b"quake", b"x"), TYPE, "topic is bytes"),
    "a topic that is a list": (lambda c: c.publish(["quake"], b"x"), TYPE, "topic is list"),
    "a topic that is a pattern": (lambda c: c.publish("a/+", b"x"), dynatops.TopicError, "filters"),
    "a topic that is no UTF-8": (
        lambda c: c.publish("\ud800", b"x"),
        dynatops.TopicError,
        "UTF-8",
    ),
    "an empty topic": (lambda c: c.publish("", b"x"), dynatops.TopicError, "is empty"),
    "attributes that are a list": (
        lambda c: c.publish(TOPIC, b"x", attributes=[("a", 1)]),
        TYPE,
        "attributes is list",
    ),
    "an attribute that is a list": (
        lambda c: c.publish(TOPIC, b"x", attributes={"a": [1]}),
        dynatops.AttributesError,
        "of type list",
    ),
    "a timeout that is text": (lambda c: c.publish(TOPIC, b"x", timeout_s="5"), TYPE, "timeout_s"),
    "a timeout below zero": (lambda c: c.publish(TOPIC, b"x", timeout_s=-1), VALUE, "above 0"),
    "a timeout that is no number": (
        lambda c: c.publish(TOPIC, b"x", timeout_s=math.nan),
        VALUE,
        "above 0",
    ),
    "a timeout that is a truth": (lambda c: c.flush(timeout_s=True), TYPE, "timeout_s is bool"),
    "patterns in a list": (lambda c: c.subscribe(["a", "b"]), TYPE, r"subscribe\(\*patterns\)"),
    "a pattern that is no text": (lambda c: c.subscribe(b"a"), TYPE, "pattern is bytes"),
    "no pattern": (lambda c: c.subscribe(), dynatops.SubscribeError, "at least one topic"),
    "a pattern that is no UTF-8": (
        lambda c: c.subscribe("\udcff"),
        dynatops.FilterError,
        "UTF-8",
    ),
    "a pattern that is none": (lambda c: c.subscribe("a/#/b"), dynatops.FilterError, "#"),
    "a condition that is none": (
        lambda c: c.subscribe("a", where="price <"),
        dynatops.FilterError,
        "price <",
    ),
    "a condition that is no text": (lambda c: c.subscribe("a", where=5), TYPE, "where is int"),
    "a condition that is no UTF-8": (
        lambda c: c.subscribe("a", where='x = "\udcff"'),
        dynatops.FilterError,
        "UTF-8",
    ),
    "a list to be told of gaps": (lambda c: c.subscribe("a", on_gap=[]), TYPE, "on_gap is list"),
    "gaps told to what must be awaited": (
        lambda c: c.subscribe("a", on_gap=on_gap_later),
        TYPE,
        "is not awaited",
    ),
}

CONNECT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no port": ({"addresses": "127.0.0.1"}, VALUE, "host:port"),
    "an empty port": ({"addresses": "127.0.0.1:"}, VALUE, "host:port"),
    "port 0": ({"addresses": "127.0.0.1:0"}, VALUE, "1 to 65535"),
    "a port that is too high": ({"addresses": "127.0.0.1:65536"}, VALUE, "1 to 65535"),
    "a scheme": ({"addresses": "tcp://127.0.0.1:7400"}, VALUE, "without tcp://"),
    "a path": ({"addresses": "127.0.0.1:7400/x"}, VALUE, "host:port"),
    "an address with blanks": ({"addresses": "127.0.0.1 :7400"}, VALUE, "host:port"),
    "one wrong of two": ({"addresses": ["127.0.0.1:7400", "b"]}, VALUE, "'b'"),
    "no address": ({"addresses": " , "}, VALUE, "no address given"),
    "an address that is no text": ({"addresses": [7400]}, TYPE, "addresses is list of int"),
    "an address that is bytes": ({"addresses": b"127.0.0.1:7400"}, TYPE, "addresses is bytes"),
    "a port alone": ({"addresses": 7400}, TYPE, "addresses is int"),
    "an id that is no text": ({"client_id": 7}, TYPE, "client_id is int"),
    "an id that is too long": ({"client_id": "é" * 129}, VALUE, "258 bytes; the limit is 256"),
    "an id that is no UTF-8": ({"client_id": "\ud800"}, VALUE, "UTF-8"),
    "kept as text": ({"client_id": "a", "keep_s": "60"}, TYPE, "keep_s is str"),
    "kept below zero": ({"client_id": "a", "keep_s": -1}, VALUE, "keep_s"),
    "kept for parts of a second": ({"client_id": "a", "keep_s": 1.5}, VALUE, "whole seconds"),
    "kept for ever": ({"client_id": "a", "keep_s": 1 << 32}, VALUE, "keep_s"),
    "kept as a truth": ({"client_id": "a", "keep_s": True}, TYPE, "keep_s is bool"),
    "kept without a name": ({"keep_s": 60}, VALUE, "client_id"),
    "stays as text": ({"stay": "no"}, TYPE, "stay is str"),
    "a token that is bytes": ({"token": b"secret"}, TYPE, "token is bytes"),
    "tls as a truth": ({"tls": True}, TYPE, "a Tls"),
    "beyond the pole": ({"place": (91.0, 0.0)}, VALUE, "latitude"),
    "no place on earth": ({"place": (math.nan, 0.0)}, VALUE, "latitude"),
    "half a place": ({"place": (48.2,)}, TYPE, "place"),
    "a place in words": ({"place": "Vienna"}, TYPE, "place"),
    "a timeout of nothing": ({"timeout_s": 0}, VALUE, "above 0"),
    "told to a text": ({"on_connection": "print"}, TYPE, "on_connection is str"),
}


def test_there_are_enough() -> None:
    assert len(WRONG) >= 30
    assert len(CONNECT) >= 30


@pytest.mark.parametrize("face", [dynatops.connect, dynatops.connect_sync])
@pytest.mark.parametrize("case", CONNECT)
def test_a_wrong_connect_is_refused_before_anything_is_tried(
    case: str, face: Callable[..., Any]
) -> None:
    arguments, error, says = CONNECT[case]
    threads = threading.active_count()
    started_s = time.monotonic()
    with pytest.raises(error, match=says) as caught:
        face(**arguments)
    assert time.monotonic() - started_s < AT_ONCE_S
    assert isinstance(caught.value, dynatops.DynatopsError)
    assert threading.active_count() == threads


async def _made(call: Callable[[Any], Any], client: dynatops.Client) -> None:
    result = call(client)
    if inspect.isawaitable(result):
        await result


def test_wrong_calls_do_no_harm() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                for case, (call, error, says) in WRONG.items():
                    started_s = time.monotonic()
                    with pytest.raises(error, match=says):
                        await _made(call, client)
                    assert time.monotonic() - started_s < AT_ONCE_S, case
                    await client.publish(TOPIC, case.encode(), timeout_s=5.0)
                    assert (await anext(events)).payload == case.encode(), case

    asyncio.run(scenario())


def test_wrong_calls_do_no_harm_without_asyncio() -> None:
    with LoopThread() as loop, loop.entered(LocalCluster(1)) as cluster:
        with dynatops.connect_sync(cluster.addresses) as client:
            events = client.subscribe(TOPIC)
            for case, (call, error, says) in WRONG.items():
                started_s = time.monotonic()
                with pytest.raises(error, match=says):
                    call(client)
                assert time.monotonic() - started_s < AT_ONCE_S, case
                client.publish(TOPIC, case.encode(), timeout_s=5.0)
                assert events.next(5.0).payload == case.encode(), case
            with pytest.raises(dynatops.ArgumentValueError, match="above 0"):
                events.next(0)


def test_right_calls_that_look_odd() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                changing = bytearray(b"array")
                publishing = asyncio.create_task(client.publish(TOPIC, changing, ack="rp"))
                await asyncio.sleep(0)
                changing[:] = b"other"
                await publishing
                await client.publish(TOPIC, memoryview(b"xviewx")[1:-1], ack="replicated")
                await client.publish(TOPIC, memoryview(array("H", [1, 2])), timeout_s=math.inf)
                many: list[Payload] = [
                    bytearray(b"1"),
                    memoryview(b"2"),
                    b"3",
                ]
                await client.publish_many(TOPIC, (one for one in many), ack="none")
                await client.publish_many(TOPIC, [])
                await client.publish_many([])
                await client.publish(TOPIC, b"", ack=Ack.NONE)
                heard = [(await anext(events)).payload for _ in range(7)]
                two = bytes(array("H", [1, 2]))
                # Those that nobody waits for are of a publisher of their own.
                assert heard == [b"array", b"view", two, b"1", b"2", b"3", b""]
                assert {type(payload) for payload in heard} == {bytes}

    asyncio.run(scenario())


def test_nothing_of_a_list_is_published_if_one_of_it_is_wrong() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                with pytest.raises(TypeError, match=r"payloads\[2\] is int"):
                    await client.publish_many(TOPIC, [b"1", b"2", 3])  # type: ignore[list-item]
                pairs = [(TOPIC, b"1"), (TOPIC, b"2"), (TOPIC, 3)]
                with pytest.raises(TypeError, match=r"events\[2\]\[1\] is int"):
                    await client.publish_many(pairs)  # type: ignore[arg-type]
                await client.publish(TOPIC, b"after")
                assert (await anext(events)).payload == b"after"

    asyncio.run(scenario())


def test_of_events_that_are_made_one_by_one_those_before_a_wrong_one_are_published() -> None:
    def pairs() -> Iterator[tuple[str, bytes]]:
        yield TOPIC, b"1"
        yield TOPIC, b"2"
        raise LookupError

    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                with pytest.raises(LookupError):
                    await client.publish_many(pairs())
                assert [(await anext(events)).payload for _ in range(2)] == [b"1", b"2"]

    asyncio.run(scenario())


# ---- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_that_was_not_entered_says_so() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            events = client.subscribe(TOPIC)
            hint = "not entered yet: write `async with"
            with pytest.raises(dynatops.SubscribeError, match=hint):
                _ = [event async for event in events]
            with pytest.raises(dynatops.SubscribeError, match=hint):
                await anext(events.batches())
            with pytest.raises(dynatops.SubscribeError, match=hint):
                await events.change(add=["fire"])
            await events.close()
            with pytest.raises(dynatops.SubscribeError, match="closed; subscribe again"):
                await events

    asyncio.run(scenario())


def test_a_subscription_may_be_awaited_and_entered() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            events = await client.subscribe(TOPIC)
            async with events:
                await client.publish(TOPIC, b"x")
                assert (await anext(events)).payload == b"x"
            with pytest.raises(dynatops.SubscribeError, match="closed; subscribe again"):
                async with events:
                    raise AssertionError

    asyncio.run(scenario())


def test_a_wrong_change_of_mind_changes_nothing() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                with pytest.raises(dynatops.ArgumentTypeError, match="add is str"):
                    await events.change(add="fire")
                with pytest.raises(dynatops.ArgumentTypeError, match="pattern is int"):
                    await events.change(add=["fire", 5], drop=[TOPIC])  # type: ignore[list-item]
                with pytest.raises(dynatops.FilterError):
                    await events.change(add=["a/#/b"], drop=[TOPIC])
                assert events.topics == [TOPIC]
                await client.publish(TOPIC, b"x")
                assert (await anext(events)).payload == b"x"

    asyncio.run(scenario())


def test_a_change_of_mind_that_is_refused_leaves_what_there_was() -> None:
    async def scenario() -> None:
        values = {"broker_id": "b0", "listen": "127.0.0.1:0"}
        limits = {"filters_per_session_max": 2}
        agent = Agent(BrokerSettings.model_validate({**values, "core": limits}))
        await agent.start()
        async with dynatops.connect(agent.address) as client:
            async with client.subscribe(TOPIC) as events:
                with pytest.raises(dynatops.SubscribeError, match="at most 2 filters"):
                    await events.change(add=["fire", "flood"])
                assert events.topics == [TOPIC]
                await client.publish_many("fire", [b"x"])
                await client.publish(TOPIC, b"y")
                assert (await anext(events)).payload == b"y"
                # The place of what was refused is free.
                await events.change(add=["fire"])
                await client.publish("fire", b"z")
                assert (await anext(events)).payload == b"z"
        await agent.stop()

    asyncio.run(scenario())


def test_several_tasks_may_read_one_subscription() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            async with client.subscribe(TOPIC) as events:
                readers = [asyncio.create_task(events.__anext__()) for _ in range(3)]
                await asyncio.sleep(0)
                readers.pop().cancel()
                await client.publish_many(TOPIC, [b"1", b"2"])
                async with asyncio.timeout(5.0):
                    heard = await asyncio.gather(*readers)
                assert {event.payload for event in heard} == {b"1", b"2"}

    asyncio.run(scenario())


# ---- the client's life ---------------------------------------------------------------------------


def test_connect_that_was_not_awaited_says_so() -> None:
    connecting = dynatops.connect("127.0.0.1:1")
    with pytest.raises(AttributeError, match=r"await dynatops\.connect"):
        connecting.publish  # type: ignore[attr-defined]  # noqa: B018  # as applications do


def test_a_closed_client_says_so_at_every_door() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster:
            client = await dynatops.connect(cluster.addresses)
            events = await client.subscribe(TOPIC)
            await client.close()
            await client.close()
            for call in (
                lambda: client.publish(TOPIC, b"x"),
                lambda: client.publish_many(TOPIC, [b"x"]),
                client.flush,
                lambda: client.subscribe(TOPIC),
                lambda: anext(events),
                lambda: events.change(add=["fire"]),
                client.__aenter__,
            ):
                with pytest.raises(dynatops.ClosedError, match="is closed"):
                    await call()
            await events.close()

    asyncio.run(scenario())


def test_a_closed_client_says_so_without_asyncio_too() -> None:
    with LoopThread() as loop, loop.entered(LocalCluster(1)) as cluster:
        client = dynatops.connect_sync(cluster.addresses)
        with client.subscribe(TOPIC) as over:
            pass
        assert list(over) == []
        with pytest.raises(dynatops.ClosedError, match="subscription is closed"):
            over.next(1.0)
        events = client.subscribe(TOPIC)
        client.close()
        client.close()
        for call in (
            lambda: client.publish(TOPIC, b"x"),
            client.flush,
            lambda: client.subscribe(TOPIC),
            lambda: next(iter(events)),
            lambda: events.next(1.0),
            client.__enter__,
        ):
            with pytest.raises(dynatops.ClosedError, match="is closed"):
                call()
        events.close()
        assert client.broker == ""


def test_a_client_belongs_to_one_event_loop() -> None:
    with LoopThread() as loop, loop.entered(LocalCluster(1)) as cluster:
        client = loop.run(_connected(cluster.addresses))
        with pytest.raises(dynatops.DynatopsError, match="another event loop"):
            asyncio.run(client.publish(TOPIC, b"x"))
        loop.run(client.close())


async def _connected(addresses: list[str]) -> dynatops.Client:
    return await dynatops.connect(addresses)


def test_a_callback_cannot_wait_for_its_own_thread() -> None:
    said: list[Exception] = []
    with LoopThread() as loop, loop.entered(LocalCluster(1)) as cluster:

        def tell(broker: str, reason: str) -> None:
            try:
                client.publish(TOPIC, b"x")
            except dynatops.DynatopsError as error:
                said.append(error)

        with dynatops.connect_sync(cluster.addresses, on_connection=tell) as client:
            tell("", "as if")
            # In another thread it may.
            assert said == []
            client._run(_called(tell))
            assert "in a callback" in str(said[0])


async def _called(tell: Callable[[str, str], None]) -> None:
    tell("", "")


def test_a_callback_that_fails_is_reported_and_the_client_goes_on() -> None:
    async def scenario() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

        def fail(*_: object) -> None:
            raise RuntimeError("the application's own")

        async with LocalCluster(1) as cluster:
            async with dynatops.connect(cluster.addresses, on_connection=fail) as client:
                async with client.subscribe(TOPIC, on_gap=fail) as events:
                    events._queue.tell_gap(dynatops.Gap(TOPIC, 1, "why not"))
                    client._engine._tell_lost()
                    await client.publish(TOPIC, b"x")
                    assert (await anext(events)).payload == b"x"
        assert [str(report["exception"]) for report in reports] == ["the application's own"] * 2
        assert ["on_gap" in reports[0]["message"], "on_connection" in reports[1]["message"]]

    asyncio.run(scenario())


def test_when_the_engine_dies_every_call_says_so_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a fault of the library's")

    async def scenario() -> None:
        async with LocalCluster(1) as cluster:
            client = await dynatops.connect(cluster.addresses)
            events = await client.subscribe(TOPIC)
            waiting = asyncio.create_task(events.__anext__())
            monkeypatch.setattr(ClientCore, "on_frame", broken)
            publishing = asyncio.create_task(client.publish(TOPIC, b"x"))
            calls = [publishing, waiting, client.publish(TOPIC, b"y"), client.flush()]
            for call in calls:
                async with asyncio.timeout(5.0):
                    with pytest.raises(dynatops.ClientFailedError, match="library") as caught:
                        await call
                assert isinstance(caught.value.__cause__, KeyError)
                assert isinstance(caught.value, dynatops.ClosedError)
            with pytest.raises(dynatops.ClientFailedError):
                client.subscribe(TOPIC)
            await client.close()

    asyncio.run(scenario())
