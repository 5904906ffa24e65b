"""Commands with certificates and tokens, and those that make tokens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynatops.cli.main import main
from dynatops.local.cluster import BrokerProcess
from tests.support.security import MUTUAL, pem

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


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
