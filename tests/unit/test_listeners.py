"""The listeners of a broker: begun together, ended together, and all or none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker_agent.process_settings import SETTING_GROUPS, BrokerSettings, describe_settings
from broker_agent.runtime.agent import Agent
from broker_agent.runtime.listeners.listener import ListenerKind, Listeners
from broker_agent.runtime.listeners.table import KNOWN_BY, LISTENERS, describe_doors
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.kit.serving.start_errors import StartError

TAKEN = "127.0.0.1:9"


class FakeListener:
    """Takes any address but one; says what is done with it."""

    def __init__(self, name: str, done: list[str]) -> None:
        self._name = name
        self._done = done

    def bind(self, address: str, credentials: LinkCredentials) -> int | None:
        self._done.append(f"{self._name} at {address}")
        return None if address == TAKEN else 7

    async def start(self) -> None:
        self._done.append(f"{self._name} starts")

    def reload_certificates(self) -> None:
        self._done.append(f"{self._name} reloads")

    async def stop(self) -> None:
        self._done.append(f"{self._name} stops")


def listeners(done: list[str]) -> Listeners:
    def kind(name: str) -> ListenerKind:
        return ListenerKind(lambda _: FakeListener(name, done), "")

    kinds = {name: kind(name) for name in ("main", "mqtt", "tcp")}
    return Listeners(cast("Agent", None), kinds, "main")


def settings(**doors: str) -> BrokerSettings:
    return BrokerSettings(listen="[::1]:0", doors=doors)


def bound(made: Listeners, **doors: str) -> None:
    asyncio.run(made.bind(settings(**doors), LinkCredentials()))


def test_those_that_are_asked_for_are_begun_and_ended_alike() -> None:
    done: list[str] = []
    made = listeners(done)
    bound(made, tcp="127.0.0.1:0")
    assert done == ["main at [::1]:0", "tcp at 127.0.0.1:0"]
    assert (made.address, made.others) == ("[::1]:7", {"tcp": "127.0.0.1:7"})
    for step, said in ((made.start, "starts"), (made.stop, "stops")):
        done.clear()
        asyncio.run(step())
        assert done == [f"main {said}", f"tcp {said}"]
        assert made.are_open == (said == "starts")
    done.clear()
    made.reload_certificates()
    assert done == ["main reloads", "tcp reloads"]


def test_where_one_cannot_be_had_none_is_kept() -> None:
    done: list[str] = []
    with pytest.raises(StartError, match=f"cannot listen on {TAKEN}"):
        bound(listeners(done), tcp=TAKEN)
    assert done == ["main at [::1]:0", f"tcp at {TAKEN}", "main stops"]


@pytest.mark.parametrize("name", ["smoke", "main"])
def test_a_name_that_no_further_door_has(name: str) -> None:
    done: list[str] = []
    with pytest.raises(StartError, match=f"doors.{name}: .* there are mqtt, tcp"):
        bound(listeners(done), **{name: "127.0.0.1:0"})
    assert done == []


def test_a_door_that_anyone_can_reach_asks_for_what_a_broker_does() -> None:
    with pytest.raises(ValueError, match=r"listening on 0\.0\.0\.0:1883 would"):
        settings(mqtt="0.0.0.0:1883")
    with pytest.raises(ValueError, match="nowhere"):
        settings(mqtt="nowhere")


def test_clients_are_told_what_is_advertised_or_else_what_is_listened_on() -> None:
    made = listeners([])
    bound(made, tcp="127.0.0.1:0", mqtt="127.0.0.2:0")
    assert made.advertised({"tcp": "b0.example.org:7400"}) == {
        "tcp": "b0.example.org:7400",
        "mqtt": "127.0.0.2:7",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"advertised": {"outside": "b0:1"}}, "advertised.outside needs doors.outside"),
        ({"doors": {"outside": "[::]:7401"}}, "nobody's address: set advertised.outside"),
        ({"doors": {"outside": "[::1]:0"}, "advertised": {"outside": "b0"}}, "is no address"),
    ],
)
def test_what_cannot_be_advertised(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BrokerSettings(**values, insecure=True)


def test_a_port_may_be_a_sum() -> None:
    values = {"doors": {"outside": "127.0.0.1:0"}, "advertised": {"outside": "node:31401+12"}}
    assert BrokerSettings.model_validate(values).advertised == {"outside": "node:31413"}


def test_what_can_be_set_is_of_a_group() -> None:
    described: list[tuple[str, Any, str]] = [*describe_settings(), *describe_doors()]
    assert {name.partition(".")[0] for name, _, _ in described} <= set(SETTING_GROUPS)
    for setting in ("doors", "advertised"):
        there = {name for name, _, _ in described if name.startswith(f"{setting}.")}
        assert there == {f"{setting}.{name}" for name in LISTENERS if name != KNOWN_BY}
