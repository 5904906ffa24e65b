"""Certificates, tokens and secrets, with real brokers, the real client, and the commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

import dynatops
from broker_agent.runtime.agent import JoinError, StartError
from broker_agent.settings import BrokerSettings
from dynatops.cli.main import main
from dynatops.client.errors import AccessError, ConnectError
from dynatops.cluster import BrokerProcess
from dynatops.inspection import Inspector, ring_problems
from dynatops.tls import Tls, open_channel
from dynatops.v1.inspection_pb2 import DescribeSessionRequest, ListSessionsRequest
from dynatops.v1.inspection_pb2_grpc import InspectionStub
from tests.support.security import (
    CLIENT,
    ENCRYPTED,
    MUTUAL,
    SECRET,
    STRANGER,
    TRUSTING,
    pem,
    running,
    table,
)
from tests.support.waiting import until

QUICK = 1.5


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        table("app", "app-token", publish='["app/#"]', subscribe='["app/#", "news"]')
        + table("ops", "ops-token", inspect="true")
        + table("own", "own-token", client_ids='["dev-*"]', publish='["of/%c"]')
    )
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def copy(name: str, path: Path) -> None:
    path.write_bytes(Path(pem(name)).read_bytes())


async def _exchange(publisher: str, subscriber: str, **access: Any) -> None:
    """One event from a client at one broker to a client at another."""
    async with (
        dynatops.connect(publisher, **access) as one,
        dynatops.connect(subscriber, **access) as other,
        other.subscribe("app/x") as events,
    ):
        await one.publish("app/x", b"there")
        assert (await events.__anext__()).payload == b"there"


class TestEncryption:
    def test_a_client_that_trusts_the_authority(self) -> None:
        async def scenario() -> None:
            async with running(security=ENCRYPTED) as agent:
                await _exchange(agent.address, agent.address, tls=TRUSTING)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("tls", "reason"),
        [
            (None, "perhaps it speaks TLS"),
            (Tls(ca=pem("stranger.crt")), "not from an authority that is believed"),
            (Tls(), "not from an authority that is believed"),
            (Tls(ca=pem("ca.crt"), server_name="elsewhere"), "is for another name"),
            (
                Tls(ca="/nowhere/ca.crt"),
                "cannot read the authorities file /nowhere/ca.crt: No such",
            ),
            (Tls(ca=pem("make.sh")), "holds no certificates"),
            (Tls(ca=pem("ca.crt"), cert=pem("client.crt")), "go together"),
        ],
    )
    def test_a_client_that_does_not_is_told_why(self, tls: Tls | None, reason: str) -> None:
        async def scenario() -> None:
            async with running(security=ENCRYPTED) as agent:
                with pytest.raises(ConnectError, match=reason):
                    await dynatops.connect(agent.address, tls=tls, timeout_s=0.5)
                with pytest.raises(ConnectError, match=reason):
                    async with Inspector(agent.address, tls=tls) as inspector:
                        await inspector.brokers()

        asyncio.run(scenario())

    def test_a_client_that_encrypts_where_nobody_does(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                with pytest.raises(ConnectError, match="it does not speak TLS"):
                    await dynatops.connect(agent.address, tls=TRUSTING, timeout_s=0.5)

        asyncio.run(scenario())

    def test_from_code_that_is_not_asynchronous(self, tokens: Path) -> None:
        def publish(address: str) -> None:
            with dynatops.connect_sync(address, token="app-token", tls=TRUSTING) as client:
                client.publish("app/x", b"1")

        async def scenario() -> None:
            async with running(security={**ENCRYPTED, "tokens": str(tokens)}) as agent:
                await asyncio.to_thread(publish, agent.address)
                assert agent.core.counters.published_events == 1

        asyncio.run(scenario())


class TestMutualTls:
    @pytest.mark.parametrize("tls", [TRUSTING, STRANGER])
    def test_no_certificate_no_service(self, tls: Tls) -> None:
        async def scenario() -> None:
            async with running(security=MUTUAL) as agent:
                with pytest.raises(ConnectError, match="asks for a certificate"):
                    await dynatops.connect(agent.address, tls=tls, timeout_s=0.5)
                with pytest.raises(ConnectError, match="asks for a certificate"):
                    async with Inspector(agent.address, tls=tls) as inspector:
                        await inspector.brokers()

        asyncio.run(scenario())

    def test_a_ring_of_three(self) -> None:
        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as stack:
                first = await stack.enter_async_context(running("b0", MUTUAL))
                others = [
                    await stack.enter_async_context(running(name, MUTUAL, join=(first.address,)))
                    for name in ("b1", "b2")
                ]

                async def is_whole() -> bool:
                    async with Inspector(first.address, tls=CLIENT) as inspector:
                        reports = await inspector.brokers()
                    return len(reports) == 3 and not ring_problems(reports)

                await until(is_whole)
                await _exchange(others[0].address, others[1].address, tls=CLIENT)

        asyncio.run(scenario())

    def test_a_broker_with_a_strange_certificate_cannot_join(self) -> None:
        async def scenario() -> None:
            strange = {
                **MUTUAL, "tls_cert": pem("stranger.crt"), "tls_key": pem("stranger.key"),
            }  # fmt: skip
            quick = {"join_timeout_s": QUICK}
            async with running("b0", MUTUAL) as agent:
                with pytest.raises(JoinError, match="asks for a certificate"):
                    async with running("b1", strange, join=(agent.address,), runtime=quick):
                        pass

        asyncio.run(scenario())

    def test_a_renewed_certificate_is_shown_without_a_restart(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            cert, key = tmp_path / "b.crt", tmp_path / "b.key"
            for name, path in (("stranger.crt", cert), ("stranger.key", key)):
                copy(name, path)
            own = {"tls_cert": str(cert), "tls_key": str(key)}
            async with running(security=own) as agent:
                with pytest.raises(ConnectError):
                    await dynatops.connect(agent.address, tls=TRUSTING, timeout_s=0.5)
                copy("broker.crt", cert)
                agent.reload()
                assert agent.core.counters.reloads_failed == 1
                copy("broker.key", key)
                agent.reload()
                await _exchange(agent.address, agent.address, tls=TRUSTING)

        asyncio.run(scenario())


class TestPeerSecret:
    @pytest.mark.parametrize("other", ["another-secret-that-is-wrong", None])
    def test_who_does_not_know_it_cannot_join(
        self, secret: Path, tmp_path: Path, other: str | None
    ) -> None:
        async def scenario() -> None:
            wrong = tmp_path / "wrong"
            wrong.write_text(other or "")
            theirs = {"peer_secret": str(wrong)} if other else {}
            quick = {"join_timeout_s": QUICK}
            async with running("b0", {"peer_secret": str(secret)}) as agent:
                with pytest.raises(JoinError, match="the peer secrets differ"):
                    async with running("b1", theirs, join=(agent.address,), runtime=quick):
                        pass
                assert agent.links.counters.links_not_believed >= 1
                assert len(agent.core.node.ring.successors) == 0

        asyncio.run(scenario())

    def test_nor_is_anyone_joined_who_does_not_know_it(self, secret: Path) -> None:
        async def scenario() -> None:
            quick = {"join_timeout_s": QUICK}
            ours = {"peer_secret": str(secret)}
            async with running("b0") as agent:
                with pytest.raises(JoinError, match="it answered, but the peer secrets differ"):
                    async with running("b1", ours, join=(agent.address,), runtime=quick):
                        pass

        asyncio.run(scenario())

    def test_a_secret_can_be_replaced_broker_by_broker(self, secret: Path, tmp_path: Path) -> None:
        async def scenario() -> None:
            both = tmp_path / "both"
            both.write_text(f"the-next-secret-of-them\n{SECRET}\n")
            old_first = tmp_path / "old_first"
            old_first.write_text(f"{SECRET}\nthe-next-secret-of-them\n")
            async with running("b0", {"peer_secret": str(old_first)}) as first:
                ours = {"peer_secret": str(both)}
                async with running("b1", ours, join=(first.address,)) as second:
                    await _exchange(first.address, second.address)

        asyncio.run(scenario())


class TestTokens:
    def test_no_token_no_service_and_no_second_try(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                for token, reason in (("", "none was given"), ("guess", "does not know the token")):
                    with pytest.raises(AccessError, match=reason):
                        await dynatops.connect(agent.address, token=token)
                assert agent.core.counters.authentication_refused == 2
                with pytest.raises(AccessError, match="is for client ids dev-"):
                    await dynatops.connect(agent.address, token="own-token", client_id="x")

        asyncio.run(scenario())

    def test_rules_hold(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                async with dynatops.connect(agent.address, token="app-token") as client:
                    with pytest.raises(dynatops.SubscribeError, match="does not allow subscribing"):
                        await client.subscribe("other")
                    with pytest.raises(dynatops.PublishError, match="does not allow publishing"):
                        await client.publish("news", b"1")
                    await client.publish("news", b"2", ack=dynatops.Ack.NONE)
                    await client.publish("app/x", b"3")
                    await client.flush()
                assert agent.core.counters.publish_not_allowed == 2
                async with dynatops.connect(
                    agent.address, token="own-token", client_id="dev-1"
                ) as client:
                    await client.publish("of/dev-1", b"mine")
                    with pytest.raises(dynatops.PublishError):
                        await client.publish("of/dev-2", b"not mine")

        asyncio.run(scenario())

    def test_inspecting_needs_the_right(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                for token, reason in (("", "none was given"), ("app-token", "no `inspect = true`")):
                    with pytest.raises(AccessError, match=reason):
                        async with Inspector(agent.address, token=token) as inspector:
                            await inspector.brokers()
                async with Inspector(agent.address, token="ops-token") as inspector:
                    assert len(await inspector.brokers()) == 1
                    assert await inspector.topics() == []
                    assert (await inspector.tree("x")).node.broker_id == "b0"
                    assert await inspector.sessions() == []
                    assert await inspector.session("x") == []
                assert agent.core.counters.inspect_refused == 2

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("method", "request_"),
        [
            ("ListSessions", ListSessionsRequest()),
            ("DescribeSession", DescribeSessionRequest(client_id="ann")),
        ],
    )
    def test_so_does_looking_at_sessions(
        self, tokens: Path, method: str, request_: Message
    ) -> None:
        async def scenario() -> None:
            async with (
                running(security={"tokens": str(tokens)}) as agent,
                open_channel(agent.address, None) as channel,
            ):
                ask = getattr(InspectionStub(channel), method)
                denied = grpc.StatusCode.PERMISSION_DENIED
                for token, code in (("app-token", denied), ("", grpc.StatusCode.UNAUTHENTICATED)):
                    metadata = (("authorization", f"Bearer {token}"),) if token else ()
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await ask(request_, metadata=metadata)
                    assert refused.value.code() is code
                async with (
                    dynatops.connect(agent.address, token="app-token", client_id="ann") as client,
                    client.subscribe("app/x"),
                    Inspector(agent.address, token="ops-token") as inspector,
                ):
                    ((broker, session),) = await inspector.sessions()
                    assert (broker.broker_id, session.client_id) == ("b0", "ann")
                    assert session.token == "app"
                    ((_, details),) = await inspector.session("ann")
                    assert [f.pattern for f in details.filters] == ["app/x"]

        asyncio.run(scenario())

    def test_new_rules_reach_clients_that_are_there(self, tokens: Path) -> None:
        async def scenario() -> None:
            async with running(security={"tokens": str(tokens)}) as agent:
                client = await dynatops.connect(agent.address, token="app-token")
                events = await client.subscribe("app/x", "news")
                gone = await client.subscribe("app/y")
                write(
                    tokens,
                    table("app", "app-token", publish='["#"]', subscribe='["app/x", "news"]'),
                )
                agent.reload()
                with pytest.raises(dynatops.SubscribeError, match="'app/y'"):
                    await gone.__anext__()
                await client.publish("app/x", b"still")
                assert (await events.__anext__()).payload == b"still"
                write(tokens, "nonsense")
                agent.reload()
                assert agent.core.counters.reloads_failed == 1
                await client.publish("app/x", b"as before")
                write(tokens, "")
                agent.reload()
                assert (await events.__anext__()).payload == b"as before"
                with pytest.raises(AccessError, match="does not know"):
                    await events.__anext__()
                with pytest.raises(AccessError):
                    await client.publish("app/x", b"no more")
                await client.close()

        asyncio.run(scenario())

    def test_a_rate_slows_down_and_loses_nothing(self, tokens: Path) -> None:
        async def scenario() -> None:
            write(
                tokens, table("app", "t", publish='["#"]', limits="{ publish_events_per_s = 1000 }")
            )
            async with running(security={"tokens": str(tokens)}) as agent:
                loop = asyncio.get_running_loop()
                async with dynatops.connect(agent.address, token="t") as client:
                    started_s = loop.time()
                    for _ in range(4):
                        await client.publish_many("x", [b"1"] * 500)
                    await client.flush()
                    assert loop.time() - started_s > 0.8
                assert agent.core.counters.throttle_pauses >= 1
                assert agent.core.counters.published_events == 2_000

        asyncio.run(scenario())


class TestStarting:
    @pytest.mark.parametrize(
        ("security", "problem"),
        [
            ({"tls_cert": "/nowhere", "tls_key": pem("broker.key")}, "file /nowhere: No such file"),
            (
                {"tls_cert": pem("broker.crt"), "tls_key": pem("client.key")},
                "client.key is not that of the certificate in",
            ),
            (
                {"tls_cert": pem("client.crt"), "tls_key": pem("locked.key")},
                "the key without a password",
            ),
            ({"tls_cert": pem("make.sh"), "tls_key": pem("broker.key")}, "are no certificate"),
            ({**ENCRYPTED, "tls_ca": pem("broker.key")}, "holds no certificates"),
            ({"tokens": "/nowhere"}, "tokens file /nowhere: cannot be read: No such file"),
            ({"tokens": pem("make.sh")}, "it is not TOML"),
            ({"peer_secret": "/nowhere"}, "cannot read the peer secret file /nowhere"),
            ({"peer_secret": os.devnull}, "must hold 16 characters or more"),
        ],
    )
    def test_a_bad_file_is_one_clear_line(self, security: dict[str, Any], problem: str) -> None:
        async def scenario() -> None:
            with pytest.raises(StartError) as raised:
                async with running(security=security):
                    pass
            assert problem in str(raised.value)
            assert "\n" not in str(raised.value)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("security", "missing"),
        [
            ({}, "set security.tls_cert and security.tls_key, and security.tokens, and security.p"),
            (ENCRYPTED, "set security.tokens, and security.peer_secret"),
            ({**MUTUAL}, "set security.tokens; or listen"),
            ({**ENCRYPTED, "tokens": "t"}, "set security.peer_secret (or"),
            ({"tokens": "t", "peer_secret": "s"}, "set security.tls_cert and security.tls_key; or"),
        ],
    )
    def test_beyond_loopback_says_what_is_missing(
        self, security: dict[str, Any], missing: str
    ) -> None:
        values = {"listen": "0.0.0.0:0", "security": security}
        with pytest.raises(ValueError, match="--insecure") as raised:
            BrokerSettings.model_validate(values)
        assert missing in str(raised.value)
        BrokerSettings.model_validate({**values, "insecure": True})

    @pytest.mark.parametrize(
        "security",
        [
            {**ENCRYPTED, "tokens": "t", "peer_secret": "s"},
            {**MUTUAL, "tokens": "t"},
        ],
    )
    def test_beyond_loopback_with_everything(self, security: dict[str, Any]) -> None:
        BrokerSettings.model_validate({"listen": "0.0.0.0:0", "security": security})

    @pytest.mark.parametrize(
        ("security", "problem"),
        [
            ({"tls_cert": "x"}, "set security.tls_key too"),
            ({"tls_ca": "x"}, "nothing is encrypted"),
            (
                {"tls_cert": "x", "tls_key": "y", "require_client_certificates": True},
                "needs to know whose",
            ),
        ],
    )
    def test_what_does_not_fit_together(self, security: dict[str, Any], problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            BrokerSettings.model_validate({"security": security})


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
class TestCommands:
    @pytest.fixture
    def broker(self, tokens: Path) -> Iterator[BrokerProcess]:
        options = ["--set", f"security.tokens={tokens}"]
        for name, value in MUTUAL.items():
            options += ["--set", f"security.{name}={value}"]
        with asyncio.Runner() as runner:
            process = runner.run(BrokerProcess.start("b0", options=options))
            yield process
            assert runner.run(process.stop()) == 0

    def test_a_whole_conversation(
        self,
        broker: BrokerProcess,
        tokens: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("DYNATOPS_BROKER", broker.address)
        monkeypatch.setenv("DYNATOPS_TLS_CA", pem("ca.crt"))
        certificate = ["--tls-cert", pem("client.crt"), "--tls-key", pem("client.key")]
        assert main(["token", "create", "new", "--publish", "new/#", "--file", str(tokens)]) == 0
        token = capfd.readouterr().out.strip()
        token_file = tmp_path / "token"
        token_file.write_text(token + "\n")
        publish = ["pub", "new/x", "hello", *certificate]
        assert main([*publish, "--token-file", str(token_file)]) == 1
        assert "does not know the token" in capfd.readouterr().err
        broker.process.send_signal(signal.SIGHUP)

        while main([*publish, "--token", token]):
            assert "does not know the token" in capfd.readouterr().err
        assert "published 1 event on new/x" in capfd.readouterr().out
        assert main(["pub", "other", "hello", "--token", token, *certificate]) == 1
        assert "does not allow publishing" in capfd.readouterr().err
        assert main(["brokers", "--token", token, *certificate]) == 1
        assert "no `inspect = true`" in capfd.readouterr().err
        monkeypatch.setenv("DYNATOPS_TOKEN", "ops-token")
        assert main(["brokers", "--json", *certificate]) == 0
        (report,) = json.loads(capfd.readouterr().out)
        assert report["counters"]["publish_not_allowed"] == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["pub", "x", "y", "--token-file", "/nowhere"],
                "--token-file /nowhere: cannot be read",
            ),
            (["pub", "x", "y", "--token-file", os.devnull], "it is empty"),
            (["pub", "x", "y", "--token", "ä"], "is it complete?"),
            (["token", "create", "x", "--publish", "a/#/b"], "token 'x', publish, 0: filter"),
            (["token", "create", ""], "name: string should have"),
        ],
    )
    def test_mistakes(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(arguments) == 2
        assert message in capsys.readouterr().err

    def test_tokens_are_made_checked_and_never_kept(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "tokens.toml"
        create = ["token", "create", "--file", str(path)]
        options = ["--subscribe", "b/#", "--client-id", "app-*", "--inspect", "--sessions", "3"]
        assert main([*create, "one", "--publish", "%c/ä", *options]) == 0
        token = capsys.readouterr().out.strip()
        assert main([*create, "two", "--publish-events-per-s", "10"]) == 0
        assert main([*create, "two"]) == 2
        assert "two tokens have the name 'two'" in capsys.readouterr().err
        assert token.startswith("dyn_")
        assert token not in path.read_text()
        assert main(["token", "check", str(path), "--json"]) == 0
        one, two = json.loads(capsys.readouterr().out)
        assert one["publish"] == ["%c/ä"]
        assert one["limits"]["sessions"] == 3
        assert two["limits"]["publish_events_per_s"] == 10
        path.write_text("nonsense")
        assert main(["token", "check", str(path)]) == 1
        assert "it is not TOML" in capsys.readouterr().err
