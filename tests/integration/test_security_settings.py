"""A broker says what is wrong with its security settings before it starts."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import StartError
from tests.support.security import ENCRYPTED, MUTUAL, pem, running


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
