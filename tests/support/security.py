"""Certificates, tokens and brokers that ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dynatops
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent
from dynatops.kit.security.tls import Tls
from dynatops.kit.security.tokens import hash_of

_FOLDER = Path(__file__).parent / "certificates"
SECRET = "what-all-brokers-of-the-network-know"


def pem(name: str) -> str:
    """The path of a file made by certificates/make.sh."""
    return str(_FOLDER / name)


TRUSTING = Tls(ca=pem("ca.crt"))
CLIENT = Tls(ca=pem("ca.crt"), cert=pem("client.crt"), key=pem("client.key"))
STRANGER = Tls(ca=pem("ca.crt"), cert=pem("stranger.crt"), key=pem("stranger.key"))

ENCRYPTED: dict[str, Any] = {
    "tls_cert": pem("broker.crt"),
    "tls_key": pem("broker.key"),
    "tls_ca": pem("ca.crt"),
}
MUTUAL: dict[str, Any] = {**ENCRYPTED, "require_client_certificates": True}


def table(name: str, token: str, **entries: str) -> str:
    """A token's table; entries are TOML already."""
    lines = [f'name = "{name}"', f'sha256 = "{hash_of(token)}"']
    lines += [f"{key} = {value}" for key, value in entries.items()]
    return "\n".join(("[[token]]", *lines, ""))


@asynccontextmanager
async def running(
    name: str = "b0", security: dict[str, Any] | None = None, **values: Any
) -> AsyncIterator[Agent]:
    settings = {"broker_id": name, "listen": "127.0.0.1:0", "security": security or {}, **values}
    agent = Agent(BrokerSettings.model_validate(settings))
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()


async def exchange(publisher: str, subscriber: str, **access: Any) -> None:
    """One event from a client at one broker to a client at another."""
    async with (
        dynatops.connect(publisher, **access) as one,
        dynatops.connect(subscriber, **access) as other,
        other.subscribe("app/x") as events,
    ):
        await one.publish("app/x", b"there")
        assert (await events.__anext__()).payload == b"there"
